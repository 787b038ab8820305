//! The session that plans queries and gives their parts to workers.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{Distribution, ExecutionPlan, ExecutionPlanProperties};
use datafusion_distributed::{
    BroadcastExec, DesiredTaskCountEvent, DesiredTaskCountEventResponse, DesiredTaskCountHandler,
    DistributedExec, DistributedExt, SessionStateBuilderExt as _, WorkerResolver,
};
use datafusion_rmq::parts::OrderedRowsExec;
use datafusion_rmq::physical_plan::{JoinMode, RangeJoinExec};
use datafusion_rmq::{JoinModeChoice, RmqOptions, SessionStateBuilderExt as _};
use datafusion_rmq_proto::{CarriedExec, RmqCodec, portable};

use crate::sorted_files::DivideSortedFiles;

/// Registers datafusion-rmq and datafusion-distributed with a session that is being built, in the order that they need:
/// queries are planned with range joins and range lookups, and divided among the workers at the addresses of
/// `resolver`.
///
/// Call it after the configuration, the catalog list and the optimizers' rules have been set. It calls
/// [`with_distributed_planner`](datafusion_distributed::SessionStateBuilderExt::with_distributed_planner), which you do
/// not. `rmq.join_mode` becomes `collected`, unless it is `partitioned`. `codec` writes the plans; workers have one of
/// the same release.
///
/// The searched side of a range join whose statistics tell that it has at most `broadcast_limit` bytes, or that do not
/// tell, is sent to all tasks of the join, or read by each where its order decides. A larger one has one task, unless
/// the session partitions range joins (`rmq.join_mode = 'partitioned'`).
#[must_use]
pub fn client(
    builder: SessionStateBuilder,
    resolver: impl WorkerResolver,
    codec: &RmqCodec,
    broadcast_limit: usize,
) -> SessionStateBuilder {
    let mut builder = builder.with_rmq_sharing(codec.indexes());
    let config = builder.config().get_or_insert_default();
    let mut options = RmqOptions::of(config.options());
    if options.join_mode != JoinModeChoice::Partitioned {
        options.join_mode = JoinModeChoice::Collected;
    }
    config.set_distributed_option_extension(options);
    // `with_rmq_sharing` has set one.
    let planner = std::mem::take(builder.query_planner());
    if let Some(planner) = planner {
        builder = builder.with_query_planner(Arc::new(ForWorkers {
            planner,
            broadcast_limit,
        }));
    }
    let mut builder = builder
        .with_distributed_worker_resolver(resolver)
        .with_distributed_user_codec(codec.clone())
        .with_distributed_desired_task_count_handler(TaskCounts { broadcast_limit })
        .with_distributed_scale_up_leaf_node_handler(DivideSortedFiles)
        .with_distributed_planner();
    let planner = std::mem::take(builder.query_planner());
    match planner {
        Some(planner) => builder.with_query_planner(Arc::new(WithoutLeftovers { planner })),
        None => builder,
    }
}

/// Makes the plans of another planner ready to be divided.
#[derive(Debug)]
struct ForWorkers {
    planner: Arc<dyn QueryPlanner + Send + Sync>,
    broadcast_limit: usize,
}

#[async_trait]
impl QueryPlanner for ForWorkers {
    async fn create_physical_plan(
        &self,
        logical_plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = self
            .planner
            .create_physical_plan(logical_plan, session)
            .await?;
        let plan = plan.transform_up(|plan| {
            let join = plan.downcast_ref::<RangeJoinExec>();
            match join.filter(|join| self.may_broadcast(join)) {
                Some(join) => Ok(Transformed::yes(with_broadcast(&plan, join)?)),
                None => Ok(Transformed::no(plan)),
            }
        })?;
        portable(plan.data)
    }
}

/// Takes copies for several tasks out of plans that are not divided.
#[derive(Debug)]
struct WithoutLeftovers {
    planner: Arc<dyn QueryPlanner + Send + Sync>,
}

#[async_trait]
impl QueryPlanner for WithoutLeftovers {
    async fn create_physical_plan(
        &self,
        logical_plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = self
            .planner
            .create_physical_plan(logical_plan, session)
            .await?;
        if plan.exists(|plan| Ok(plan.is::<DistributedExec>()))? {
            return Ok(plan);
        }
        let plan = plan.transform_up(|plan| {
            Ok(match plan.downcast_ref::<BroadcastExec>() {
                Some(copies) => Transformed::yes(Arc::clone(copies.input())),
                None => Transformed::no(plan),
            })
        })?;
        Ok(plan.data)
    }
}

impl ForWorkers {
    /// Whether each task of the join may read its whole searched side.
    fn may_broadcast(&self, join: &RangeJoinExec) -> bool {
        let is_divided = join.mode() == JoinMode::Collected && !join.needs_one_task();
        if !is_divided || join.build().is::<OrderedRowsExec>() {
            return false;
        }
        let Some(bytes) = size_above(join.build(), self.broadcast_limit) else {
            return true;
        };
        log::warn!(
            "{}: its searched side has about {bytes} bytes, more than the {} that are sent to each task, so one task runs it; \
             in the mode 'partitioned' both sides of joins with equality keys are divided by these",
            join.label(),
            self.broadcast_limit
        );
        false
    }
}

