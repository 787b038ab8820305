//! Alternatives of one key at fixed distances of one expression, as ranges that have no key in common. A join with
//! GROUP BY aggregates the rows of each, and groups all.
//!
//! ```text
//!   p.ts BETWEEN q.ts - INTERVAL '2 hours' AND q.ts - INTERVAL '1 hour'
//!     OR p.ts BETWEEN q.ts + INTERVAL '1 hour' AND q.ts + INTERVAL '2 hours'
//!
//!   Aggregate                   Aggregate
//!     Inner Join: … OR …          Union
//!       q                           RangeJoin: range=p.ts in [q.ts - 2 hours, q.ts - 1 hour]
//!       p                             q
//!                                     p
//!                                   RangeJoin: range=p.ts in [q.ts + 1 hour, q.ts + 2 hours]
//!                                     q
//!                                     p
//! ```
//!
//! Both sides are read once for each alternative, so they are tables, perhaps filtered and projected.

use std::sync::Arc;

use datafusion_common::{DFSchema, Result};
use datafusion_dependent_join::named;
use datafusion_expr::{Expr, LogicalPlan, Operator, Union, binary_expr};

use crate::conditions::alternatives::operands_of;
use crate::conditions::condition::{Sides, constant_offset, operator};
use crate::rules::common::plans::{columns_of, projected};
use crate::rules::condition_parts::{conjuncts, sides_of};
use rmq_engine::Comparison;

/// An end of a range: how the key compares with the bound, and how far that is from the expression that all are of.
#[derive(Clone)]
struct End {
    comparison: Comparison,
    bound: Expr,
    offset: i128,
}

/// The range of an alternative.
struct Alternative {
    lower: End,
    upper: End,
}

/// The conditions once for each alternative, with its range in place of the OR; `None` if there is no OR of ranges at
/// fixed distances.
pub fn split_alternatives(
    conditions: &[Expr],
    probe: &DFSchema,
    build: &DFSchema,
) -> Result<Option<Vec<Vec<Expr>>>> {
    sides_of(probe, build, |sides| {
        for (i, condition) in conditions.iter().enumerate() {
            let Some(ranges) = ranges_of(condition, sides)? else {
                continue;
            };
            let split = ranges.into_iter().map(|range| {
                let mut split = conditions.to_vec();
                split.splice(i..=i, range);
                split
            });
            return Ok(Some(split.collect()));
        }
        Ok(None)
    })
}

/// The two comparisons of each alternative of an OR, of which no key meets those of two.
fn ranges_of(condition: &Expr, sides: &Sides<'_, Expr>) -> Result<Option<Vec<[Expr; 2]>>> {
    let operands = operands_of(condition, Operator::Or);
    if operands.len() < 2 {
        return Ok(None);
    }
    let (mut all, mut of) = (vec![], None);
    for operand in operands {
        let stated = conjuncts([operand.clone()]);
        let stated: Vec<_> = stated.iter().filter_map(|c| sides.stated(c)).collect();
        let [one, other] = stated.as_slice() else {
            return Ok(None);
        };
        let count = conjuncts([operand.clone()]).len();
        let (mut lower, mut upper) = (None, None);
        for (key, comparison, bound) in [one, other] {
            let (base, offset) = distance(bound, sides)?;
            if *of.get_or_insert_with(|| (key.clone(), base.clone())) != (key.clone(), base) {
                return Ok(None);
            }
            let end = if comparison.is_lower() {
                &mut lower
            } else {
                &mut upper
            };
            *end = Some(End {
                comparison: *comparison,
                bound: bound.clone(),
                offset,
            });
        }
        let (Some(lower), Some(upper), 2) = (lower, upper, count) else {
            return Ok(None);
        };
        all.push(Alternative { lower, upper });
    }
    let Some((key, _)) = of else {
        return Ok(None);
    };
    let compared =
        |end: &End| binary_expr(key.clone(), operator(end.comparison), end.bound.clone());
    let apart = apart(all).into_iter();
    let apart = apart.map(|range| [compared(&range.lower), compared(&range.upper)]);
    Ok(Some(apart.collect()))
}

/// The expression that a bound is at a fixed distance of, and the distance in nanoseconds.
fn distance(bound: &Expr, sides: &Sides<'_, Expr>) -> Result<(Expr, i128)> {
    Ok(match constant_offset(bound, sides.bounds)? {
        // A bound that is less by an hour is moved by an hour to be the expression.
        Some((_, offset, of)) => (of, -offset),
        None => (bound.clone(), 0),
    })
}

/// The same keys in ranges that have none in common. The ends of a range may be in the wrong order: it has no key.
fn apart(mut ranges: Vec<Alternative>) -> Vec<Alternative> {
    ranges.sort_by_key(|range| (range.lower.offset, range.lower.comparison.is_strict()));
    let mut kept: Vec<Alternative> = vec![];
    let mut end: Option<End> = None;
    for mut range in ranges {
        if let Some(end) = &end
            && !is_below(end, &range.lower)
        {
            range.lower = End {
                comparison: if end.comparison.is_strict() {
                    Comparison::AtLeast
                } else {
                    Comparison::Above
                },
                ..end.clone()
            };
        }
        let is_further = |end: &End| reaches(&range.upper) > reaches(end);
        if end.as_ref().is_none_or(is_further) {
            end = Some(range.upper.clone());
            kept.push(range);
        }
    }
    kept
}

/// How far an upper end reaches: an end that has the bound itself reaches further.
fn reaches(upper: &End) -> (i128, bool) {
    (upper.offset, !upper.comparison.is_strict())
}

/// Whether no key is both up to one end and from the other on.
fn is_below(upper: &End, lower: &End) -> bool {
    let is_strict = upper.comparison.is_strict() || lower.comparison.is_strict();
    upper.offset < lower.offset || upper.offset == lower.offset && is_strict
}

/// The rows of all plans, with the columns of the first one.
pub fn union_of(mut plans: Vec<LogicalPlan>) -> Result<LogicalPlan> {
    if plans.len() == 1 {
        return Ok(plans.remove(0));
    }
    let plans: Vec<_> = plans.into_iter().map(Arc::new).collect();
    let schema = Arc::clone(plans[0].schema());
    let union = LogicalPlan::Union(Union::try_new(plans)?);
    let columns = named(columns_of(union.schema()), &schema);
    projected(union, columns)
}
