//! The rules that registration adds to a session, in the order in which they run.
//!
//! 1. `TimeDifferences`, `ZonedSums`, `CheckFrameCalls`, `ArgExtremesToFirstValues`, `IntervalProductsToBounds`,
//!    `NullableSubqueries`, `OrderByDistances` and `SubqueriesToDependentJoins`, analyzer rules.
//! 2. `RangeCallToLookup`, the first optimizer rule and once more at the end. `IntervalProductsToBounds` again, for
//!    PREPARE.
//! 3. `NestedSubqueriesToColumns`, `LaterRowsToLastKeys` and `ExistsToCounts`, before DataFusion decorrelates
//!    subqueries. Those that it would reject or answer wrongly become lateral joins (`SubqueriesToLateralJoins`):
//!    `LateralToRangeJoin` takes those over a range, and `UnnestDependentJoins` the rest. Then
//!    `FirstRowsToNearestRows` and `FiltersOfFramesToCases`, and before constants are evaluated `LongListsToTables`.
//!    `RenewSchemas` after lateral joins are decorrelated, and `OuterJoinToAntiJoin` around the rule that pushes
//!    filters down.
//! 4. `DistinctGroupedJoinToRangeJoin`, before DataFusion's rule for aggregates with DISTINCT, and
//!    `GroupedJoinToRangeJoin` and `DropUnusedAggregates`, the last optimizer rules.
//! 5. `JoinToRangeJoin`, a physical rule, before `KeepRowOrder`, `PartitionRangeJoins`, `ShowRowOrder` and
//!    `KeepUndividedJoins`, the physical rules around `EnsureRequirements`.
//! 6. `WindowsToFrames` and `UseUniqueGroups`, the last physical rules.

// `physical` has the rules for physical plans; those for logical plans are in datafusion-rmq-logical, as is what both
// use. `cost` decides whether sorting pays. A rule that finds nothing leaves the plan as it was; only calls of range
// functions that are wrong are errors.

pub(crate) mod cost;
pub(crate) mod physical;
