//! FILTER of an aggregate over frames that slide, as a CASE of its argument.
//!
//! ```text
//!   count(*) FILTER (WHERE v > 3) OVER w                  count(CASE WHEN v > 3 THEN 1 END) OVER w
//!   count(DISTINCT s) FILTER (WHERE v > 3) OVER w         count(DISTINCT CASE WHEN v > 3 THEN s END) OVER w
//! ```
//!
//! The physical rule for such frames sees only whether an aggregate has FILTER: DataFusion shows the condition to no
//! other crate. DataFusion's own operator, which has most of those with DISTINCT, is faster with a CASE, too: it calls
//! a kernel for FILTER at each row that enters or leaves a frame.

use datafusion_common::Result;
use datafusion_common::tree_node::Transformed;
use datafusion_expr::expr::WindowFunctionParams;
use datafusion_expr::{
    Expr, LogicalPlan, Window, WindowFrame, WindowFrameBound, WindowFrameUnits,
    WindowFunctionDefinition, when,
};
use datafusion_optimizer::optimizer::ApplyOrder;
use datafusion_optimizer::{OptimizerConfig, OptimizerRule};

use crate::common::options::RmqOptions;
use crate::rules::common::skips_nulls::skips_nulls;

/// Puts the condition of FILTER into the argument of COUNT, SUM, AVG, MIN and MAX over frames that slide, none of which
/// counts a NULL. Does nothing if `rmq.rewrite` is false.
#[derive(Debug, Default)]
pub struct FiltersOfFramesToCases;

impl OptimizerRule for FiltersOfFramesToCases {
    fn name(&self) -> &'static str {
        "rmq_filters_of_frames_to_cases"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Window(Window {
            input, window_expr, ..
        }) = &plan
        else {
            return Ok(Transformed::no(plan));
        };
        let rewrites = RmqOptions::rewrites(&config.options());
        if !rewrites || !window_expr.iter().any(has_filter) {
            return Ok(Transformed::no(plan));
        }
        let others = window_expr.iter().filter(|expr| !has_filter(expr));
        let mut known: Vec<Expr> = others.cloned().map(Expr::unalias).collect();
        let exprs = window_expr.iter().cloned().map(|expr| {
            if !has_filter(&expr) {
                return Ok(expr);
            }
            let name = expr.schema_name().to_string();
            let case = as_case(expr.clone())?;
            // DataFusion would take two functions that are the same for an expression to be computed before.
            if known.contains(&case) {
                return Ok(expr);
            }
            known.push(case.clone());
            Ok(case.alias(name))
        });
        let exprs = exprs.collect::<Result<Vec<_>>>()?;
        let window = Window::try_new(exprs, input.clone())?;
        Ok(Transformed::yes(LogicalPlan::Window(window)))
    }
}

/// Whether a window function is an aggregate with FILTER over frames that slide.
fn has_filter(expr: &Expr) -> bool {
    let call = match expr {
        // Types that DataFusion has given to arguments leave the name as it was.
        Expr::Alias(alias) => return has_filter(&alias.expr),
        Expr::WindowFunction(call) => call,
        _ => return false,
    };
    let WindowFunctionDefinition::AggregateUDF(function) = &call.fun else {
        return false;
    };
    let WindowFunctionParams {
        window_frame: frame,
        filter,
        ..
    } = &call.params;
    // As `physical::window_frames` takes them.
    let slides = !frame.is_ever_expanding() || ends_at_distance(frame);
    let is_known = frame.units != WindowFrameUnits::Groups;
    filter.is_some() && skips_nulls(function) && slides && is_known
}

/// The same function, without its name, of an argument that is NULL where FILTER leaves the row out.
fn as_case(expr: Expr) -> Result<Expr> {
    Ok(match expr {
        Expr::Alias(alias) => as_case(*alias.expr)?,
        Expr::WindowFunction(mut call) => {
            let params = &mut call.params;
            if let Some(argument) = params.args.first_mut()
                && let Some(condition) = params.filter.take()
            {
                *argument = when(*condition, std::mem::take(argument)).end()?;
            }
            Expr::WindowFunction(call)
        }
        other => other,
    })
}

/// Whether a frame of keys ends at a distance from the row.
pub fn ends_at_distance(frame: &WindowFrame) -> bool {
    let has_distance = match &frame.end_bound {
        WindowFrameBound::Preceding(distance) | WindowFrameBound::Following(distance) => {
            !distance.is_null()
        }
        WindowFrameBound::CurrentRow => false,
    };
    has_distance && frame.units == WindowFrameUnits::Range
}
