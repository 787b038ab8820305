//! References of a subquery to columns of its outer query.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ExprSchema, Result};
use datafusion::logical_expr::{Expr, LogicalPlan};

/// Replaces columns of `outer` by references to columns of an outer query.
pub(crate) fn to_outer(expr: Expr, outer: &DFSchema) -> Result<Expr> {
    let replaced = expr.transform_up(|e| {
        Ok(match e {
            Expr::Column(column) if outer.has_column(&column) => {
                let field = Arc::clone(outer.field_from_column(&column)?);
                Transformed::yes(Expr::OuterReferenceColumn(field, column))
            }
            e => Transformed::no(e),
        })
    });
    Ok(replaced?.data)
}

/// Replaces references to columns of the outer query by plain columns.
pub(crate) fn from_outer(expr: Expr) -> Result<Expr> {
    let replaced = expr.transform_up(|e| {
        Ok(match e {
            Expr::OuterReferenceColumn(_, column) => Transformed::yes(Expr::Column(column)),
            e => Transformed::no(e),
        })
    });
    Ok(replaced?.data)
}

/// Whether a plan, or a subquery in it, refers to columns of an outer query.
pub(crate) fn has_outer_columns(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            found |= expr.contains_outer();
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(found)
}

/// Whether a part of the node's own expressions is wanted, such as a correlated subquery of some kind.
pub(crate) fn has_expression(
    plan: &LogicalPlan,
    is_wanted: impl Fn(&Expr) -> bool,
) -> Result<bool> {
    let mut found = false;
    plan.apply_expressions(|expr| {
        found |= expr.exists(|e| Ok(is_wanted(e)))?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}
