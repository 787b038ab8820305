//! ORDER BY the distance of two integers or times, which must not overflow.
//!
//! ```text
//!   ORDER BY abs(p.id - q.id)       ORDER BY rmq_distance(p.id, q.id)
//! ```
//!
//! A difference of integers wraps around, so that the farthest rows come first, and one of timestamps is an error where
//! it has more than 63 bits. Only the order is needed here, so that another type may have room for the distance. All
//! ways to run the query must order its rows alike, so this is an analyzer rule.

use arrow::datatypes::DataType;
use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result};
use datafusion_expr::expr::{BinaryExpr, ScalarFunction};
use datafusion_expr::{
    Distinct, Expr, ExprSchemable, LogicalPlan, Operator, ScalarUDF, SortExpr, WindowFrame,
    WindowFrameBound, WindowFrameUnits,
};
use datafusion_functions::math;
use datafusion_optimizer::AnalyzerRule;

use crate::expr::abs::AbsUdf;
use crate::expr::distance::DistanceUdf;
use crate::rules::common::plans::map_expressions;

/// Orders rows by distances that do not overflow, also if `rmq.rewrite` is false.
#[derive(Debug, Default)]
pub struct OrderByDistances;

impl AnalyzerRule for OrderByDistances {
    fn name(&self) -> &'static str {
        "rmq_order_by_distances"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries(by_distances)?.data)
    }
}

fn by_distances(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let inputs = node.inputs();
    let [input] = inputs.as_slice() else {
        return Ok(Transformed::no(node));
    };
    let schema = DFSchema::clone(input.schema());
    let orders = |orders: &mut [SortExpr]| -> Result<bool> {
        let mut changed = false;
        for order in orders {
            if let Some(distance) = distance(&order.expr, &schema)? {
                order.expr = distance;
                changed = true;
            }
        }
        Ok(changed)
    };
    let with = |node, changed| {
        Ok(if changed {
            Transformed::yes(node)
        } else {
            Transformed::no(node)
        })
    };
    match node {
        LogicalPlan::Sort(mut sort) => {
            let changed = orders(&mut sort.expr)?;
            with(LogicalPlan::Sort(sort), changed)
        }
        LogicalPlan::Distinct(Distinct::On(mut on)) => {
            // The first ones are those of ON.
            let further = on.sort_expr.as_mut();
            let further = further.and_then(|order| order.get_mut(on.on_expr.len()..));
            let changed = further.map(orders).transpose()?.unwrap_or(false);
            with(LogicalPlan::Distinct(Distinct::On(on)), changed)
        }
        node @ (LogicalPlan::Window(_) | LogicalPlan::Aggregate(_)) => {
            map_expressions(node, |expr| {
                expr.transform_up(|mut expr| {
                    let changed = match &mut expr {
                        Expr::WindowFunction(window)
                            if has_no_length(&window.params.window_frame) =>
                        {
                            orders(&mut window.params.order_by)?
                        }
                        Expr::AggregateFunction(aggregate) => {
                            orders(&mut aggregate.params.order_by)?
                        }
                        _ => false,
                    };
                    Ok(if changed {
                        Transformed::yes(expr)
                    } else {
                        Transformed::no(expr)
                    })
                })
            })
        }
        node => Ok(Transformed::no(node)),
    }
}

/// Whether a frame has no end at a number, which is of the type of what orders the rows.
fn has_no_length(frame: &WindowFrame) -> bool {
    let has_length = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::Preceding(length) | WindowFrameBound::Following(length) => {
            !length.is_null()
        }
        WindowFrameBound::CurrentRow => false,
    };
    let ends = [&frame.start_bound, &frame.end_bound];
    frame.units != WindowFrameUnits::Range || !ends.into_iter().any(has_length)
}

/// Whether an expression may be the absolute value of a difference.
#[must_use]
pub fn may_be_distance(expr: &Expr) -> bool {
    let Expr::ScalarFunction(ScalarFunction { func, .. }) = expr else {
        return false;
    };
    func.inner().is::<AbsUdf>() || *func == math::abs()
}

/// The distance that an expression is, if it is the absolute value of a difference that may overflow.
fn distance(expr: &Expr, schema: &DFSchema) -> Result<Option<Expr>> {
    let Expr::ScalarFunction(ScalarFunction { args, .. }) = expr else {
        return Ok(None);
    };
    let [
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Minus,
            right,
        }),
    ] = args.as_slice()
    else {
        return Ok(None);
    };
    let data_type = left.get_type(schema)?;
    let may_overflow = data_type.is_integer()
        || matches!(data_type, DataType::Timestamp(..) | DataType::Duration(_));
    if !may_be_distance(expr) || !may_overflow || data_type != right.get_type(schema)? {
        return Ok(None);
    }
    let sides = vec![Expr::clone(left), Expr::clone(right)];
    Ok(Some(ScalarUDF::from(DistanceUdf::new()).call(sides)))
}
