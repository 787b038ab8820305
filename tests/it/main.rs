//! All integration tests in one binary: each more would link DataFusion once again.

mod cuda_sql;
mod devices;
mod dictionaries;
mod fake;
mod lazy_index;
mod memberships;
mod nested_loop;
mod plans;
mod prevailing;
mod properties;
mod query_planner;
mod range_join;
mod range_join_devices;
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
