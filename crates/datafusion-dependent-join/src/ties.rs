//! Order among rows that ORDER BY leaves equal: a LIMIT, DISTINCT ON or window function of the outer side takes the
//! same ones each time that it is evaluated.
//!
//! ```text
//!   Limit: fetch=2                              Limit: fetch=2
//!     Sort: q.k                           ──▶     Sort: q.k, q.id, q.v
//!       q                                           q
//! ```
//!
//! Any order of such rows is right. In that by all columns, rows that are still equal have equal values.

use std::sync::Arc;

use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result};
use datafusion_expr::expr::WindowFunction;
use datafusion_expr::{
    Distinct, DistinctOn, Expr, LogicalPlan, Projection, Sort, SortExpr, Window, WindowFrame,
    WindowFrameUnits,
};

/// Window functions whose value is the same for rows that ORDER BY leaves equal.
const OF_PEERS: [&str; 4] = ["rank", "dense_rank", "percent_rank", "cume_dist"];

/// Window functions that number rows, whatever their frame.
const OF_ROWS: [&str; 4] = ["row_number", "ntile", "lag", "lead"];

/// The plan with further columns in each ORDER BY that chooses rows.
pub(crate) fn without_ties(plan: &LogicalPlan) -> Result<LogicalPlan> {
    let ordered = plan.clone().transform_up(|node| match node {
        LogicalPlan::Limit(mut limit) => {
            limit.input = Arc::new(ordered(&limit.input)?);
            Ok(Transformed::yes(LogicalPlan::Limit(limit)))
        }
        LogicalPlan::Distinct(Distinct::On(on)) => {
            let by = on.sort_expr.unwrap_or_else(|| {
                let on = on.on_expr.iter().cloned();
                on.map(|expr| expr.sort(true, false)).collect()
            });
            let by = further(by, &[], on.input.schema());
            let on = DistinctOn::try_new(on.on_expr, on.select_expr, Some(by), on.input)?;
            Ok(Transformed::yes(LogicalPlan::Distinct(Distinct::On(on))))
        }
        LogicalPlan::Window(window) if window.window_expr.iter().all(takes_order) => {
            let exprs = window.window_expr.into_iter().map(|expr| {
                let name = expr.schema_name().to_string();
                let expr = expr.unalias_nested().data;
                let Expr::WindowFunction(mut call) = expr else {
                    return expr.alias(name);
                };
                let params = &mut call.params;
                let by = std::mem::take(&mut params.order_by);
                params.order_by = further(by, &params.partition_by, window.input.schema());
                Expr::WindowFunction(call).alias(name)
            });
            let window = Window::try_new(exprs.collect(), Arc::clone(&window.input))?;
            Ok(Transformed::yes(LogicalPlan::Window(window)))
        }
        other => Ok(Transformed::no(other)),
    });
    Ok(ordered?.data)
}

/// A plan whose first rows are the same each time.
fn ordered(plan: &LogicalPlan) -> Result<LogicalPlan> {
    let (by, input) = match plan {
        LogicalPlan::Projection(projection) if is_ordered(&projection.input, |_| true) => {
            let input = Arc::new(ordered(&projection.input)?);
            let projection = Projection::try_new(projection.expr.clone(), input)?;
            return Ok(LogicalPlan::Projection(projection));
        }
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => (sort.expr.clone(), &sort.input),
        other => (vec![], &Arc::new(other.clone())),
    };
    let expr = further(by, &[], input.schema());
    if expr.is_empty() {
        return Ok(plan.clone());
    }
    Ok(LogicalPlan::Sort(Sort {
        expr,
        input: Arc::clone(input),
        fetch: None,
    }))
}

/// Whether a plan has an order, below projections, and something holds for it.
fn is_ordered(plan: &LogicalPlan, holds: fn(&Sort) -> bool) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => is_ordered(&projection.input, holds),
        LogicalPlan::Sort(sort) => holds(sort),
        _ => false,
    }
}

/// An order with the columns behind it that it does not have.
fn further(mut by: Vec<SortExpr>, keys: &[Expr], rows: &DFSchema) -> Vec<SortExpr> {
    for (qualifier, field) in rows.iter() {
        let column = Expr::from((qualifier, field));
        let is_known = keys.contains(&column) || by.iter().any(|by| by.expr == column);
        if !is_known && !field.data_type().is_nested() {
            by.push(column.sort(true, false));
        }
    }
    by
}

/// Whether an order has all columns.
fn is_total<'a>(by: impl Iterator<Item = &'a Expr> + Clone, rows: &DFSchema) -> bool {
    let mut all = rows.iter().map(Expr::from);
    all.all(|column| by.clone().any(|by| *by == column))
}

/// Whether further columns in ORDER BY leave the value a right one.
fn takes_order(expr: &Expr) -> bool {
    let Expr::WindowFunction(call) = expr.clone().unalias() else {
        return false;
    };
    let frame = &call.params.window_frame;
    OF_ROWS.contains(&call.fun.name()) || frame.units == WindowFrameUnits::Rows || has_all(frame)
}

/// Whether a frame is the whole partition.
fn has_all(frame: &WindowFrame) -> bool {
    frame.start_bound.is_unbounded() && frame.end_bound.is_unbounded()
}

/// Whether the first rows of a plan are the same each time.
pub(crate) fn has_same_first_rows(plan: &LogicalPlan) -> bool {
    is_ordered(plan, is_total_sort)
}

/// Whether a sort puts rows that differ in one order.
pub(crate) fn is_total_sort(sort: &Sort) -> bool {
    is_total(sort.expr.iter().map(|by| &by.expr), sort.input.schema())
}

/// Whether DISTINCT ON takes the same rows each time.
pub(crate) fn takes_same_rows(on: &DistinctOn) -> bool {
    let by = on.sort_expr.iter().flatten();
    is_total(by.map(|by| &by.expr), on.input.schema())
}

/// Whether a window function has the same values each time; `is_orderless` tells which aggregates are the same in any
/// order of the rows.
pub(crate) fn has_same_values(call: &WindowFunction, rows: &DFSchema, is_orderless: bool) -> bool {
    let params = &call.params;
    let frame = &params.window_frame;
    let by = params.order_by.iter().map(|by| &by.expr);
    OF_PEERS.contains(&call.fun.name())
        || is_orderless && (frame.units != WindowFrameUnits::Rows || has_all(frame))
        || is_total(by.chain(&params.partition_by), rows)
}