/// Whether each task that executes a plan gets the same rows.
fn is_repeatable(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let mut is_repeatable = true;
    plan.apply(|operator| {
        operator.apply_expressions(&mut |expr| {
            is_repeatable &= !is_volatile(expr);
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(is_repeatable)
}

/// The bytes that a plan returns, if statistics tell that they are more than a limit.
fn size_above(plan: &Arc<dyn ExecutionPlan>, limit: usize) -> Option<usize> {
    let context = StatisticsContext::new();
    let statistics = context.compute(plan.as_ref(), &StatisticsArgs::new());
    match statistics.ok()?.total_byte_size {
        Precision::Exact(bytes) | Precision::Inexact(bytes) => Some(bytes).filter(|b| *b > limit),
        Precision::Absent => None,
    }
}

/// The join, whose tasks each read the whole searched side.
///
/// ```text
///   RangeJoinExec: …, mode=Collected           RangeJoinExec: …, mode=Collected
///     probe side                       ──▶       probe side
///     CoalescePartitionsExec                     CoalescePartitionsExec
///       searched side                              BroadcastExec
///                                                    searched side
/// ```
fn with_broadcast(
    plan: &Arc<dyn ExecutionPlan>,
    join: &RangeJoinExec,
) -> Result<Arc<dyn ExecutionPlan>> {
    let build = join.build();
    let gathered = build.downcast_ref::<CoalescePartitionsExec>();
    let gathered = gathered.filter(|gathered| gathered.fetch().is_none());
    let build = gathered.map_or(build, |gathered| gathered.input());
    // The number of tasks is not known yet.
    let copies = BroadcastExec::new(Arc::clone(build), 1);
    let build = CoalescePartitionsExec::new(Arc::new(copies));
    let inputs = vec![Arc::clone(join.probe()), Arc::new(build) as _];
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Arc::clone(plan).replace_children(inputs, options)
}

/// Keeps operators in one task that must not be divided: `datafusion-distributed` knows those of DataFusion, and
/// divides the scan below any other. It takes a leaf that it does not know for one that only one task can read.
struct TaskCounts {
    broadcast_limit: usize,
}

#[async_trait]
impl DesiredTaskCountHandler for TaskCounts {
    async fn handle(
        &self,
        event: DesiredTaskCountEvent<'_>,
    ) -> Option<Result<DesiredTaskCountEventResponse>> {
        if let Some(rows) = event.plan.downcast_ref::<OrderedRowsExec>() {
            let is_large = size_above(rows.hidden(), self.broadcast_limit).is_some();
            let counts = is_repeatable(rows.hidden()).map(|is_repeatable| {
                if is_large || !is_repeatable {
                    DesiredTaskCountEventResponse::maximum(1)
                } else {
                    DesiredTaskCountEventResponse::desired(1)
                }
            });
            return Some(counts);
        }
        needs_one_task(event.plan).then(|| Ok(DesiredTaskCountEventResponse::maximum(1)))
    }
}

fn needs_one_task(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(join) = plan.downcast_ref::<RangeJoinExec>() {
        return match join.mode() {
            JoinMode::Shared => true,
            JoinMode::Collected => join.needs_one_task() || !is_whole(join.build()),
            JoinMode::Partitioned => join.needs_one_task(),
        };
    }
    // The joins among them have lost what is known of their type, or look up an index that one task has.
    if plan.is::<CarriedExec>() && plan.children().len() > 1 {
        return true;
    }
    is_exchange_left_out(plan) || is_limit_of_all(plan)
}

/// Whether an operator needs rows together that no exchange below it has put together, because they are in one
/// partition: scans of several tasks would have several such partitions.
fn is_exchange_left_out(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let requirements = plan.input_distribution_requirements();
    let distributions = requirements.per_child_distributions();
    let mut inputs = plan.children().into_iter().zip(distributions);
    inputs.any(|(input, distribution)| {
        let is_needed = !matches!(distribution, Distribution::UnspecifiedDistribution);
        let is_one = input.output_partitioning().partition_count() == 1;
        is_needed && is_one && !is_exchange(input) && !is_whole(input)
    })
}

/// Whether an operator returns no more than some rows of its one partition.
fn is_limit_of_all(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_one = plan.output_partitioning().partition_count() == 1;
    plan.fetch().is_some() && is_one && !is_exchange(plan)
}

/// Whether `datafusion-distributed` ends a stage below an operator.
fn is_exchange(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<CoalescePartitionsExec>()
        || plan.is::<SortPreservingMergeExec>()
        || plan.is::<RepartitionExec>()
}

/// Whether each task reads all rows of an input.
fn is_whole(input: &Arc<dyn ExecutionPlan>) -> bool {
    if input.is::<OrderedRowsExec>() {
        return true;
    }
    let gathered = input.downcast_ref::<CoalescePartitionsExec>();
    gathered.is_some_and(|gathered| gathered.input().is::<BroadcastExec>())
}
