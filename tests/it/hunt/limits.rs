//! Errors and plans that stand for documented limits, or for faults of `DataFusion` that `docs/limits.md` lists.

use datafusion::prelude::SessionContext;

/// Errors that stand for documented limits. Parts of messages, and what they are about.
const LIMITS: &[(&str, &str)] = &[
    (
        "Physical plan does not support logical expression",
        "a correlation that no range join expresses",
    ),
    (
        "a subquery that depends on the query around it has no plan: ",
        "a subquery that general unnesting refuses",
    ),
    (
        "in a subquery is an aggregate of the query around it",
        "an aggregate of the query around",
    ),
    (
        "decorrelate_lateral_join",
        "a lateral join that no range join expresses",
    ),
    (
        "does not support undecorrelated Subquery",
        "a lateral join that no range join expresses",
    ),
    (
        "Optimizer rule 'decorrelate_predicate_subquery' failed",
        "a derived table that depends on the outer row",
    ),
    (
        "Optimizer rule 'scalar_subquery_to_join' failed",
        "a derived table that depends on the outer row",
    ),
    (
        "refers to the outermost query, which DataFusion can't resolve",
        "a derived table that depends on the outer row",
    ),
    (
        "can only be used in Projection, Filter, Aggregate plan nodes",
        "a subquery in another place",
    ),
    (
        "must be aggregated to return at most one row",
        "a correlation that no range join expresses",
    ),
    (
        "No field named __correlated_sq_",
        "a derived table that depends on the outer row",
    ),
    (
        "No field named __scalar_sq_",
        "a derived table that depends on the outer row",
    ),
    (
        "Invalid comparison operation",
        "an outer column of several types",
    ),
    ("Can't cast value", "an outer column of several types"),
    // Faults of DataFusion where the rest of the query keeps it from being asked alone.
    (
        "which would be ambiguous",
        "ORDER BY of a column that another output has the name of",
    ),
    (
        "inner future panicked during poll",
        "too little memory for DataFusion's nested loop join",
    ),
    (
        "Valid fields are __correlated_sq",
        "a derived table that depends on the outer row",
    ),
    (
        "Physical input schema should be the same",
        "a comparison that DataFusion knows to be never TRUE",
    ),
    (
        "duplicate unqualified field name",
        "names that DataFusion takes for the same",
    ),
    (
        "there is no plan for ",
        "IN with a LIMIT or a volatile function",
    ),
    (
        "null_aware anti join only supports single column join key",
        "NOT IN that no range join expresses",
    ),
    (
        "is not of the columns of one side",
        "a constant condition in an argument of range_join",
    ),
    (
        " of the subquery: write LEFT JOIN LATERAL",
        "a correlated subquery in an argument of range_join",
    ),
    (
        "Ordering direction required for DISTINCT with limit",
        "DISTINCT with a LIMIT over sorted rows",
    ),
    (
        "within too many others, whose conditions it would have to repeat",
        "arguments of range functions nested too deeply",
    ),
    ("Resources exhausted", "too little memory"),
    (
        "partition not used yet",
        "too little memory for DataFusion's nested loop join",
    ),
    (
        "TopK dynamic filter emitter completed more times than expected",
        "too little memory for DataFusion's nested loop join",
    ),
    (
        "Left side produced no data to spill",
        "too little memory for DataFusion's nested loop join",
    ),
];

/// Operators of `DataFusion` whose rows are wrong, in any part of a plan.
const PLANS: &[(&str, &str)] = &[("PiecewiseMergeJoin", "DataFusion's piecewise merge join")];

/// Errors of `DataFusion`'s piecewise merge join.
const PIECEWISE: [&str; 3] = [
    "entered unreachable code",
    "Unsupported operator for PWMJ",
    "does not satisfy order requirements",
];

/// An error of `DataFusion`'s sort-merge join where a condition names columns that are NOT NULL.
const SORT_MERGE: &str = "is declared as non-nullable but contains null values";

/// The documented limit that explains other rows of a plan, if one does.
pub fn of_plan(plan: &str) -> Option<&'static str> {
    let found = PLANS.iter().find(|(part, _)| plan.contains(part));
    found.map(|(_, limit)| *limit)
}

/// The documented limit that explains an error of a session, if one does.
pub fn of_error(ctx: &SessionContext, error: &str) -> Option<&'static str> {
    let state = ctx.state();
    let optimizer = &state.config_options().optimizer;
    let found = LIMITS.iter().find(|(part, _)| error.contains(part));
    match found {
        Some((_, limit)) => Some(limit),
        None if optimizer.enable_piecewise_merge_join
            && PIECEWISE.iter().any(|part| error.contains(part)) =>
        {
            Some(PLANS[0].1)
        }
        None if !optimizer.prefer_hash_join && error.contains(SORT_MERGE) => {
            Some("a condition of a sort-merge join")
        }
        None if is_ordered_by_comparison(error) => Some("an order by a comparison"),
        None => None,
    }
}

/// Whether a plan fails for an order by a comparison, of a window function or of partitions that are merged.
fn is_ordered_by_comparison(error: &str) -> bool {
    let Some((_, required)) = error.split_once("does not satisfy order requirements: [") else {
        return false;
    };
    let (required, _) = required.split_once("]. Child-").unwrap_or((required, ""));
    let windows = error.split("ORDER BY [").skip(1);
    let windows = windows.map(|order| order.split_once("] ROWS").map_or(order, |(keys, _)| keys));
    windows.chain([required]).any(|keys| {
        [" < ", " <= ", " > ", " >= "]
            .iter()
            .any(|op| keys.contains(op))
    })
}
