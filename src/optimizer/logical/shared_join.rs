//! Range joins over the same rows as one.
//!
//! ```text
//!   SELECT q.id, (SELECT min(p.v) FROM p WHERE p.k > q.a) AS low, (SELECT max(p.v) FROM p WHERE p.k > q.a) AS high FROM q
//!
//!   Projection: q.id, min(p.v)#1 AS low, max(p.v)#2 AS high
//!     RangeJoin: type=Left, range=p.k in (q.a, inf), aggs=[min(p.v), max(p.v)]
//!       q
//!       p
//! ```

use datafusion::common::{Column, DFSchema, JoinType, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, Projection};

use crate::logical_plan::nearest_rows::NearestRows;
use crate::logical_plan::range_join::{RangeJoin, RangeJoinSpec};
use crate::logical_plan::range_lookup::is_same_plan;
use crate::optimizer::logical::common::plans::{extension, projected, replaced};

/// The rows of `probe` with the columns of a range join. Where a range join below is over the same rows, it gets the
/// aggregates.
pub(crate) fn joined(
    probe: LogicalPlan,
    build: &LogicalPlan,
    spec: RangeJoinSpec<Expr>,
) -> Result<LogicalPlan> {
    match shared(&probe, build, &spec)? {
        Some(shared) => Ok(shared),
        None => above(probe, build, spec),
    }
}

/// Puts a range join above a plan, or above the joins whose columns a projection has given names.
fn above(
    probe: LogicalPlan,
    build: &LogicalPlan,
    spec: RangeJoinSpec<Expr>,
) -> Result<LogicalPlan> {
    if let LogicalPlan::Projection(projection) = &probe
        && is_above_join(&projection.input)
    {
        let below = below_projection(projection, &spec)?;
        if !below.probe_expressions().any(Expr::is_volatile) {
            let joined = above(projection.input.as_ref().clone(), build, below)?;
            return with_outputs(projection, joined, &spec);
        }
    }
    let build = build.clone();
    Ok(extension(RangeJoin::try_new(probe, build, spec)?))
}

/// Whether there are projections only above a range join.
fn is_above_join(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => is_above_join(&projection.input),
        LogicalPlan::Extension(extension) => extension.node.as_any().is::<RangeJoin>(),
        _ => false,
    }
}

/// A range join over the columns of a projection as one over those of its input.
fn below_projection(
    projection: &Projection,
    spec: &RangeJoinSpec<Expr>,
) -> Result<RangeJoinSpec<Expr>> {
    let old = projection.schema.columns();
    let new = projection.expr.iter().cloned().map(Expr::unalias);
    let new: Vec<Expr> = new.collect();
    let input = projection.input.schema();
    let of_input = |e: &Expr| replaced(e.clone(), &old, &new, input);
    spec.try_map(of_input, |e| Ok(e.clone()))
}

/// A projection of another input, with the columns that a range join below it adds.
fn with_outputs(
    projection: &Projection,
    input: LogicalPlan,
    spec: &RangeJoinSpec<Expr>,
) -> Result<LogicalPlan> {
    let added = spec.aggregates.iter();
    let added = added.map(|a| Expr::Column(Column::new_unqualified(&a.output)));
    let exprs = projection.expr.iter().cloned().chain(added);
    projected(input, exprs.collect())
}

/// A plan with the columns of a range join besides its own, from one that it has over the same rows. `None` if it has
/// no such join.
fn shared(
    plan: &LogicalPlan,
    build: &LogicalPlan,
    spec: &RangeJoinSpec<Expr>,
) -> Result<Option<LogicalPlan>> {
    match plan {
        LogicalPlan::Projection(projection) => {
            let below = below_projection(projection, spec)?;
            let input = shared(&projection.input, build, &below)?;
            let above = |input| with_outputs(projection, input, spec);
            input.map(above).transpose()
        }
        LogicalPlan::Join(join)
            if matches!(join.join_type, JoinType::Left | JoinType::LeftMark)
                && is_of(spec, join.left.schema()) =>
        {
            let left = shared(&join.left, build, spec)?;
            let above = |left| {
                plan.with_new_exprs(plan.expressions(), vec![left, join.right.as_ref().clone()])
            };
            left.map(above).transpose()
        }
        LogicalPlan::Extension(node) => {
            let node = node.node.as_any();
            if let Some(join) = node.downcast_ref::<RangeJoin>() {
                return shared_with(join, build, spec);
            }
            let Some(join) = node.downcast_ref::<NearestRows>() else {
                return Ok(None);
            };
            if !is_of(spec, join.probe().schema()) {
                return Ok(None);
            }
            let above = |probe| {
                let (build, condition) = (join.build().clone(), join.condition().clone());
                NearestRows::try_new(probe, build, condition).map(extension)
            };
            let probe = shared(join.probe(), build, spec)?;
            probe.map(above).transpose()
        }
        _ => Ok(None),
    }
}

/// A range join, or one below it, with the aggregates of another one over the same rows.
fn shared_with(
    join: &RangeJoin,
    build: &LogicalPlan,
    spec: &RangeJoinSpec<Expr>,
) -> Result<Option<LogicalPlan>> {
    if !is_of(spec, join.probe().schema()) {
        return Ok(None);
    }
    let with = |probe, spec| RangeJoin::try_new(probe, join.build().clone(), spec).map(extension);
    if let Some(both) = merged(join, build, spec) {
        return with(join.probe().clone(), both).map(Some);
    }
    let probe = shared(join.probe(), build, spec)?;
    probe
        .map(|probe| with(probe, join.spec().clone()))
        .transpose()
}

/// Whether a range join needs columns of this probe side only.
fn is_of(spec: &RangeJoinSpec<Expr>, probe: &DFSchema) -> bool {
    let mut columns = spec.probe_expressions().flat_map(Expr::column_refs);
    columns.all(|column| probe.has_column(column))
}

/// A range join with the aggregates of another one if both aggregate the same rows, on the same engines: only the CPU
/// counts rows that cross a threshold.
fn merged(
    join: &RangeJoin,
    build: &LogicalPlan,
    other: &RangeJoinSpec<Expr>,
) -> Option<RangeJoinSpec<Expr>> {
    let spec = join.spec();
    let is_same = spec.unmatched == other.unmatched
        && spec.on == other.on
        && spec.key == other.key
        && spec.bounds == other.bounds
        && spec.prevailing == other.prevailing
        && spec.counts_crossings() == other.counts_crossings()
        && is_same_plan(join.build(), build);
    if !is_same {
        return None;
    }
    let mut both = spec.clone();
    let before = both.thresholds.len();
    both.thresholds.extend(other.thresholds.iter().cloned());
    for aggregate in &other.aggregates {
        let mut aggregate = aggregate.clone();
        if let Some(threshold) = aggregate.function.threshold_mut() {
            *threshold += before;
        }
        both.aggregates.push(aggregate);
    }
    Some(both)
}
