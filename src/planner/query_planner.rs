//! The session's query planner.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use crate::planner::query_planning::QueryPlanning;
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
        let mut logical_plan = Cow::Borrowed(logical_plan);
        loop {
            let planning = QueryPlanning::with(registration, &logical_plan, session)?;
            let mut planners = self.others.clone();
            planners.extend(planning.extension_planners());
            let planner = DefaultPhysicalPlanner::with_extension_planners(planners);
            let plan = planner
                .create_physical_plan(planning.logical_plan(), session)
                .await?;
            let Some(other_plan) = planning.with_hash_joins(session)? else {
                planning.finish(session).await?;
                return Ok(plan);
            };
            // It has fewer choices, so this ends.
            logical_plan = Cow::Owned(other_plan);
        }
    }
}
