//! The rules for logical plans: calls of range functions become a `RangeLookup` (`range_call`), plain SQL becomes a
//! `RangeJoin`, one SQL shape a file: `grouped_join`, `lateral`, which scalar subqueries have become, and
//! `table_function` for `range_join(…)`. `memberships` rewrites EXISTS and IN to subqueries that count, and
//! `first_rows` makes nearest rows of `row_number()` and DISTINCT ON, and rows with the last key of `rank()`.
//! `nested_subquery` puts subqueries of subqueries where the other rules find them. Subqueries that are no range join
//! are left to `datafusion_dependent_join`. `order_by_distance` keeps distances in ORDER BY from overflowing.
//! `unused_aggregates` drops what nothing reads, `long_lists` takes lists of constants out of plans, `time_differences`
//! compares durations with intervals by their length, `filtered_frames` makes CASE of FILTER, and `renewed_schemas`
//! tells of the NULLs that decorrelated subqueries have. `anti_left_join` makes anti joins of outer joins with IS NULL,
//! `interval_bounds` bounds of sums that may be beyond all times, `zoned_sums` sums that the clocks of a zone may
//! leave out. `needed_rules` leaves out those for which a plan has nothing. A plan that does not match gets a
//! `Rejection`, which is logged, and stays as it is. Joins that return rows become range joins by a physical rule.
//!
//! The rules share the parts of a match:
//!
//! - `condition_parts`: equality keys, range key (`range_key`), bounds; `operand`: expressions as
//!   `conditions::condition` sees them; `open_ends`: those that are open where they are NULL; `threshold`: a second
//!   range key; `order_by`: range keys of several expressions
//! - `subquery_rows`: the rows of EXISTS and IN
//! - `shared_join`: several range joins as one; `compared_side`: a range join below an inner join
//! - `correlated_aggregate`: a subquery with aggregates; `nearest_row`: one with LIMIT 1, also as aggregates;
//!   `nearest_rows`: any LIMIT, a `NearestRows`
//! - `aggregate_decomposition`: aggregates as columns of the range join; `crossing_aggregates`, `aggregate_argument`,
//!   `average`, `first_and_last`, `accumulated_aggregate` and `merge_states`: parts of it; `narrowed_ranges`: those
//!   whose own condition is a part of the range

pub(crate) mod accumulated_aggregate;
pub(crate) mod aggregate_argument;
pub(crate) mod aggregate_decomposition;
pub mod anti_left_join;
pub mod arg_extreme;
pub(crate) mod average;
pub mod common;
pub(crate) mod compared_side;
pub mod condition_parts;
pub(crate) mod correlated_aggregate;
pub(crate) mod crossing_aggregates;
pub(crate) mod distance;
pub mod filtered_frames;
pub(crate) mod first_and_last;
pub mod first_rows;
pub mod grouped_join;
pub(crate) mod grouped_ranges;
pub(crate) mod grouping;
pub mod interval_bounds;
pub mod lateral;
pub mod long_lists;
pub mod memberships;
pub mod merge_states;
pub(crate) mod narrowed_ranges;
pub(crate) mod nearest_row;
pub(crate) mod nearest_rows;
pub mod needed_rules;
pub mod nested_subquery;
pub mod no_later_row;
pub mod nullable_subquery;
pub(crate) mod open_ends;
pub(crate) mod operand;
pub(crate) mod order_by;
pub mod order_by_distance;
pub mod range_call;
pub(crate) mod range_key;
pub(crate) mod range_union;
pub mod renewed_schemas;
pub(crate) mod shared_join;
pub(crate) mod subquery_rows;
pub mod table_function;
pub(crate) mod threshold;
pub(crate) mod tied_rows;
pub mod time_differences;
pub mod unmixed_joins;
pub mod unused_aggregates;
pub mod when_rewriting;
pub mod zoned_sums;
