//! The rules for physical plans, which have statistics and the choice of sides.
//!
//! - `joins_to_range_joins`: DataFusion's joins over a range become range joins that return rows: `filtered_join`
//!   reads a join, `null_safe_filter` takes equality keys out of its filter, `join_filter` finds the range in it,
//!   `no_range` says why there is none, and `searched_side` chooses the side that is sorted.
//! - `row_order`: build sides whose row order matters keep it.
//! - `partition_joins`: both sides of a range join are partitioned by the equality keys.
//! - `quadratic_joins`: EXPLAIN says why a join that compares every pair of rows is no range join.
//! - `build_origins`: EXPLAIN says whether build sides are kept.
//! - `outer_constants`: constants of the side of an outer join that has NULLs are none above the join.
//! - `unique_groups`: aggregates over range joins need no hash table where each row turns out to be a group.
//! - `window_frames`: window functions over frames that slide are answered as ranges.
//! - `guarded_rule`: rules of DataFusion that move filters, projections and orders leave those where they would err.
//! - `physical_rule`: the frame of these rules.

pub(crate) mod build_origins;
pub(crate) mod filtered_join;
pub(crate) mod guarded_rule;
pub(crate) mod join_filter;
pub(crate) mod joins_to_range_joins;
pub(crate) mod no_range;
pub(crate) mod null_safe_filter;
pub(crate) mod outer_constants;
pub(crate) mod partition_joins;
pub(crate) mod physical_rule;
pub(crate) mod quadratic_joins;
pub(crate) mod row_order;
pub(crate) mod searched_side;
pub(crate) mod unique_groups;
pub(crate) mod window_frames;
