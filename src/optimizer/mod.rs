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

// `logical` has the rules for logical plans, `physical` those for physical plans. What both use is beside them:
// `condition` recognises a comparison with a bound, `difference`, `extremes`, `prefixes` and `alternatives` do in
// other words, `null_safe_keys` makes equality keys of IS NOT DISTINCT FROM, `cost` decides whether sorting pays,
// `lossless_casts` tells which casts keep values, `infallible` which expressions have a value for all rows,
// `rejection` is why a rule leaves a plan unchanged, and `written` shows conditions as the query writes them. A rule
// that finds nothing leaves the plan as it was; only calls of range functions that are wrong are errors.

pub(crate) mod cost;
pub(crate) mod physical;
