//! What DataFusion 55 does not write of window functions. Reading them gives other functions, without an error.

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, plan_err};
use datafusion::physical_expr::window::{StandardWindowExpr, WindowExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec, WindowUDFExpr};
use datafusion_rmq::parts::{OrderedRowsExec, has_filter, ignores_nulls};
use datafusion_rmq::physical_plan::WindowFrameExec;

/// Checks that all window operators of a plan, hidden ones as well, are read as they were written.
///
/// # Errors
/// A planning error for FILTER, and for IGNORE NULLS of a function that is no aggregate.
pub fn check_all_windows(plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
    plan.apply(|operator| {
        if let Some(frames) = operator.downcast_ref::<WindowFrameExec>() {
            check_windows(frames.window().as_ref())?;
        } else if let Some(rows) = operator.downcast_ref::<OrderedRowsExec>() {
            check_all_windows(rows.hidden())?;
        } else {
            check_windows(operator.as_ref())?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// As [`check_all_windows`], of one operator.
fn check_windows(plan: &dyn ExecutionPlan) -> Result<()> {
    let functions = if let Some(bounded) = plan.downcast_ref::<BoundedWindowAggExec>() {
        bounded.window_expr()
    } else if let Some(whole) = plan.downcast_ref::<WindowAggExec>() {
        whole.window_expr()
    } else {
        return Ok(());
    };
    for function in functions {
        if let Some(clause) = lost_clause(function) {
            return plan_err!(
                "{clause} of the window function {} can't be sent to another process: DataFusion 55 does not write it",
                function.name()
            );
        }
    }
    Ok(())
}

fn lost_clause(function: &Arc<dyn WindowExpr>) -> Option<&'static str> {
    if let Some(standard) = function.as_any().downcast_ref::<StandardWindowExpr>() {
        let function = standard.get_standard_func_expr();
        let udf = function.as_any().downcast_ref::<WindowUDFExpr>()?;
        return ignores_nulls(udf).then_some("IGNORE NULLS");
    }
    has_filter(function.as_ref()).then_some("FILTER")
}
