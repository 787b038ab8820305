//! The query planner: plans the owner's queries with our rules and operators, and leaves those that gain nothing to the
//! planner that the owner had before.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::config::ExtensionOptions;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::datasource::source_as_provider;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::{QueryPlanner, SessionState};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use datafusion_ffi::config::extension_options::FFI_ExtensionOptions;
use datafusion_ffi::table_provider::ForeignTableProvider;
use datafusion_rmq::physical_plan::{
    RangeJoinExec, RangeLookupExec, UniqueGroupsExec, WindowFrameExec,
};
use tokio::runtime::Handle;
use tokio::task::JoinError;

use crate::ffi::functions::{OwnFunctions, range_calls, with_session_functions};
use crate::ffi::lending::Lending;
use crate::ffi::owned_plan::OwnedPlan;

/// How the names of options of this extension begin.
const RMQ: &str = "rmq.";

/// Plans queries of an owner.
pub struct ForeignPlanner {
    pub lending: Lending,
    pub functions: OwnFunctions,
    /// The owner's planner before this one.
    pub fallback: Arc<dyn QueryPlanner + Send + Sync>,
    pub runtime: Handle,
}

impl std::fmt::Debug for ForeignPlanner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ForeignPlanner").finish_non_exhaustive()
    }
}

#[async_trait]
impl QueryPlanner for ForeignPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        owner: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let ctx = &self.lending.shared().ctx;
        datafusion_rmq::follow_memory_limit(ctx);
        let state = with_options(ctx.state(), owner.config())?;
        let context = state.task_ctx();
        let ours = self.planned(state, plan.clone()).await;
        let stays = match &ours {
            Ok(ours) => has_operators(ours)? || !self.can_be_planned_before(plan)?,
            // Such as of files in an object store that only the owner has.
            Err(_) => false,
        };
        if !stays {
            match (self.fallback.create_physical_plan(plan, owner).await, &ours) {
                (Ok(plan), _) => return Ok(plan),
                // Its plan may have an operator that does not cross, as that of WITH RECURSIVE.
                (Err(_), Ok(_)) => {}
                (Err(error), Err(ours)) => {
                    log::debug!("neither library plans the query, this one because of: {ours}");
                    return Err(error);
                }
            }
        }
        let plan = OwnedPlan::new(ours?, context, self.runtime.clone());
        Ok(Arc::new(plan))
    }
}

impl ForeignPlanner {
    /// Our plan, by our threads, whose stacks are large enough for a deep one.
    async fn planned(
        &self,
        state: SessionState,
        plan: LogicalPlan,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let lending = self.lending.clone();
        let planning = async move {
            let calls = range_calls(&plan)?;
            let asking = lending.clone();
            let frames = SpawnedTask::spawn_blocking(move || match calls {
                Some(statement) => asking.frames(&statement),
                None => Ok(vec![]),
            });
            let frames = frames.join().await.map_err(unexpected)??;
            let planning = async {
                let plan = with_session_functions(plan)?;
                state.create_physical_plan(&plan).await
            };
            lending.shared().with_frames(&frames, planning).await
        };
        let planning = {
            let _ours = self.runtime.enter();
            SpawnedTask::spawn(planning)
        };
        planning.join().await.map_err(unexpected)?
    }

    /// Whether the planner before may plan what gains nothing here. It does not know functions of ours, would pass the
    /// rows of tables in memory as bytes, and an EXPLAIN without the logical plans.
    fn can_be_planned_before(&self, plan: &LogicalPlan) -> Result<bool> {
        let mut passes_tables = false;
        plan.apply_with_subqueries(|node| {
            if let LogicalPlan::TableScan(scan) = node {
                let table = source_as_provider(&scan.source)?;
                passes_tables |= table.is::<ForeignTableProvider>();
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        let explains = matches!(plan, LogicalPlan::Explain(_) | LogicalPlan::Analyze(_));
        Ok(!passes_tables && !explains && !self.functions.are_called_in(plan)?)
    }
}

fn unexpected(failed: JoinError) -> DataFusionError {
    exec_datafusion_err!("planning ended unexpectedly: {failed}")
}

/// Whether a plan has operators of ours.
fn has_operators(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    plan.exists(|plan| {
        let plan = plan.as_ref();
        Ok(plan.is::<RangeJoinExec>()
            || plan.is::<RangeLookupExec>()
            || plan.is::<UniqueGroupsExec>()
            || plan.is::<WindowFrameExec>())
    })
}

/// The state with the owner's options of `DataFusion`, and those of `rmq.*` that the owner has set.
pub fn with_options(state: SessionState, owner: &SessionConfig) -> Result<SessionState> {
    let mut config = state.config().clone();
    let (options, owner) = (config.options_mut(), owner.options().as_ref().clone());
    if let Some(set) = owner.extensions.get::<FFI_ExtensionOptions>() {
        for entry in set.entries() {
            if let Some(value) = entry.value.filter(|_| entry.key.starts_with(RMQ)) {
                options.set(&entry.key, &value)?;
            }
        }
    }
    options.execution = owner.execution;
    options.optimizer = owner.optimizer;
    options.sql_parser = owner.sql_parser;
    options.explain = owner.explain;
    options.format = owner.format;
    options.spark = owner.spark;
    let builder = SessionStateBuilder::new_from_existing(state);
    Ok(builder.with_config(config).build())
}
