//! Finds calls of the range functions, `range_min('table.column', l, r)` and its like, in expressions.

use datafusion_common::Result;
use datafusion_common::tree_node::TreeNode;
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::{Expr, LogicalPlan};

use crate::expr::range_udf::RangeUdf;

/// The function and the call, if `expr` is a call of a range function.
pub fn range_udf(expr: &Expr) -> Option<(&RangeUdf, &ScalarFunction)> {
    match expr {
        Expr::ScalarFunction(call) => call
            .func
            .inner()
            .downcast_ref::<RangeUdf>()
            .map(|udf| (udf, call)),
        _ => None,
    }
}

/// Whether `expr` calls a range function, also in a subquery without FROM.
pub fn calls_range_function(expr: &Expr) -> Result<bool> {
    expr.exists(|e| match e {
        Expr::ScalarSubquery(subquery) => match subquery.subquery.as_ref() {
            LogicalPlan::Projection(p) if matches!(*p.input, LogicalPlan::EmptyRelation(_)) => p
                .expr
                .iter()
                .try_fold(false, |found, e| Ok(found || calls_range_function(e)?)),
            _ => Ok(false),
        },
        e => Ok(range_udf(e).is_some()),
    })
}

/// Whether an expression may have another value each time it is evaluated. Range functions don't: they are declared
/// volatile so that `DataFusion` leaves their calls where they are.
pub fn is_volatile(expr: &Expr) -> bool {
    let is_other_volatile = |e: &Expr| Ok(e.is_volatile_node() && range_udf(e).is_none());
    expr.exists(is_other_volatile).unwrap_or(true)
}
