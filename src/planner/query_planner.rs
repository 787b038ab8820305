//! The session's query planner.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::ExtensionPlanner;

use crate::planner::query_planning::plan_with;
use crate::planner::registration::Registration;

/// DataFusion's query planner with the extension planners of this crate, and those of the session.
pub(crate) struct RmqQueryPlanner {
    registration: Registration,
    others: Vec<Arc<dyn ExtensionPlanner + Send + Sync>>,
}

impl RmqQueryPlanner {
    /// A planner that tries the extension planners in `others` first.
    pub(crate) fn new(
        registration: Registration,
        others: Vec<Arc<dyn ExtensionPlanner + Send + Sync>>,
    ) -> Self {
        Self {
            registration,
            others,
        }
    }
}

impl std::fmt::Debug for RmqQueryPlanner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RmqQueryPlanner")
            .field("registration", &self.registration)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl QueryPlanner for RmqQueryPlanner {
    async fn create_physical_plan(
        &self,
        logical_plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // A later registration that kept this planner is in the configuration.
        let registered = Registration::find(session);
        let registration = registered.as_ref().unwrap_or(&self.registration);
        plan_with(registration, logical_plan, session, &self.others).await
    }
}
