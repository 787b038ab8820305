//! All integration tests in one binary: each more would link DataFusion once again.

mod cuda_sql;
mod devices;
mod dictionaries;
mod divided;

mod fake;
mod fake_range_join;
mod hunt;
mod join_choice;
mod lazy_index;
mod memberships;
mod nearest;
mod nested_loop;
mod overlaps;
mod partitioned;
mod plans;
mod prevailing;
mod properties;
mod pushdown;
mod query_planner;
mod range_join;
mod range_join_devices;
mod range_join_faults;
mod reasons;
mod robustness;
mod row_joins;
mod runs;
mod spilling;
mod sql_files;
mod staleness;
mod support;
mod thresholds;
mod ties;
mod unique_groups;
mod unique_source;
mod units;
