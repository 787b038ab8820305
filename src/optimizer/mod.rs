//! The rules that registration adds to a session, in the order in which they run.
//!
//! 1. [`TimeDifferences`], [`CheckFrameCalls`], [`ArgExtremesToFirstValues`], [`IntervalProductsToBounds`],
//!    [`NullableSubqueries`], [`OrderByDistances`] and
//!    [`SubqueriesToDependentJoins`](datafusion_dependent_join::SubqueriesToDependentJoins), analyzer rules.
//! 2. [`RangeCallToLookup`], the first optimizer rule and once more at the end.
//! 3. [`NestedSubqueriesToColumns`], [`LaterRowsToLastKeys`] and [`ExistsToCounts`], before DataFusion decorrelates
//!    subqueries. Those that it would reject or answer wrongly become lateral joins
//!    ([`SubqueriesToLateralJoins`](datafusion_dependent_join::SubqueriesToLateralJoins)): [`LateralToRangeJoin`]
//!    takes those over a range, and
//!    [`UnnestDependentJoins`](datafusion_dependent_join::UnnestDependentJoins) the rest. Then
//!    [`FirstRowsToNearestRows`] and [`FiltersOfFramesToCases`], and before constants are evaluated
//!    [`LongListsToTables`]. [`RenewSchemas`] after lateral joins are decorrelated, and [`OuterJoinToAntiJoin`]
//!    around the rule that pushes filters down.
//! 4. [`DistinctGroupedJoinToRangeJoin`], before DataFusion's rule for aggregates with DISTINCT, and
//!    [`GroupedJoinToRangeJoin`] and [`DropUnusedAggregates`], the last optimizer rules.
//! 5. [`JoinToRangeJoin`], a physical rule, before [`KeepRowOrder`], [`PartitionRangeJoins`], [`ShowRowOrder`] and
//!    [`KeepUndividedJoins`], the physical rules around `EnsureRequirements`.
//! 6. [`WindowsToFrames`] and [`UseUniqueGroups`], the last physical rules.

// `logical` has the rules for logical plans, `physical` those for physical plans. What both use is beside them:
// `condition` recognises a comparison with a bound, `difference`, `extremes`, `prefixes` and `alternatives` do in
// other words, `null_safe_keys` makes equality keys of IS NOT DISTINCT FROM, `cost` decides whether sorting pays,
// `lossless_casts` tells which casts keep values, `infallible` which expressions have a value for all rows,
// `rejection` is why a rule leaves a plan unchanged, and `written` shows conditions as the query writes them. A rule
// that finds nothing leaves the plan as it was; only calls of range functions that are wrong are errors.

pub(crate) mod alternatives;
pub(crate) mod condition;
pub(crate) mod cost;
pub(crate) mod difference;
pub(crate) mod extremes;
pub(crate) mod infallible;
pub(crate) mod logical;
pub(crate) mod lossless_casts;
pub(crate) mod null_safe_keys;
pub(crate) mod physical;
pub(crate) mod prefixes;
pub(crate) mod rejection;
pub(crate) mod when_rewriting;
pub(crate) mod written;

pub use crate::optimizer::physical::unique_groups::UseUniqueGroups;
pub use crate::optimizer::physical::window_frames::WindowsToFrames;
pub use logical::anti_left_join::OuterJoinToAntiJoin;
pub use logical::arg_extreme::ArgExtremesToFirstValues;
pub use logical::filtered_frames::FiltersOfFramesToCases;
pub use logical::first_rows::FirstRowsToNearestRows;
pub use logical::grouped_join::{DistinctGroupedJoinToRangeJoin, GroupedJoinToRangeJoin};
pub use logical::interval_bounds::IntervalProductsToBounds;
pub use logical::lateral::LateralToRangeJoin;
pub use logical::long_lists::LongListsToTables;
pub use logical::memberships::ExistsToCounts;
pub use logical::nested_subquery::NestedSubqueriesToColumns;
pub use logical::no_later_row::LaterRowsToLastKeys;
pub use logical::nullable_subquery::NullableSubqueries;
pub use logical::order_by_distance::OrderByDistances;
pub use logical::range_call::frame_call::CheckFrameCalls;
pub use logical::range_call::scalar_call::RangeCallToLookup;
pub use logical::renewed_schemas::RenewSchemas;
pub use logical::time_differences::TimeDifferences;
pub use logical::unused_aggregates::DropUnusedAggregates;
pub use physical::joins_to_range_joins::JoinToRangeJoin;
pub use physical::partition_joins::{KeepUndividedJoins, PartitionRangeJoins};
pub use physical::row_order::{KeepRowOrder, ShowRowOrder};
