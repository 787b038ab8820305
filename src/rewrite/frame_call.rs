//! `frame_min(…) OVER (…)`: refuses what the window form has no meaning for. DataFusion shows a window function
//! neither its frame clause nor its modifiers, so a rule looks at the plan.

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::expr::{NullTreatment, WindowFunction, WindowFunctionDefinition};
use datafusion::logical_expr::{
    Expr, LogicalPlan, WindowFrame, WindowFrameBound, WindowFrameUnits,
};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::functions::FrameUdf;

/// Refuses an explicit frame, FILTER, DISTINCT and IGNORE NULLS on `frame_min` and its like.
#[derive(Debug, Default)]
pub struct CheckFrameCalls;

impl OptimizerRule for CheckFrameCalls {
    fn name(&self) -> &'static str {
        "rmq_check_frame_calls"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        if let LogicalPlan::Window(window) = &plan {
            for expr in &window.window_expr {
                expr.apply(|e| {
                    if let Expr::WindowFunction(call) = e {
                        check(call)?;
                    }
                    Ok(TreeNodeRecursion::Continue)
                })?;
            }
        }
        Ok(Transformed::no(plan))
    }
}

fn check(call: &WindowFunction) -> Result<()> {
    let WindowFunctionDefinition::WindowUDF(udf) = &call.fun else {
        return Ok(());
    };
    if !udf.inner().is::<FrameUdf>() {
        return Ok(());
    }
    let name = udf.name();
    let params = &call.params;
    if params.distinct {
        return plan_err!("{name} does not take DISTINCT");
    }
    if params.filter.is_some() {
        return plan_err!(
            "{name} does not take FILTER, which would renumber the rows; make the values that should not count NULL: {name}(CASE \
             WHEN … THEN value END, l, r)"
        );
    }
    if params.null_treatment == Some(NullTreatment::IgnoreNulls) {
        return plan_err!(
            "{name} does not take IGNORE NULLS; it skips NULLs always, and they keep their positions"
        );
    }
    if !is_default_frame(&params.window_frame, params.order_by.is_empty()) {
        return plan_err!(
            "{name} takes its frame from its arguments, the first and the last position; remove the frame clause {}",
            params.window_frame
        );
    }
    Ok(())
}

/// Whether this is the frame that `DataFusion` puts where a query has none.
fn is_default_frame(frame: &WindowFrame, unordered: bool) -> bool {
    let from_start = frame.start_bound.is_unbounded();
    let to_end = if unordered {
        frame.end_bound.is_unbounded()
    } else {
        frame.units == WindowFrameUnits::Range && frame.end_bound == WindowFrameBound::CurrentRow
    };
    from_start && to_end
}
