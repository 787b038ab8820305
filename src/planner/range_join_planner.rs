//! From the logical node of a range join by key to its operator.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};

use crate::exec::range_join::engine::RangeJoinEngine;
use crate::exec::range_join::exec::RangeJoinExec;
use crate::index::catalog::IndexCatalog;
use crate::logical_plan::range_join::RangeJoin;

/// Plans range joins by key.
#[derive(Debug)]
pub(crate) struct RangeJoinPlanner {
    pub(crate) indexes: Arc<IndexCatalog>,
}

#[async_trait]
impl ExtensionPlanner for RangeJoinPlanner {
    async fn plan_extension(
        &self,
        planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
        planning_ctx: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let (Some(node), [probe, build], [probe_exec, build_exec]) = (
            node.as_any().downcast_ref::<RangeJoin>(),
            logical_inputs,
            physical_inputs,
        ) else {
            return Ok(None);
        };
        let physical = |expr: &Expr, input: &LogicalPlan| {
            planner.create_physical_expr(expr, input.schema(), session, planning_ctx)
        };
        let spec = node
            .spec()
            .try_map(|expr| physical(expr, probe), |expr| physical(expr, build))?;
        let catalog = Arc::clone(&self.indexes);
        let engine =
            RangeJoinEngine::plan(catalog, &spec, (probe_exec, build_exec), session).await?;
        Ok(Some(Arc::new(RangeJoinExec::try_new(
            Arc::clone(probe_exec),
            Arc::clone(build_exec),
            spec,
            node.spec().to_string(),
            engine,
        )?)))
    }
}
