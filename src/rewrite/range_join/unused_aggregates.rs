//! Drops aggregates of a range join that nothing above it reads, as `SELECT *` in a lateral join and ASOF JOIN have them: their columns need not be
//! scanned then, nor the thresholds evaluated that only they compare with.
//!
//! ```text
//!   Projection: q.id, __rmq_2 AS p.v                                     Projection: q.id, __rmq_2 AS p.v
//!     RangeJoin: aggs=[rightmost(p.ts), rightmost(p.v)]          ──▶       RangeJoin: aggs=[rightmost(p.v)]
//! ```

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Expr, Extension, Filter, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::logical_plan::range_join::{RangeJoin, RangeJoinSpec};

/// Drops aggregates of a range join that the projection or the aggregate above it does not read.
#[derive(Debug, Default)]
pub struct DropUnusedAggregates;

impl OptimizerRule for DropUnusedAggregates {
    fn name(&self) -> &'static str {
        "rmq_drop_unused_aggregates"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let input = match &plan {
            LogicalPlan::Projection(projection) => &projection.input,
            LogicalPlan::Aggregate(aggregate) => &aggregate.input,
            _ => return Ok(Transformed::no(plan)),
        };
        let expressions = plan.expressions();
        let read = expressions.iter().flat_map(|e| e.column_refs());
        let read = read.map(|column| column.name.clone()).collect();
        match without_unused(input, read)? {
            Some(input) => Ok(Transformed::yes(
                plan.with_new_exprs(expressions, vec![input])?,
            )),
            None => Ok(Transformed::no(plan)),
        }
    }
}

/// The range join below filters, without the aggregates that are not among the columns that are read; `None` if there are none.
fn without_unused(plan: &LogicalPlan, mut read: HashSet<String>) -> Result<Option<LogicalPlan>> {
    match plan {
        LogicalPlan::Filter(filter) => {
            let columns = filter.predicate.column_refs().into_iter();
            read.extend(columns.map(|column| column.name.clone()));
            let Some(input) = without_unused(&filter.input, read)? else {
                return Ok(None);
            };
            let filter = Filter::try_new(filter.predicate.clone(), Arc::new(input))?;
            Ok(Some(LogicalPlan::Filter(filter)))
        }
        LogicalPlan::Extension(extension) => {
            let Some(join) = extension.node.as_any().downcast_ref::<RangeJoin>() else {
                return Ok(None);
            };
            let mut spec = join.spec().clone();
            spec.aggregates.retain(|a| read.contains(&a.output));
            if spec.aggregates.len() == join.spec().aggregates.len() {
                return Ok(None);
            }
            drop_unread_thresholds(&mut spec);
            let (probe, build) = (join.probe().clone(), join.build().clone());
            let node = Arc::new(RangeJoin::try_new(probe, build, spec)?);
            Ok(Some(LogicalPlan::Extension(Extension { node })))
        }
        _ => Ok(None),
    }
}

/// Drops the thresholds to which no aggregate refers.
fn drop_unread_thresholds(spec: &mut RangeJoinSpec<Expr>) {
    let mut read: Vec<Expr> = vec![];
    for aggregate in &mut spec.aggregates {
        if let Some(threshold) = aggregate.function.threshold_mut() {
            let limit = &spec.thresholds[*threshold];
            let known = read.iter().position(|known| known == limit);
            *threshold = known.unwrap_or_else(|| {
                read.push(limit.clone());
                read.len() - 1
            });
        }
    }
    spec.thresholds = read;
}
