//! Runs a plan in a task context of its own.

use std::sync::Arc;

use datafusion::execution::TaskContext;
use datafusion::prelude::SessionConfig;

/// A context like this one with another configuration. What operators keep for a run is made anew in it.
pub(crate) fn another_run(context: &TaskContext, config: SessionConfig) -> Arc<TaskContext> {
    Arc::new(TaskContext::new(
        context.task_id(),
        context.session_id(),
        config,
        context.scalar_functions().clone(),
        context.higher_order_functions().clone(),
        context.aggregate_functions().clone(),
        context.window_functions().clone(),
        context.runtime_env(),
    ))
}
