//! `frame_min(value, l, r) OVER (…)`: rejects clauses that have no meaning for the window form.
//!
//! ```text
//!   frame_min(v, l, r) FILTER (WHERE v > 0) OVER (ORDER BY ts)     planning error
//!   frame_min(v, l, r) OVER (ORDER BY ts)                          unchanged
//! ```
//!
//! DataFusion passes neither the frame clause nor the modifiers to a window function, so a rule checks the plan. It is
//! an analyzer rule, because a session can be configured to skip optimizer rules that fail.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::expr::{NullTreatment, WindowFunction, WindowFunctionDefinition};
use datafusion::logical_expr::{Expr, LogicalPlan, WindowFrame, WindowFrameBound};
use datafusion::optimizer::AnalyzerRule;

use crate::expr::frame_udf::FrameUdf;

/// Rejects an explicit frame, FILTER, DISTINCT and IGNORE NULLS in calls of `frame_min` and its like. Leaves the
/// plan unchanged.
#[derive(Debug, Default)]
pub struct CheckFrameCalls;

impl AnalyzerRule for CheckFrameCalls {
    fn name(&self) -> &'static str {
        "rmq_check_frame_calls"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        plan.apply_with_subqueries(|node| {
            if let LogicalPlan::Window(window) = node {
                for expr in &window.window_expr {
                    expr.apply(|e| {
                        if let Expr::WindowFunction(call) = e {
                            check(call)?;
                        }
                        Ok(TreeNodeRecursion::Continue)
                    })?;
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(plan)
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

/// Whether this can be the frame of a query without a frame clause: all rows without ORDER BY; with it, the rows up to
/// the current one (RANGE, or ROWS if DataFusion knows that the order is strict).
fn is_default_frame(frame: &WindowFrame, unordered: bool) -> bool {
    let to_end = frame.end_bound.is_unbounded();
    let to_current = frame.end_bound == WindowFrameBound::CurrentRow;
    frame.start_bound.is_unbounded() && (to_current || (to_end && unordered))
}
