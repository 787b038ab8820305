//! The query planner: plans the owner's queries with our rules and operators, and leaves those that gain nothing to the
//! planner that the owner had before.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err, not_impl_err};
use datafusion::datasource::source_as_provider;
use datafusion::execution::context::{QueryPlanner, SessionState};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder, Sort};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_ffi::table_provider::ForeignTableProvider;
use datafusion_rmq::physical_plan::{
    RangeJoinExec, RangeLookupExec, UniqueGroupsExec, WindowFrameExec,
};
use tokio::runtime::Handle;
use tokio::task::JoinError;

use crate::ffi::functions::{OwnFunctions, range_calls, with_session_functions};
use crate::ffi::lending::Lending;
use crate::ffi::options::with_options;
use crate::ffi::owned_plan::OwnedPlan;

/// Plans queries of an owner.
pub struct OwnerPlanner {
    pub lending: Lending,
    pub functions: OwnFunctions,
    /// The owner's planner before this one.
    pub fallback: Arc<dyn QueryPlanner + Send + Sync>,
    pub runtime: Handle,
    /// The process of the runtime.
    pub process: u32,
}

impl std::fmt::Debug for OwnerPlanner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnerPlanner").finish_non_exhaustive()
    }
}

#[async_trait]
impl QueryPlanner for OwnerPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        owner: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if self.process != std::process::id() {
            return exec_err!(
                "the extension of datafusion_rmq was used in process {}, and this one was forked from it: the threads that run \
                 queries do not exist here. Start processes with multiprocessing's method 'spawn' or 'forkserver'",
                self.process
            );
        }
        check_columns(plan)?;
        let ctx = &self.lending.shared().ctx;
        datafusion_rmq::follow_memory_limit(ctx);
        let state = with_options(ctx.state(), owner.config())?;
        let context = state.task_ctx();
        let ours = self.planned(state, plan.clone()).await;
        let stays = self.functions.are_called_in(plan)?
            || match &ours {
                Ok(ours) => has_operators(ours)? || !can_be_planned_before(plan)?,
                // The other library may plan it.
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

impl OwnerPlanner {
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
                let plan = without_empty_sorts(with_session_functions(plan, &state)?)?;
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
}

/// Whether the planner before may plan what gains nothing here. It would pass the rows of tables in memory as bytes,
/// and an EXPLAIN without the logical plans.
fn can_be_planned_before(plan: &LogicalPlan) -> Result<bool> {
    let mut stays = matches!(plan, LogicalPlan::Explain(_) | LogicalPlan::Analyze(_));
    plan.apply_with_subqueries(|node| {
        stays |= match node {
            LogicalPlan::TableScan(scan) => {
                source_as_provider(&scan.source)?.is::<ForeignTableProvider>()
            }
            node => is_empty_sort(node),
        };
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(!stays)
}

/// Whether it is ORDER BY with LIMIT 0. `DataFusion` has a rule for it, which the owner does not apply, and panics.
fn is_empty_sort(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Sort(sort) if sort.fetch == Some(0))
}

/// The plan with that LIMIT in a node of its own, as it was written.
fn without_empty_sorts(plan: LogicalPlan) -> Result<LogicalPlan> {
    let plan = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Sort(sort) if sort.fetch == Some(0) => {
            let sort = LogicalPlan::Sort(Sort {
                fetch: None,
                ..sort
            });
            let limited = LogicalPlanBuilder::from(sort).limit(0, Some(0))?;
            Ok(Transformed::yes(limited.build()?))
        }
        node => Ok(Transformed::no(node)),
    })?;
    Ok(plan.data)
}

/// Refuses a plan that has lost columns on its way: `DataFusion` 55 writes a relation without rows without its columns.
/// It is not read alone, or by an operator that names its columns, which would have failed before.
fn check_columns(plan: &LogicalPlan) -> Result<()> {
    if has_lost_columns(plan) && !is_empty(plan) {
        return not_impl_err!(
            "DataFusion 55 loses the columns of a relation without rows, such as one with LIMIT 0, when a plan crosses to the              library of an extension: leave it out, or use datafusion_rmq.connect(session=…)"
        );
    }
    Ok(())
}

fn has_lost_columns(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::EmptyRelation(empty) => {
            !empty.produce_one_row && empty.schema.fields().is_empty()
        }
        LogicalPlan::Projection(_) | LogicalPlan::Aggregate(_) => false,
        plan => plan.inputs().into_iter().any(has_lost_columns),
    }
}

/// Whether it is a relation without rows, at most in order or explained.
fn is_empty(plan: &LogicalPlan) -> bool {
    match (plan, plan.inputs().as_slice()) {
        (LogicalPlan::EmptyRelation(_), _) => true,
        (_, [input]) => is_empty(input),
        _ => false,
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
