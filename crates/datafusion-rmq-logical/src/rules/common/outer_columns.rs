//! References of a subquery to columns of its outer query.

use std::sync::Arc;

use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, ExprSchema, Result, Spans};
use datafusion_expr::{Expr, LogicalPlan, Subquery};

/// Replaces columns of `outer` by references to columns of an outer query.
pub fn to_outer(expr: Expr, outer: &DFSchema) -> Result<Expr> {
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

/// Adds the columns of the outer query to which an expression refers.
pub fn add_outer_columns(columns: &mut Vec<Expr>, expr: &Expr) -> Result<()> {
    expr.apply(|e| {
        if matches!(e, Expr::OuterReferenceColumn(..)) && !columns.contains(e) {
            columns.push(e.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// A scalar subquery with these columns of the outer query.
pub fn scalar_subquery(plan: LogicalPlan, outer_ref_columns: Vec<Expr>) -> Expr {
    Expr::ScalarSubquery(Subquery {
        subquery: Arc::new(plan),
        outer_ref_columns,
        spans: Spans::new(),
    })
}

/// Whether `is_searched` holds for a part of the node's own expressions, such as a correlated subquery of some kind.
pub fn has_expression(plan: &LogicalPlan, is_searched: impl Fn(&Expr) -> bool) -> Result<bool> {
    let mut found = false;
    plan.apply_expressions(|expr| {
        found |= expr.exists(|e| Ok(is_searched(e)))?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// Whether `is_searched` holds for a part of an expression of any node, also in subqueries.
pub fn has_expression_anywhere(
    plan: &LogicalPlan,
    is_searched: impl Fn(&Expr) -> bool,
) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found = has_expression(node, &is_searched)?;
        Ok(if found {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    })?;
    Ok(found)
}

/// Whether DataFusion admits correlated subqueries in this node.
pub fn admits_subqueries(plan: &LogicalPlan) -> bool {
    matches!(
        plan,
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::Aggregate(_)
    )
}
