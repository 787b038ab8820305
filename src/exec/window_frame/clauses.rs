//! The clauses of a window function that DataFusion 55 tells by the text of the function alone.

use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::windows::WindowUDFExpr;

/// Whether a function that is no aggregate has IGNORE NULLS.
#[must_use]
pub fn ignores_nulls(function: &WindowUDFExpr) -> bool {
    format!("{function:?}").ends_with("ignore_nulls: true }")
}

/// Whether an aggregate over frames has FILTER: one that no rule has made CASE.
#[must_use]
pub fn has_filter(aggregate: &dyn WindowExpr) -> bool {
    !format!("{aggregate:?}").ends_with("filter: None }")
}
