//! References of a subquery to columns of its outer query.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ExprSchema, Result, Spans};
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::{Expr, LogicalPlan, Subquery};

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

/// Adds the columns of the outer query to which an expression refers.
pub(crate) fn add_outer_columns(columns: &mut Vec<Expr>, expr: &Expr) -> Result<()> {
    expr.apply(|e| {
        if matches!(e, Expr::OuterReferenceColumn(..)) && !columns.contains(e) {
            columns.push(e.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// A scalar subquery with these columns of the outer query.
pub(crate) fn scalar_subquery(plan: LogicalPlan, outer_ref_columns: Vec<Expr>) -> Expr {
    Expr::ScalarSubquery(Subquery {
        subquery: Arc::new(plan),
        outer_ref_columns,
        spans: Spans::new(),
    })
}

/// The subquery that an expression is, if it is one.
pub(crate) fn subquery_of(expr: &Expr) -> Option<&Subquery> {
    match expr {
        Expr::ScalarSubquery(subquery)
        | Expr::Exists(Exists { subquery, .. })
        | Expr::InSubquery(InSubquery { subquery, .. }) => Some(subquery),
        _ => None,
    }
}

/// The same, to be changed.
pub(crate) fn subquery_of_mut(expr: &mut Expr) -> Option<&mut Subquery> {
    match expr {
        Expr::ScalarSubquery(subquery)
        | Expr::Exists(Exists { subquery, .. })
        | Expr::InSubquery(InSubquery { subquery, .. }) => Some(subquery),
        _ => None,
    }
}

/// Whether a plan, or a subquery in it, refers to columns of a query around the plan.
pub(crate) fn has_outer_columns(plan: &LogicalPlan) -> Result<bool> {
    refers_beyond(plan, &[])
}

/// Whether a plan within a subquery of each of these nodes, given from the outermost, refers to columns of none of
/// their inputs.
fn refers_beyond(plan: &LogicalPlan, within: &[&LogicalPlan]) -> Result<bool> {
    let is_known = |column: &Column| {
        let mut inputs = within.iter().flat_map(|node| node.inputs());
        inputs.any(|input| input.schema().has_column(column))
    };
    plan.exists(|node| {
        let mut found = false;
        node.apply_expressions(|expr| {
            found |= expr.exists(|e| match e {
                Expr::OuterReferenceColumn(_, column) => Ok(!is_known(column)),
                e => match subquery_of(e) {
                    Some(subquery) => {
                        let within: Vec<_> = within.iter().copied().chain([node]).collect();
                        refers_beyond(&subquery.subquery, &within)
                    }
                    None => Ok(false),
                },
            })?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(found)
    })
}

/// Whether `is_searched` holds for a part of the node's own expressions, such as a correlated subquery of some kind.
pub(crate) fn has_expression(
    plan: &LogicalPlan,
    is_searched: impl Fn(&Expr) -> bool,
) -> Result<bool> {
    let mut found = false;
    plan.apply_expressions(|expr| {
        found |= expr.exists(|e| Ok(is_searched(e)))?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// Whether DataFusion admits correlated subqueries in this node.
pub(crate) fn admits_subqueries(plan: &LogicalPlan) -> bool {
    matches!(
        plan,
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::Aggregate(_)
    )
}
