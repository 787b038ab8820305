//! Whether a query fixes the order of its rows.

use datafusion_common::{Result, plan_err};
use datafusion_expr::{Expr, LogicalPlan};

/// Rejects a relation without a fixed order, because positions in it have no meaning.
///
/// # Errors
/// A planning error that names the operation that leaves the order open.
pub fn check_states_order(function: &str, relation: &str, plan: &LogicalPlan) -> Result<()> {
    let open = match plan {
        LogicalPlan::Sort(_) => return Ok(()),
        // These keep the order of their rows.
        LogicalPlan::Projection(p) => return check_states_order(function, relation, &p.input),
        LogicalPlan::SubqueryAlias(a) => return check_states_order(function, relation, &a.input),
        LogicalPlan::Subquery(s) => return check_states_order(function, relation, &s.subquery),
        LogicalPlan::Limit(l) => return check_states_order(function, relation, &l.input),
        LogicalPlan::Filter(f) => return check_states_order(function, relation, &f.input),
        LogicalPlan::Join(_) => "a join leaves it open",
        LogicalPlan::Aggregate(_) => "an aggregate leaves it open",
        LogicalPlan::Distinct(_) => "DISTINCT leaves it open",
        LogicalPlan::Union(_) => "UNION leaves it open",
        _ => "there is no ORDER BY",
    };
    plan_err!(
        "{function}: {relation} fixes no order of its rows ({open}), so positions in it have no meaning; end it with ORDER BY. \
         (An ORDER BY in a subquery of FROM does not count in SQL: put it on the outermost SELECT)"
    )
}

/// Whether nothing but column projections and limits is above the plan's sort, so that DataFusion keeps the order with
/// any number of partitions. If rows are computed or filtered above the sort, DataFusion may repartition them and lose
/// the order.
pub fn ends_in_order_by(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(_) => true,
        LogicalPlan::Projection(p) => {
            let is_column = |e: &Expr| matches!(e.clone().unalias(), Expr::Column(_));
            p.expr.iter().all(is_column) && ends_in_order_by(&p.input)
        }
        LogicalPlan::SubqueryAlias(a) => ends_in_order_by(&a.input),
        LogicalPlan::Subquery(s) => ends_in_order_by(&s.subquery),
        LogicalPlan::Limit(l) => ends_in_order_by(&l.input),
        _ => false,
    }
}
