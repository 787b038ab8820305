//! Correlated subqueries in the ON of a join, which DataFusion admits in a WHERE only.
//!
//! ```text
//!   FROM q JOIN p ON p.sym = q.sym AND p.ts = (SELECT max(r.ts) FROM p r WHERE r.sym = q.sym AND r.ts <= q.ts)
//!
//!   FROM q JOIN p ON p.sym = q.sym WHERE p.ts = (SELECT max(r.ts) FROM p r WHERE r.sym = q.sym AND r.ts <= q.ts)
//! ```
//!
//! DataFusion refuses them before its first optimizer rule, so this is an analyzer rule. Of an outer join it takes the
//! conditions that are about the side alone whose rows need not be kept.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, JoinType, Result};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Join, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;

use crate::common::options::RmqOptions;
use crate::optimizer::logical::common::outer_columns::subquery_of;
use crate::optimizer::logical::common::plans::filtered;

/// Moves conditions with correlated subqueries out of joins. Does nothing if `rmq.rewrite` is false.
#[derive(Debug, Default)]
pub struct JoinSubqueriesToFilters;

impl AnalyzerRule for JoinSubqueriesToFilters {
    fn name(&self) -> &'static str {
        "rmq_join_subqueries_to_filters"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        if !RmqOptions::rewrites(config) {
            return Ok(plan);
        }
        let moved = plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Join(join) => moved(join),
            node => Ok(Transformed::no(node)),
        });
        Ok(moved?.data)
    }
}

fn moved(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    let has_subqueries = |e: &Expr| e.exists(|e| Ok(is_correlated(e)));
    let Some(condition) = join.filter.take() else {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    };
    if !has_subqueries(&condition)? {
        join.filter = Some(condition);
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    let (mut kept, mut above) = (vec![], vec![]);
    let (mut of_left, mut of_right) = (vec![], vec![]);
    for conjunct in split_conjunction_owned(condition) {
        if !has_subqueries(&conjunct)? {
            kept.push(conjunct);
            continue;
        }
        let is_about = |side: &LogicalPlan| is_about(&conjunct, side.schema());
        match join.join_type {
            JoinType::Inner => above.push(conjunct),
            JoinType::Left | JoinType::LeftSemi if is_about(&join.right)? => {
                of_right.push(conjunct);
            }
            JoinType::Right | JoinType::RightSemi if is_about(&join.left)? => {
                of_left.push(conjunct);
            }
            _ => kept.push(conjunct),
        }
    }
    let is_new = !(above.is_empty() && of_left.is_empty() && of_right.is_empty());
    join.filter = conjunction(kept);
    for (side, conditions) in [(&mut join.left, of_left), (&mut join.right, of_right)] {
        if let Some(condition) = conjunction(conditions) {
            *side = filtered(side.as_ref().clone(), condition)?.into();
        }
    }
    let joined = LogicalPlan::Join(join);
    let plan = match conjunction(above) {
        Some(condition) => filtered(joined, condition)?,
        None => joined,
    };
    Ok(if is_new {
        Transformed::yes(plan)
    } else {
        Transformed::no(plan)
    })
}

fn is_correlated(expr: &Expr) -> bool {
    subquery_of(expr).is_some_and(|subquery| !subquery.outer_ref_columns.is_empty())
}

/// Whether a condition, with what its subqueries refer to, has columns of this side only.
fn is_about(condition: &Expr, side: &DFSchema) -> Result<bool> {
    let mut is_about = true;
    condition.apply(|e| {
        is_about &= match e {
            Expr::Column(column) => side.has_column(column),
            e => subquery_of(e).is_none_or(|subquery| {
                let mut columns = subquery.outer_ref_columns.iter();
                columns.all(|e| matches!(e, Expr::OuterReferenceColumn(_, column) if side.has_column(column)))
            }),
        };
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(is_about)
}
