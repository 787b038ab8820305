//! Drops columns of range joins and range lookups that nothing above them reads, as `SELECT *` in a lateral join, ASOF
//! JOIN, and views have them: what they are made of need not be scanned then, nor the thresholds evaluated that only
//! they compare with. A join or lookup without columns is dropped with its build side, if it returns each row of its
//! input once.
//!
//! ```text
//!   Projection: q.id, rightmost(p.v)#2 AS p.v                            Projection: q.id, rightmost(p.v)#2 AS p.v
//!     RangeJoin: aggs=[rightmost(p.ts), rightmost(p.v)]          ──▶       RangeJoin: aggs=[rightmost(p.v)]
//!       RangeJoin: type=Left, aggs=[max(r.v)]                                TableScan: q
//!         TableScan: q
//! ```

use std::collections::HashSet;

use datafusion_common::tree_node::Transformed;
use datafusion_common::{Column, Result, TableReference};
use datafusion_expr::{Expr, LogicalPlan};
use datafusion_optimizer::optimizer::ApplyOrder;
use datafusion_optimizer::{OptimizerConfig, OptimizerRule};

use crate::logical_plan::nearest_rows::NearestRows;
use crate::logical_plan::range_join::{RangeJoin, RangeJoinSpec, Unmatched};
use crate::logical_plan::range_lookup::RangeLookup;
use crate::rules::common::plans::extension;

/// Drops columns of range joins and range lookups that the projection or the aggregate above them does not read.
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
        if !may_have_unused(input) {
            return Ok(Transformed::no(plan));
        }
        let expressions = plan.expressions();
        let mut read = ReadColumns::default();
        read.add(&expressions);
        match without_unused(input, read)? {
            Some(input) => Ok(Transformed::yes(
                plan.with_new_exprs(expressions, vec![input])?,
            )),
            None => Ok(Transformed::no(plan)),
        }
    }
}

/// The columns of a plan that operators above it read.
#[derive(Debug, Clone, Default)]
struct ReadColumns(HashSet<Column>);

impl ReadColumns {
    fn add<'a>(&mut self, expressions: impl IntoIterator<Item = &'a Expr>) {
        let columns = expressions.into_iter().flat_map(Expr::column_refs);
        self.0.extend(columns.cloned());
    }

    /// Whether a column may be among them: one of its name and without another qualifier.
    fn may_have(&self, qualifier: Option<&TableReference>, name: &str) -> bool {
        self.0.iter().any(|column| {
            let is_other = |(a, b): (&TableReference, &TableReference)| !a.resolved_eq(b);
            column.name == name
                && !column
                    .relation
                    .as_ref()
                    .zip(qualifier)
                    .is_some_and(is_other)
        })
    }
}

/// Whether there is a node of an extension below filters, sorts and limits.
fn may_have_unused(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Filter(filter) => may_have_unused(&filter.input),
        LogicalPlan::Sort(sort) => may_have_unused(&sort.input),
        LogicalPlan::Limit(limit) => may_have_unused(&limit.input),
        plan => matches!(plan, LogicalPlan::Extension(_)),
    }
}

/// A plan without the columns of range joins and lookups that are not among those read; `None` if it has none such.
fn without_unused(plan: &LogicalPlan, mut read: ReadColumns) -> Result<Option<LogicalPlan>> {
    match plan {
        LogicalPlan::Filter(_) | LogicalPlan::Sort(_) | LogicalPlan::Limit(_) => {
            let (expressions, inputs) = (plan.expressions(), plan.inputs());
            read.add(&expressions);
            let [input] = inputs[..] else {
                return Ok(None);
            };
            let input = without_unused(input, read)?;
            let rebuild = |input| plan.with_new_exprs(expressions, vec![input]);
            input.map(rebuild).transpose()
        }
        LogicalPlan::Extension(extension) => {
            let node = extension.node.as_any();
            if let Some(join) = node.downcast_ref::<RangeJoin>() {
                without_aggregates(join, read)
            } else if let Some(lookup) = node.downcast_ref::<RangeLookup>() {
                without_calls(lookup, read)
            } else if let Some(join) = node.downcast_ref::<NearestRows>() {
                without_nearest_rows(join, read)
            } else {
                Ok(None)
            }
        }
        _ => Ok(None),
    }
}

fn without_aggregates(join: &RangeJoin, mut read: ReadColumns) -> Result<Option<LogicalPlan>> {
    let mut spec = join.spec().clone();
    spec.aggregates.retain(|a| read.may_have(None, &a.output));
    let is_reduced = spec.aggregates.len() < join.spec().aggregates.len();
    if is_reduced {
        drop_unread_thresholds(&mut spec);
    }
    let returns_each_once = spec.aggregates.is_empty() && spec.unmatched == Unmatched::Keep;
    if returns_each_once && has_metadata_of(join.probe(), &spec) {
        let probe = without_unused(join.probe(), read)?;
        return Ok(Some(probe.unwrap_or_else(|| join.probe().clone())));
    }
    read.add(spec.probe_expressions());
    let probe = without_unused(join.probe(), read)?;
    if probe.is_none() && !is_reduced {
        return Ok(None);
    }
    let probe = probe.unwrap_or_else(|| join.probe().clone());
    let join = RangeJoin::try_new(probe, join.build().clone(), spec)?;
    Ok(Some(extension(join)))
}

fn without_calls(lookup: &RangeLookup, mut read: ReadColumns) -> Result<Option<LogicalPlan>> {
    let mut calls = lookup.calls().to_vec();
    calls.retain(|call| read.may_have(None, &call.output));
    let is_reduced = calls.len() < lookup.calls().len();
    for call in &calls {
        read.add([&call.left, &call.right].into_iter().chain(&call.threshold));
    }
    let input = without_unused(lookup.input(), read)?;
    if input.is_none() && !is_reduced {
        return Ok(None);
    }
    let input = input.unwrap_or_else(|| lookup.input().clone());
    if calls.is_empty() {
        return Ok(Some(input));
    }
    Ok(Some(extension(RangeLookup::try_new(input, calls)?)))
}

/// The probe side of a join that returns each of its rows once, with columns of the build side that are not read.
fn without_nearest_rows(join: &NearestRows, read: ReadColumns) -> Result<Option<LogicalPlan>> {
    let (probe, condition) = (join.probe(), join.condition());
    let returns_each_once =
        condition.spec.unmatched == Unmatched::Keep && condition.limit.fetch == Some(1);
    let mut build_columns = join.build().schema().iter();
    if !returns_each_once
        || join.output_filter().is_some()
        || build_columns.any(|(qualifier, field)| read.may_have(qualifier, field.name()))
        || !has_metadata_of(probe, &condition.spec)
    {
        return Ok(None);
    }
    let reduced = without_unused(probe, read)?;
    Ok(Some(reduced.unwrap_or_else(|| probe.clone())))
}

/// Whether the output of a join has the metadata of its probe side, on which operators above may rely.
fn has_metadata_of(probe: &LogicalPlan, spec: &RangeJoinSpec<Expr>) -> bool {
    let metadata = probe.schema().metadata();
    metadata.len() == spec.metadata.len()
        && metadata
            .iter()
            .all(|(key, value)| spec.metadata.get(key) == Some(value))
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
