//! The session that plans queries and sends the plans to a scheduler.

use std::sync::Arc;

use async_trait::async_trait;
use ballista_core::extension::SessionConfigExt;
use datafusion::catalog::Session;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result, plan_err};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, PiecewiseMergeJoinExec};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, Partitioning, replace_children_if_necessary,
};
use datafusion_rmq::parts::OrderedRowsExec;
use datafusion_rmq::{JoinModeChoice, RmqOptions, SessionRole, SessionStateBuilderExt};
use datafusion_rmq_proto::{RmqCodec, check_all_windows};

use crate::slices::ReadSlices;
use crate::{SentExec, physical_codec};

/// Registers datafusion-rmq with a session that is being built, and sends the plans of its queries over files to the
/// scheduler at an address such as `http://10.0.0.7:50050`. Other queries are executed by the session itself.
///
/// Call it after the configuration, the catalog list and the optimizers' rules have been set, and not
/// `upgrade_for_ballista` of a session, which would take the planner's place: it is called for the configuration.
#[must_use]
pub fn client(
    builder: SessionStateBuilder,
    scheduler: &str,
    codec: &RmqCodec,
) -> SessionStateBuilder {
    let mut builder = builder.with_rmq_sharing(codec.indexes());
    let config = std::mem::take(builder.config()).unwrap_or_default();
    let mut options = RmqOptions::of(config.options());
    options.role = SessionRole::DividesPlans;
    if options.join_mode == JoinModeChoice::Shared {
        options.join_mode = JoinModeChoice::Auto;
    }
    let config = config.upgrade_for_ballista().with_option_extension(options);
    let mut builder = builder.with_config(config);
    // `with_rmq_sharing` has set one.
    if let Some(optimizer) = builder.physical_optimizers() {
        ReadSlices.add_to(&mut optimizer.rules);
    }
    // `with_rmq_sharing` has set one.
    let planner = std::mem::take(builder.query_planner());
    match planner {
        Some(planner) => builder.with_query_planner(Arc::new(SendPlans {
            planner,
            scheduler: scheduler.to_string(),
            codec: codec.clone(),
        })),
        None => builder,
    }
}

/// Sends the plans of another planner.
#[derive(Debug)]
struct SendPlans {
    planner: Arc<dyn QueryPlanner + Send + Sync>,
    scheduler: String,
    codec: RmqCodec,
}

