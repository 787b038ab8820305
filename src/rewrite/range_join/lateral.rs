//! A lateral join with an aggregate over a range.
//!
//! ```text
//!   SELECT q.id, x.low, x.high
//!   FROM q CROSS JOIN LATERAL (SELECT min(p.v) AS low, max(p.v) AS high FROM p WHERE p.k BETWEEN q.a AND q.b) AS x
//!
//!   before                                                after
//!   Cross Join                                            Projection: q.*, __rmq_1 AS x.low, __rmq_2 AS x.high
//!     q                                                     RangeJoin: type=Left, range=p.k in [q.a, q.b], aggs=[min(p.v), max(p.v)]
//!     SubqueryAlias: x                                        q
//!       Subquery:                                             p
//!         Aggregate: min(p.v), max(p.v)
//!           Filter: p.k BETWEEN outer(q.a) AND outer(q.b)
//!             p
//! ```
//!
//! `LEFT JOIN LATERAL … ON true` matches, too: an aggregate without GROUP BY has exactly one row for each row of `q`. The first row of a range
//! (`ORDER BY p.k LIMIT 1`, see `nearest_row`) is a row of NULLs there if nothing matches. With CROSS JOIN, the row of `q` is dropped.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{JoinType, Result};
use datafusion::logical_expr::{Expr, Filter, Join, LogicalPlan, Projection, Subquery};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use datafusion::scalar::ScalarValue;

use crate::common::options::RmqOptions;
use crate::logical_plan::range_join::Unmatched;
use crate::rewrite::range_join::nearest_row::match_subquery;
use crate::rewrite::range_join::rejection::{Match, reject};

/// Rewrites a lateral join with an aggregate over a range to a range join. Does nothing if `rmq.rewrite` is false. It must run before DataFusion
/// decorrelates subqueries.
#[derive(Debug, Default)]
pub struct LateralToRangeJoin;

impl OptimizerRule for LateralToRangeJoin {
    fn name(&self) -> &'static str {
        "rmq_lateral_to_range_join"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Join(join) = &plan else {
            return Ok(Transformed::no(plan));
        };
        let Some(subquery) = lateral(&join.right) else {
            return Ok(Transformed::no(plan));
        };
        if !RmqOptions::of(&config.options()).rewrite {
            return Ok(Transformed::no(plan));
        }
        match try_match(join, subquery, config) {
            Ok(found) => Ok(Transformed::yes(found)),
            Err(reason) => {
                log::debug!("{} stays as it is: {reason}", plan.display());
                Ok(Transformed::no(plan))
            }
        }
    }
}

/// The subquery, if this side of a join is a subquery that refers to the other side.
fn lateral(plan: &LogicalPlan) -> Option<&Subquery> {
    match plan {
        LogicalPlan::Subquery(subquery) if !subquery.outer_ref_columns.is_empty() => Some(subquery),
        LogicalPlan::SubqueryAlias(alias) => lateral(&alias.input),
        _ => None,
    }
}

fn try_match(join: &Join, subquery: &Subquery, config: &dyn OptimizerConfig) -> Match<LogicalPlan> {
    let is_true = |e: &Expr| matches!(e, Expr::Literal(ScalarValue::Boolean(Some(true)), _));
    let condition = join.filter.as_ref().filter(|filter| !is_true(filter));
    match (join.join_type, condition) {
        (JoinType::Inner, _) | (JoinType::Left, None) if join.on.is_empty() => {}
        _ => return reject("it has a condition of its own"),
    }
    let probe = &join.left;
    let mut found = match_subquery(&subquery.subquery, probe.schema(), &[], config)?;
    if found.needs_match && join.join_type == JoinType::Inner {
        found.spec.unmatched = Unmatched::Drop;
    }
    let values = std::mem::take(&mut found.values);
    let joined = found.above(probe.as_ref().clone())?;
    let left = probe.schema().columns().into_iter().map(Expr::Column);
    let named = left.chain(values).zip(join.schema.iter());
    let named = named.map(|(value, (qualifier, field))| match value {
        Expr::Column(column)
            if column.relation.as_ref() == qualifier && &column.name == field.name() =>
        {
            Expr::Column(column)
        }
        value => value.alias_qualified(qualifier.cloned(), field.name()),
    });
    let mut plan = LogicalPlan::Projection(Projection::try_new(named.collect(), Arc::new(joined))?);
    if let Some(condition) = condition {
        plan = LogicalPlan::Filter(Filter::try_new(condition.clone(), Arc::new(plan))?);
    }
    Ok(plan)
}
