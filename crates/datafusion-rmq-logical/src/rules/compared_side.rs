//! A range join above the side of an inner join that it is about, where the other side is compared with its result for
//! equality.
//!
//! ```text
//!   SELECT … FROM q JOIN p ON p.sym = q.sym WHERE p.k = (SELECT max(r.k) FROM p r WHERE r.sym = q.sym AND r.k <= q.t)
//!
//!   Filter: p.k = max(r.k)#1                                        Filter: p.k = max(r.k)#1
//!     RangeJoin: range=r.k in (-inf, q.t], aggs=[max(r.k)]            Inner Join: p.sym = q.sym
//!       Inner Join: p.sym = q.sym                                       RangeJoin: …
//!         q                                                               q
//!         p                                                               r
//!       r                                                               p
//! ```
//!
//! DataFusion then joins by that equality, too, where all pairs of rows with equal keys would be made before. With
//! `r.sym = p.sym` in the subquery it is about `q`, too, as `p.sym` is equal to `q.sym`.

use datafusion_common::{JoinType, Result};
use datafusion_expr::expr::BinaryExpr;
use datafusion_expr::utils::{split_conjunction, split_conjunction_owned};
use datafusion_expr::{Expr, Filter, LogicalPlan, Operator};

use crate::logical_plan::range_join::{RangeJoin, RangeJoinSpec};
use crate::rules::common::plans::{below_projections, extension, filtered};
use crate::rules::condition_parts::is_of;
use crate::rules::no_later_row::equal_to;

/// The filter with the range join below it above one side of the inner join below that; `None` for other filters.
pub fn above_side(filter: &Filter) -> Result<Option<LogicalPlan>> {
    let mut predicate = [filter.predicate.clone()];
    let LogicalPlan::Extension(node) = below_projections(&filter.input, &mut predicate)? else {
        return Ok(None);
    };
    let Some(join) = node.node.as_any().downcast_ref::<RangeJoin>() else {
        return Ok(None);
    };
    let [predicate] = predicate;
    let Some(joined) = moved(join, &predicate)? else {
        return Ok(None);
    };
    let input = in_place_of_join(&filter.input, joined)?;
    filtered(input, filter.predicate.clone()).map(Some)
}

/// Projections with another plan below them.
fn in_place_of_join(plan: &LogicalPlan, joined: LogicalPlan) -> Result<LogicalPlan> {
    match plan {
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => {
            let input = in_place_of_join(plan.inputs()[0], joined)?;
            plan.with_new_exprs(plan.expressions(), vec![input])
        }
        _ => Ok(joined),
    }
}

/// The inner join of a range join with its side, if the range join is about one side and a condition compares its
/// result with the other one.
fn moved(join: &RangeJoin, predicate: &Expr) -> Result<Option<LogicalPlan>> {
    let (rows, filter) = match join.probe() {
        LogicalPlan::Filter(filter) => (filter.input.as_ref(), Some(&filter.predicate)),
        rows => (rows, None),
    };
    let LogicalPlan::Join(both) = rows else {
        return Ok(None);
    };
    if both.join_type != JoinType::Inner {
        return Ok(None);
    }
    let on = both.on.iter().map(|(l, r)| l.clone().eq(r.clone()));
    let conditions = on.chain(both.filter.iter().chain(filter).cloned());
    let conditions: Vec<Expr> = conditions.flat_map(split_conjunction_owned).collect();
    let sides = [(&both.left, &both.right), (&both.right, &both.left)];
    let mut at = sides.iter().enumerate();
    let found = at.find_map(|(at, (side, other))| {
        let on = of_side(&join.spec().on, &conditions, other);
        let is_compared = is_compared(join.spec(), &on, predicate, (side, other));
        is_compared.then_some((at, on))
    });
    let Some((at, on)) = found else {
        return Ok(None);
    };
    let side = sides[at].0.as_ref().clone();
    let spec = RangeJoinSpec {
        on,
        metadata: side.schema().metadata().clone().into_iter().collect(),
        ..join.spec().clone()
    };
    let join = RangeJoin::try_new(side, join.build().clone(), spec)?;
    let mut inputs = vec![extension(join), sides[at].1.as_ref().clone()];
    if at == 1 {
        inputs.reverse();
    }
    let joined = rows.with_new_exprs(rows.expressions(), inputs)?;
    match filter {
        Some(filter) => filtered(joined, filter.clone()).map(Some),
        None => Ok(Some(joined)),
    }
}

/// Equality keys of a range join with what those of `other` are equal to by these conditions.
fn of_side(on: &[(Expr, Expr)], conditions: &[Expr], other: &LogicalPlan) -> Vec<(Expr, Expr)> {
    let of_side = |ours: &Expr| {
        let equal = is_of(ours, other.schema()).then(|| equal_to(ours, conditions, other));
        equal.flatten().unwrap_or_else(|| ours.clone())
    };
    let on = on.iter();
    on.map(|(ours, theirs)| (of_side(ours), theirs.clone()))
        .collect()
}

/// Whether a range join with these equality keys needs the columns of `side` alone, and a condition compares its result
/// with `other` by `=`.
fn is_compared(
    spec: &RangeJoinSpec<Expr>,
    on: &[(Expr, Expr)],
    predicate: &Expr,
    (side, other): (&LogicalPlan, &LogicalPlan),
) -> bool {
    let on = on.iter().map(|(probe, _)| probe);
    let bounds = spec.bounds.iter().map(|(_, bound)| bound);
    let mut needed = on.chain(bounds).chain(&spec.thresholds);
    if !needed.all(|e| is_of(e, side.schema())) {
        return false;
    }
    let [of_side, of_other] = [side, other].map(LogicalPlan::schema);
    let is_result = |e: &Expr| {
        let columns = e.column_refs();
        let mut own = columns.iter().filter(|column| !of_side.has_column(column));
        // What neither side has is a column of the range join.
        own.clone().next().is_some() && own.all(|column| !of_other.has_column(column))
    };
    let is_other = |e: &Expr| !e.column_refs().is_empty() && is_of(e, of_other);
    split_conjunction(predicate).into_iter().any(|conjunct| {
        matches!(
            conjunct,
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right })
                if (is_result(left) && is_other(right)) || (is_result(right) && is_other(left))
        )
    })
}
