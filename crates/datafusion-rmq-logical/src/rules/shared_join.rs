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

use datafusion_common::{Column, DFSchema, JoinType, Result};
use datafusion_expr::{Expr, LogicalPlan, Projection};

use crate::logical_plan::nearest_rows::NearestRows;
use crate::logical_plan::range_join::{RangeJoin, RangeJoinSpec};
use crate::logical_plan::range_lookup::is_same_plan;
use crate::rules::common::plans::{extension, projected, replaced};

/// The rows of `probe` with the columns of a range join. Where a range join below is over the same rows, it gets the
/// aggregates.
pub fn joined(
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
    let extends_first_input = match plan {
        LogicalPlan::Projection(projection) => {
            let below = below_projection(projection, spec)?;
            let input = shared(&projection.input, build, &below)?;
            let above = |input| with_outputs(projection, input, spec);
            return input.map(above).transpose();
        }
        LogicalPlan::Join(join) => matches!(join.join_type, JoinType::Left | JoinType::LeftMark),
        LogicalPlan::Extension(extension) => {
            let node = extension.node.as_any();
            node.is::<RangeJoin>() || node.is::<NearestRows>()
        }
        _ => false,
    };
    let inputs = plan.inputs();
    let Some((first, others)) = inputs.split_first().filter(|_| extends_first_input) else {
        return Ok(None);
    };
    if !is_of(spec, first.schema()) {
        return Ok(None);
    }
    if let Some(merged) = merged(plan, build, spec)? {
        return Ok(Some(merged));
    }
    let Some(first) = shared(first, build, spec)? else {
        return Ok(None);
    };
    let others = others.iter().copied().cloned();
    let inputs = std::iter::once(first).chain(others).collect();
    plan.with_new_exprs(plan.expressions(), inputs).map(Some)
}

/// Whether a range join needs columns of this probe side only.
fn is_of(spec: &RangeJoinSpec<Expr>, probe: &DFSchema) -> bool {
    let mut columns = spec.probe_expressions().flat_map(Expr::column_refs);
    columns.all(|column| probe.has_column(column))
}

/// A range join with the aggregates of another one if both aggregate the same rows, on the same engines: only the CPU
/// counts rows that cross a threshold.
fn merged(
    plan: &LogicalPlan,
    build: &LogicalPlan,
    other: &RangeJoinSpec<Expr>,
) -> Result<Option<LogicalPlan>> {
    let LogicalPlan::Extension(node) = plan else {
        return Ok(None);
    };
    let Some(join) = node.node.as_any().downcast_ref::<RangeJoin>() else {
        return Ok(None);
    };
    let spec = join.spec();
    let is_same = spec.unmatched == other.unmatched
        && spec.on == other.on
        && spec.key == other.key
        && spec.bounds == other.bounds
        && spec.prevailing == other.prevailing
        && spec.counts_crossings() == other.counts_crossings()
        && is_same_plan(join.build(), build);
    if !is_same {
        return Ok(None);
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
    let (probe, build) = (join.probe().clone(), join.build().clone());
    RangeJoin::try_new(probe, build, both).map(|join| Some(extension(join)))
}
