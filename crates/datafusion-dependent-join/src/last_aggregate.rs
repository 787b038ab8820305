//! Subqueries that end in an aggregate without GROUP BY: they have one row for each outer row.
//!
//! ```text
//!   SELECT q.id, (SELECT 2 * count(*) FROM p WHERE p.k < q.k) AS n FROM q
//!
//!   Projection: q.id, 2 * coalesce(d1, 0) AS n
//!     Left Join: q.k IS NOT DISTINCT FROM d2
//!       q
//!       Projection: count(*) AS d1, d AS d2
//!         Aggregate: groupBy=[d], aggr=[count(*)] …
//! ```
//!
//! What is above the aggregate is computed above the join, for each outer row: the domain need not be joined once more
//! for the outer rows without a group.

use std::sync::Arc;

use datafusion_common::Result;
use datafusion_expr::{Aggregate, Expr, LogicalPlan, Projection};
use datafusion_optimizer::OptimizerConfig;

use crate::exprs::{columns, substituted};
use crate::outer::has_outer;

/// The aggregate that a subquery ends in.
pub(crate) struct LastAggregate<'a> {
    pub(crate) plan: &'a LogicalPlan,
    pub(crate) aggregate: &'a Aggregate,
    /// What is above it, from the top.
    above: Vec<&'a Projection>,
}

impl<'a> LastAggregate<'a> {
    /// The last aggregate of the right side of a dependent join, if there is only its SELECT list above it.
    pub(crate) fn of(mut plan: &'a LogicalPlan) -> Result<Option<Self>> {
        let mut above = vec![];
        loop {
            plan = match plan {
                LogicalPlan::SubqueryAlias(alias) => &alias.input,
                LogicalPlan::Subquery(subquery) => &subquery.subquery,
                LogicalPlan::Projection(projection) if !has_outer(plan)? => {
                    above.push(projection);
                    &projection.input
                }
                LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => {
                    return Ok(Some(Self {
                        plan,
                        aggregate,
                        above,
                    }));
                }
                _ => return Ok(None),
            };
        }
    }

    /// The columns of the subquery, which are the last ones, above a join with these values of the aggregate. The first
    /// `kept` columns of the join stay.
    pub(crate) fn above(
        &self,
        joined: LogicalPlan,
        kept: usize,
        values: Vec<Expr>,
        config: &dyn OptimizerConfig,
    ) -> Result<LogicalPlan> {
        let mut outer = joined.schema().columns();
        outer.truncate(kept);
        let mut plan = joined;
        let mut values = values;
        for projection in self.above.iter().rev() {
            let old = projection.input.schema().columns();
            let exprs = projection.expr.iter().cloned().map(Expr::unalias);
            let exprs = substituted(exprs.collect(), &old, &values)?;
            let exprs = exprs
                .into_iter()
                .map(|expr| expr.alias(config.alias_generator().next("__value")));
            let all = columns(outer.clone()).into_iter().chain(exprs).collect();
            plan = LogicalPlan::Projection(Projection::try_new(all, Arc::new(plan))?);
            values = columns(plan.schema().columns().split_off(kept));
        }
        let all = columns(outer).into_iter().chain(values).collect();
        Ok(LogicalPlan::Projection(Projection::try_new(
            all,
            Arc::new(plan),
        )?))
    }
}
