//! Why DataFusion has no join for an IN or EXISTS that `memberships_without_join` leaves to it.

use datafusion::common::Result;
use datafusion::common::tree_node::TreeNode;
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::OptimizerConfig;
use datafusion::optimizer::decorrelate::PullUpCorrelatedExpr;

use crate::optimizer::instead::Shape;
use crate::optimizer::rejection::{Rejection, note};

/// Notes why a correlated IN or EXISTS of a WHERE fails, if DataFusion can't make a join of it.
pub(crate) fn note_without_join(expr: &Expr, config: &dyn OptimizerConfig) -> Result<()> {
    let (shape, subquery, equal) = match expr {
        Expr::InSubquery(InSubquery {
            expr: x, subquery, ..
        }) => {
            let value = subquery.subquery.head_output_expr().ok().flatten();
            let equal = value.map(|value| x.as_ref().clone().eq(value));
            (Shape::In, subquery, equal)
        }
        Expr::Exists(Exists { subquery, .. }) => (Shape::Exists, subquery, None),
        _ => return Ok(()),
    };
    if subquery.outer_ref_columns.is_empty() {
        return Ok(());
    }
    let plan = subquery.subquery.as_ref();
    let mut pull_up = PullUpCorrelatedExpr::new()
        .with_in_predicate_opt(equal)
        .with_exists_sub_query(shape == Shape::Exists);
    let pulled = plan.clone().rewrite(&mut pull_up);
    // An error is what DataFusion says by itself.
    if pulled.is_err() || pull_up.can_pull_up {
        return Ok(());
    }
    let has =
        |is_searched: &dyn Fn(&LogicalPlan) -> bool| plan.exists(|node| Ok(is_searched(node)));
    let reason = if has(&|node| matches!(node, LogicalPlan::Limit(_)))? {
        "its LIMIT is for each row of the outer query"
    } else if has(&|node| matches!(node, LogicalPlan::Aggregate(_)))? {
        "it aggregates for each row of the outer query"
    } else {
        "it is more than tables, joins and conditions, and DataFusion makes joins of these only"
    };
    note(config, shape, plan, &Rejection::new(reason));
    Ok(())
}
