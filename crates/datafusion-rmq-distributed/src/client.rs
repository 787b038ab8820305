//! The session that plans queries and gives their parts to workers.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{Distribution, ExecutionPlan, ExecutionPlanProperties};
use datafusion_distributed::{
    BroadcastExec, DesiredTaskCountEvent, DesiredTaskCountEventResponse, DesiredTaskCountHandler,
    DistributedExec, DistributedExt, NetworkBoundaryExt, SessionStateBuilderExt as _,
    WorkerResolver,
};
use datafusion_rmq::parts::{OrderedRowsExec, has_all_rows};
use datafusion_rmq::physical_plan::{JoinMode, RangeJoinExec};
use datafusion_rmq::{JoinModeChoice, RmqOptions, SessionRole, SessionStateBuilderExt as _};
use datafusion_rmq_proto::{CarriedExec, RmqCodec, portable};
use url::Url;

use crate::divided_files::DivideFiles;
use crate::modes::{ChooseModes, size};

/// Registers datafusion-rmq and datafusion-distributed with a session that is being built, in the order that they need:
/// queries are planned with range joins and range lookups, and divided among the workers at the addresses of
/// `resolver`.
///
/// Call it after the configuration, the catalog list and the optimizers' rules have been set. It calls
/// [`with_distributed_planner`](datafusion_distributed::SessionStateBuilderExt::with_distributed_planner), which you do
/// not. `codec` writes the plans; workers have one of the same release.
///
/// In the mode `auto` (`rmq.join_mode`) the query planner chooses for each range join what is less work by the bytes of
/// both sides and the number of workers: to send the searched side to all tasks, to let each read its slice from the
/// files, or to divide both sides by hashes of the equality keys. A searched side, or a slice, of more than
/// `broadcast_limit` bytes by statistics is not for each task: a join that can't be divided has one task then.
#[must_use]
pub fn client(
    builder: SessionStateBuilder,
    resolver: impl WorkerResolver,
    codec: &RmqCodec,
    broadcast_limit: usize,
) -> SessionStateBuilder {
    let mut builder = builder.with_rmq_sharing(codec.indexes());
    let resolver = Arc::new(resolver);
    let config = builder.config().get_or_insert_default();
    let mut options = RmqOptions::of(config.options());
    options.role = SessionRole::DividesPlans;
    if options.join_mode == JoinModeChoice::Shared {
        options.join_mode = JoinModeChoice::Auto;
    }
    config.set_distributed_option_extension(options);
    let workers = Arc::clone(&resolver);
    // `with_rmq_sharing` has set one.
    if let Some(optimizer) = builder.physical_optimizers() {
        ChooseModes::new(move || workers.get_urls(), broadcast_limit).add_to(&mut optimizer.rules);
    }
    // `with_rmq_sharing` has set one.
    let planner = std::mem::take(builder.query_planner());
    if let Some(planner) = planner {
        builder = builder.with_query_planner(Arc::new(ForWorkers {
            planner,
            broadcast_limit,
        }));
    }
    let mut builder = builder
        .with_distributed_worker_resolver(Shared(resolver))
        .with_distributed_user_codec(codec.clone())
        .with_distributed_desired_task_count_handler(TaskCounts { broadcast_limit })
        .with_distributed_scale_up_leaf_node_handler(DivideFiles)
        .with_distributed_planner();
    let planner = std::mem::take(builder.query_planner());
    match planner {
        Some(planner) => builder.with_query_planner(Arc::new(Divided {
            planner,
            codec: codec.clone(),
        })),
        None => builder,
    }
}

/// The addresses of workers, for several users.
struct Shared<R>(Arc<R>);

impl<R: WorkerResolver> WorkerResolver for Shared<R> {
    fn get_urls(&self) -> Result<Vec<Url>> {
        self.0.get_urls()
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
            match join {
                Some(join) if self.may_broadcast(join)? => {
                    Ok(Transformed::yes(with_broadcast(&plan, join)?))
                }
                _ => Ok(Transformed::no(plan)),
            }
        })?;
        portable(plan.data)
    }
}

/// Takes copies for several tasks out of plans that are not divided, and checks what is sent of those that are.
#[derive(Debug)]
struct Divided {
    planner: Arc<dyn QueryPlanner + Send + Sync>,
    codec: RmqCodec,
}

#[async_trait]
impl QueryPlanner for Divided {
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
            self.check_stages(&plan, false)?;
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

impl Divided {
    /// Checks the operators of the stages that are sent: all but the first.
    fn check_stages(&self, plan: &Arc<dyn ExecutionPlan>, is_sent: bool) -> Result<()> {
        if is_sent {
            self.codec.check(plan)?;
        }
        let is_sent = is_sent || plan.is_network_boundary();
        let mut inputs = plan.children().into_iter();
        inputs.try_for_each(|input| self.check_stages(input, is_sent))
    }
}

impl ForWorkers {
    /// Whether each task of the join may read its whole searched side.
    fn may_broadcast(&self, join: &RangeJoinExec) -> Result<bool> {
        if join.mode() != JoinMode::Collected || join.needs_one_task() {
            return Ok(false);
        }
        let in_order = join.build().downcast_ref::<OrderedRowsExec>();
        if in_order.is_some_and(OrderedRowsExec::is_sliced) {
            return Ok(false);
        }
        let build = in_order.map_or(join.build(), OrderedRowsExec::hidden);
        let Some(bytes) = size(build).filter(|bytes| *bytes > self.broadcast_limit) else {
            return Ok(in_order.is_none());
        };
        let reason = join.why_shared()?;
        let reason = reason.map_or_else(String::new, |reason| format!(", as {reason}"));
        log::warn!(
            "{}: its searched side has about {bytes} bytes, more than the {} that each task may have, so one task runs it{reason}",
            join.label(),
            self.broadcast_limit
        );
        Ok(false)
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
            let bytes = size(rows.hidden()).filter(|_| !rows.is_sliced());
            let is_large = bytes.is_some_and(|bytes| bytes > self.broadcast_limit);
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
            JoinMode::Collected => join.needs_one_task() || !is_read_whole(join.build()),
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
        is_needed && is_one && !is_exchange(input) && !is_read_whole(input)
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
fn is_read_whole(input: &Arc<dyn ExecutionPlan>) -> bool {
    let gathered = input.downcast_ref::<CoalescePartitionsExec>();
    let is_copied = gathered.is_some_and(|gathered| gathered.input().is::<BroadcastExec>());
    is_copied || has_all_rows(input)
}