#[async_trait]
impl QueryPlanner for SendPlans {
    async fn create_physical_plan(
        &self,
        logical_plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = self
            .planner
            .create_physical_plan(logical_plan, session)
            .await?;
        let is_described = matches!(logical_plan, LogicalPlan::Explain(_));
        if is_described || !reads_files(&plan)? {
            return Ok(plan);
        }
        let plan = sorted_after_exchanges(without_left_rows(plan)?)?;
        check_all_windows(&plan)?;
        plan.apply(|operator| {
            check(operator)?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        let codec = physical_codec(&self.codec);
        Ok(Arc::new(SentExec::new(plan, self.scheduler.clone(), codec)))
    }
}

fn reads_files(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    plan.exists(|operator| {
        if let Some(rows) = operator.downcast_ref::<OrderedRowsExec>() {
            return reads_files(rows.hidden());
        }
        let scan = operator.downcast_ref::<DataSourceExec>();
        Ok(scan.is_some_and(|scan| scan.data_source().is::<FileScanConfig>()))
    })
}

/// Refuses what Ballista 55 would divide so that rows are lost or repeated.
///
/// It plans the input of each exchange again, up to the exchanges below, whose rows have no order then: it would put
/// rows together without their order, or without a limit, and not at all where no operator asks for it.
fn check(operator: &Arc<dyn ExecutionPlan>) -> Result<()> {
    if let Some(exchange) = operator.downcast_ref::<RepartitionExec>() {
        let partitioning = exchange.partitioning();
        if !matches!(
            partitioning,
            Partitioning::Hash(..) | Partitioning::RoundRobinBatch(_)
        ) {
            return plan_err!(
                "Ballista 55 leaves out an exchange of rows that is not by hash: {partitioning}"
            );
        }
    } else if !operator.is::<CoalescePartitionsExec>() {
        return Ok(());
    }
    operator.children()[0].apply(|below| {
        let is_merge = below.is::<SortPreservingMergeExec>();
        let is_coalesce = below.is::<CoalescePartitionsExec>();
        if is_merge || is_coalesce && below.fetch().is_some() {
            return plan_err!(
                "Ballista 55 loses ORDER BY and LIMIT of a subquery whose rows are exchanged: write them to a table first, \
                 or ask one node"
            );
        }
        // It takes the operator away that puts the rows of a side together.
        if returns_left_rows(below) && below.children()[1].is::<CoalescePartitionsExec>() {
            return plan_err!(
                "Ballista 55 repeats rows of a FULL JOIN without equality keys whose rows are exchanged: write them to a \
                 table first, or ask one node"
            );
        }
        let hash_join = below.downcast_ref::<HashJoinExec>();
        if hash_join.is_some_and(|join| join.null_aware) {
            return plan_err!(
                "Ballista 55 changes a NOT IN whose rows are exchanged: write NOT EXISTS, or ask one node"
            );
        }
        let is_boundary = is_coalesce || below.is::<RepartitionExec>();
        Ok(if is_boundary { TreeNodeRecursion::Jump } else { TreeNodeRecursion::Continue })
    })?;
    Ok(())
}

/// Sorts after exchanges that keep an order, which Ballista writes without it.
fn sorted_after_exchanges(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = plan.transform_up(|plan| {
        let exchange = plan.downcast_ref::<RepartitionExec>();
        let Some(exchange) = exchange.filter(|exchange| exchange.preserve_order()) else {
            return Ok(Transformed::no(plan));
        };
        let order = plan.output_ordering().cloned();
        let partitioning = exchange.partitioning().clone();
        let rows = RepartitionExec::try_new(Arc::clone(exchange.input()), partitioning)?;
        Ok(Transformed::yes(match order {
            Some(order) => {
                Arc::new(SortExec::new(order, Arc::new(rows)).with_preserve_partitioning(true))
            }
            None => Arc::new(rows),
        }))
    })?;
    Ok(plan.data)
}

/// Whether an operator is a join without equality keys that returns rows of its left side by whether they matched.
fn returns_left_rows(operator: &Arc<dyn ExecutionPlan>) -> bool {
    use JoinType::{Inner, Right, RightAnti, RightMark, RightSemi};
    let nested = operator.downcast_ref::<NestedLoopJoinExec>();
    let merged = operator.downcast_ref::<PiecewiseMergeJoinExec>();
    let kind = nested.map(|join| *join.join_type());
    let kind = kind.or(merged.map(|join| join.join_type));
    kind.is_some_and(|kind| !matches!(kind, Inner | Right | RightSemi | RightAnti | RightMark))
}

/// Changes the sides of joins without equality keys that return rows of their left side: each task reads that side
/// whole, and would return these rows again. FULL joins, which return rows of both sides, have one task.
fn without_left_rows(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = plan.transform_up(|plan| {
        let inputs = plan.children().into_iter().cloned().collect::<Vec<_>>();
        let [left, right] = inputs.as_slice() else {
            return Ok(Transformed::no(plan));
        };
        if !returns_left_rows(&plan) || right.output_partitioning().partition_count() == 1 {
            return Ok(Transformed::no(plan));
        }
        let right = Arc::new(CoalescePartitionsExec::new(Arc::clone(right))) as _;
        let in_one_task =
            replace_children_if_necessary(Arc::clone(&plan), vec![Arc::clone(left), right])?;
        let join = in_one_task.downcast_ref::<NestedLoopJoinExec>();
        Ok(Transformed::yes(match join {
            Some(join) if *join.join_type() != JoinType::Full => join.swap_inputs()?,
            _ => in_one_task,
        }))
    })?;
    Ok(plan.data)
}
