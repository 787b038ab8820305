//! The rule that puts [`UniqueGroupsExec`] above aggregates over range joins. The documentation of
//! [`exec::unique_groups`](crate::exec::unique_groups) shows the plans.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_expr::{Distribution, Partitioning};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::tree_node::PlanContext;
use datafusion::physical_plan::union::InterleaveExec;

use crate::exec::range_join::exec::RangeJoinExec;
use crate::exec::range_join::mode::JoinMode;
use crate::exec::unique_groups::exec::UniqueGroupsExec;
use crate::exec::unique_groups::pattern::SingletonGroups;
use crate::exec::unique_groups::replay::ReplayExec;
use crate::optimizer::physical::physical_rule::physical_rule;
use datafusion_rmq_logical::common::options::RmqOptions;

physical_rule!(
    /// Puts [`UniqueGroupsExec`] above aggregates over range joins, whose grouping columns are often a key of the probe
    /// side.
    ///
    /// It must be the last physical rule: afterwards, rows are no longer in the partitions of their hashes, which other
    /// rules rely on. It does nothing if `rmq.rewrite` is false, or if a plan may be divided into tasks, as
    /// `rmq.join_mode = 'collected'` says: the operator and the one below the aggregate share memory.
    UseUniqueGroups,
    "rmq_use_unique_groups",
    use_unique_groups
);

fn use_unique_groups(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    if !RmqOptions::rewrites(config)
        || JoinMode::planned(config) == JoinMode::Collected
        || !plan.exists(|p| Ok(p.is::<RangeJoinExec>()))?
    {
        return Ok(plan);
    }
    let plan = PlanContext::<MayRepartition>::new_default(plan);
    let plan = plan.transform_down(|mut node| {
        if node.data.0
            && let Some(unique) = with_unique_groups(&node.plan)?
        {
            node = PlanContext::new_default(unique);
        }
        mark_children(&mut node);
        Ok(Transformed::yes(node))
    })?;
    Ok(plan.data.plan)
}

/// Whether the plan above still works if a plan's rows are in other partitions.
struct MayRepartition(bool);

impl Default for MayRepartition {
    fn default() -> Self {
        Self(true)
    }
}

/// Marks for each child whether its rows may be in other partitions.
fn mark_children(node: &mut PlanContext<MayRepartition>) {
    let plan = &node.plan;
    let is_exchange = plan.is::<RepartitionExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<SortPreservingMergeExec>();
    // The aggregate below a UniqueGroupsExec already has the operator.
    let is_fixed = plan.is::<InterleaveExec>() || plan.is::<UniqueGroupsExec>();
    let requirements = plan.input_distribution_requirements();
    let distributions = requirements.per_child_distributions();
    let is_shared_build = |child| {
        let join = plan.downcast_ref::<RangeJoinExec>();
        child == 1 && join.is_some_and(|join| join.mode() == JoinMode::Shared)
    };
    for (i, (child, distribution)) in node.children.iter_mut().zip(distributions).enumerate() {
        let may_repartition = match distribution {
            // The build side is collected from all partitions.
            _ if is_shared_build(i) => true,
            Distribution::UnspecifiedDistribution => is_exchange || node.data.0,
            Distribution::SinglePartition => true,
            _ => false,
        };
        child.data = MayRepartition(may_repartition && !is_fixed);
    }
}

/// The aggregate with [`UniqueGroupsExec`] above it, if `plan` is an aggregate that matches.
fn with_unique_groups(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(groups) = SingletonGroups::match_aggregate(plan) else {
        return Ok(None);
    };
    if !reads_range_join(&groups.input) {
        return Ok(None);
    }
    let unique = UniqueGroupsExec::over(&with_replay(plan, &groups.input)?)?;
    Ok(unique.map(|unique| Arc::new(unique) as _))
}

/// Whether a plan returns the rows of a range join in about their order. A hash repartition would destroy it.
fn reads_range_join(mut plan: &Arc<dyn ExecutionPlan>) -> bool {
    loop {
        if let Some(join) = plan.downcast_ref::<RangeJoinExec>() {
            // Pairs have most probe rows several times.
            return !join.returns_rows();
        }
        let passes_on = plan.is::<ProjectionExec>()
            || plan.is::<FilterExec>()
            || plan
                .downcast_ref::<RepartitionExec>()
                .is_some_and(|r| matches!(r.partitioning(), Partitioning::RoundRobinBatch(_)));
        match plan.children().first() {
            Some(below) if passes_on => plan = *below,
            _ => return false,
        }
    }
}

/// Inserts a [`ReplayExec`] above `input`, which is `plan` or below it.
fn with_replay(
    plan: &Arc<dyn ExecutionPlan>,
    input: &Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if Arc::ptr_eq(plan, input) {
        return Ok(Arc::new(ReplayExec::new(Arc::clone(plan))));
    }
    let children = plan.children().into_iter();
    let children = children.map(|child| with_replay(child, input));
    let children = children.collect::<Result<_>>()?;
    // A ReplayExec has the properties of its input.
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
    Arc::clone(plan).replace_children(children, options)
}
