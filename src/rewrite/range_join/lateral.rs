//! A lateral join with an aggregate over a range, or with the rows of a range in the order of its key.
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
//! (`ORDER BY p.k LIMIT 1`, see `nearest_row`) is a row of NULLs there if nothing matches. With CROSS JOIN, the row of `q` is dropped. Other limits, and
//! further conditions on both sides, are a join of nearest rows (see `nearest_rows`).

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinType, Result};
use datafusion::logical_expr::{Expr, Filter, Join, LogicalPlan, Projection, Subquery};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use datafusion::scalar::ScalarValue;

use crate::common::options::RmqOptions;
use crate::logical_plan::range_join::{AggregateKind, Unmatched};
use crate::rewrite::range_join::correlated_aggregate::CorrelatedAggregate;
use crate::rewrite::range_join::nearest_row::{NearestRow, match_subquery};
use crate::rewrite::range_join::nearest_rows::CorrelatedRows;
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
        (JoinType::Inner, _) if join.on.is_empty() => {}
        (JoinType::Left, None) => {}
        _ => return reject("it has a condition of its own"),
    }
    let lateral = Lateral::try_match(join, subquery, config)?;
    let left = join.left.schema().columns().into_iter().map(Expr::Column);
    let named = left.chain(lateral.values).zip(join.schema.iter());
    let named = named.map(|(value, (qualifier, field))| match value {
        Expr::Column(column)
            if column.relation.as_ref() == qualifier && &column.name == field.name() =>
        {
            Expr::Column(column)
        }
        value => value.alias_qualified(qualifier.cloned(), field.name()),
    });
    let joined = Arc::new(lateral.joined);
    let mut plan = LogicalPlan::Projection(Projection::try_new(named.collect(), joined)?);
    if let Some(condition) = condition {
        plan = LogicalPlan::Filter(Filter::try_new(condition.clone(), Arc::new(plan))?);
    }
    Ok(plan)
}

/// A lateral join as a range join.
struct Lateral {
    joined: LogicalPlan,
    /// The columns of the right side as expressions over its columns.
    values: Vec<Expr>,
}

impl Lateral {
    fn try_match(join: &Join, subquery: &Subquery, config: &dyn OptimizerConfig) -> Match<Self> {
        let plan = &subquery.subquery;
        match match_subquery(plan, join.left.schema(), &[], config) {
            Ok(found) => Self::of_aggregates(found, join),
            Err(_) if NearestRow::of(plan).is_some() => Self::of_rows(join, plan, config),
            Err(reason) => Err(reason),
        }
    }

    fn of_aggregates(mut found: CorrelatedAggregate, join: &Join) -> Match<Self> {
        let values = std::mem::take(&mut found.values);
        let in_build = values.iter().map(|value| {
            let aggregates = found.spec.aggregates.iter();
            let mut of_row = aggregates.filter(|a| {
                let is_value = matches!(value, Expr::Column(c) if c.name == a.output);
                is_value && matches!(a.function, AggregateKind::First | AggregateKind::Rightmost)
            });
            of_row.next().map_or(value, |found| &found.arguments[0])
        });
        check_implied(join, &in_build.collect::<Vec<_>>(), &found.spec.on)?;
        let drops = found.needs_match && join.join_type == JoinType::Inner;
        if drops {
            found.spec.unmatched = Unmatched::Drop;
        }
        let crosses = found.crosses.take().filter(|_| drops);
        let mut joined = found.above(join.left.as_ref().clone())?;
        if let Some(crosses) = crosses {
            joined = LogicalPlan::Filter(Filter::try_new(crosses, Arc::new(joined))?);
        }
        Ok(Self { joined, values })
    }

    fn of_rows(join: &Join, plan: &LogicalPlan, config: &dyn OptimizerConfig) -> Match<Self> {
        let unmatched = match join.join_type {
            JoinType::Left => Unmatched::Keep,
            _ => Unmatched::Drop,
        };
        let mut found = CorrelatedRows::try_match(plan, unmatched, join.left.schema(), config)?;
        let values = std::mem::take(&mut found.values);
        let in_build = values.iter().collect::<Vec<_>>();
        check_implied(join, &in_build, found.equality_keys())?;
        let joined = found.above(join.left.as_ref().clone())?;
        Ok(Self { joined, values })
    }
}

/// Rejects a left join by columns, as USING has it, unless the subquery demands the same equalities, so that its rows meet them. `values` are the columns
/// of the right side, over the build side.
fn check_implied(join: &Join, values: &[&Expr], equality_keys: &[(Expr, Expr)]) -> Match<()> {
    let names = join.right.schema().columns();
    for (left, right) in &join.on {
        let right = right.clone().transform_up(|e| {
            let index = match &e {
                Expr::Column(column) => names.iter().position(|name| name == column),
                _ => None,
            };
            Ok(index.map_or_else(|| Transformed::no(e), |i| Transformed::yes(values[i].clone())))
        })?;
        if !equality_keys.contains(&(left.clone(), right.data)) {
            return reject("it has a condition of its own");
        }
    }
    Ok(())
}
