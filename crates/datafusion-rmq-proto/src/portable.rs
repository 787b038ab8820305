//! Plans for engines whose own codec writes functions as their name.
//!
//! A codec writes what a function is made of besides its name. But the codecs of engines such as datafusion-distributed
//! come before those of their users, and take each function for one that its name tells. So the whole operator is
//! wrapped, and becomes one of this crate's:
//!
//! ```text
//!   ProjectionExec: rmq_decimal_average(…)     portable      CarriedExec
//!     AggregateExec                         ────────────▶      AggregateExec
//! ```

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, plan_err};
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion_rmq::parts::{FunctionParts, MergedStates};

use crate::carrier::CarriedExec;
use crate::operator::OurOperator;
use crate::windows::check_all_windows;

/// The plan with those operators wrapped in [`CarriedExec`] whose functions an engine's own codec would write as their
/// name alone, so that a worker would not know them. Operators of this crate are written as they are.
///
/// # Errors
/// A planning error for window functions that DataFusion does not write as they are: FILTER, and IGNORE NULLS of a
/// function that is no aggregate. DataFusion's, if an operator can't be put above a wrapped one.
pub fn portable(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    check_all_windows(&plan)?;
    let plan = plan.transform_up(|plan| {
        let is_carried = has_made_functions(&plan)?;
        let is_exchange = plan.is::<RepartitionExec>() || plan.is::<SortPreservingMergeExec>();
        if is_carried && is_exchange {
            // An engine would not see that it is one.
            return plan_err!(
                "{} exchanges rows by a function that was made for this query, and can't be sent to another process",
                plan.name()
            );
        }
        Ok(if is_carried {
            Transformed::yes(Arc::new(CarriedExec::new(plan)) as _)
        } else {
            Transformed::no(plan)
        })
    })?;
    Ok(plan.data)
}

/// Whether an operator of another library has a function that was made for this query.
fn has_made_functions(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    if OurOperator::of(plan.as_ref()).is_some() {
        return Ok(false);
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        let mut functions = aggregate.aggr_expr().iter().map(|expr| expr.fun());
        if functions.any(|function| MergedStates::of(function).is_some()) {
            return Ok(true);
        }
    }
    let mut is_found = false;
    plan.apply_expressions(&mut |expr| {
        is_found |= expr.exists(|expr| {
            let call = expr.downcast_ref::<ScalarFunctionExpr>();
            Ok(call.is_some_and(|call| FunctionParts::of(call.fun()).is_some()))
        })?;
        Ok(if is_found {
            TreeNodeRecursion::Stop
        } else {
            TreeNodeRecursion::Continue
        })
    })?;
    Ok(is_found)
}
