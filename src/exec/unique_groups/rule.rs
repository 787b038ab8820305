//! Finds aggregates over range joins whose groups may be single rows.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_expr::{Distribution, Partitioning};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::tree_node::PlanContext;
use datafusion::physical_plan::union::InterleaveExec;

use crate::common::options::RmqOptions;
use crate::exec::range_join::exec::RangeJoinExec;
use crate::exec::unique_groups::exec::UniqueGroupsExec;
use crate::exec::unique_groups::pattern::GroupsOfOne;
use crate::exec::unique_groups::replay::ReplayExec;

/// Puts [`UniqueGroupsExec`] above aggregates over range joins by key: what is grouped by is a key of the probe side, often.
///
/// It stands last: the aggregate's rows are then no longer where their hashes say, which other rules would have to know of.
#[derive(Debug)]
pub struct UseUniqueGroups;

impl PhysicalOptimizerRule for UseUniqueGroups {
    fn name(&self) -> &'static str {
        "rmq_use_unique_groups"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if !RmqOptions::of(config).rewrite || !plan.exists(|p| Ok(p.is::<RangeJoinExec>()))? {
            return Ok(plan);
        }
        let plan = PlanContext::<MayMove>::new_default(plan);
        let plan = plan.transform_down(|mut node| {
            if node.data.0
                && let Some(unique) = with_unique_groups(&node.plan)?
            {
                node = PlanContext::new_default(unique);
            }
            note_below(&mut node);
            Ok(Transformed::yes(node))
        })?;
        Ok(plan.data.plan)
    }
}

/// Whether a plan's rows may lie in other partitions than they do.
struct MayMove(bool);

impl Default for MayMove {
    fn default() -> Self {
        Self(true)
    }
}

/// Notes whether the rows of a plan's children may move.
fn note_below(node: &mut PlanContext<MayMove>) {
    let plan = &node.plan;
    let is_exchange = plan.is::<RepartitionExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<SortPreservingMergeExec>();
    // The aggregate below the operator is one that has it already.
    let is_fixed = plan.is::<InterleaveExec>() || plan.is::<UniqueGroupsExec>();
    let requirements = plan.input_distribution_requirements();
    let distributions = requirements.per_child_distributions();
    let is_build = |child| plan.is::<RangeJoinExec>() && child == 1;
    for (i, (child, distribution)) in node.children.iter_mut().zip(distributions).enumerate() {
        let may_move = match distribution {
            // Its rows are put together, however they lie.
            _ if is_build(i) => true,
            Distribution::UnspecifiedDistribution => is_exchange || node.data.0,
            Distribution::SinglePartition => true,
            _ => false,
        };
        child.data = MayMove(may_move && !is_fixed);
    }
}

/// The aggregate with [`UniqueGroupsExec`] above it, if `plan` is one for which that is of use.
fn with_unique_groups(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(groups) = GroupsOfOne::of(plan) else {
        return Ok(None);
    };
    if !gives_a_range_join(&groups.input) {
        return Ok(None);
    }
    let unique = UniqueGroupsExec::over(&with_replay(plan, &groups.input)?)?;
    Ok(unique.map(|unique| Arc::new(unique) as _))
}

/// Whether rows are those of a range join by key, about as they left it. By their hashes they would not come in order.
fn gives_a_range_join(mut plan: &Arc<dyn ExecutionPlan>) -> bool {
    loop {
        if plan.is::<RangeJoinExec>() {
            return true;
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

/// The plan with [`ReplayExec`] above the input given, which is below it.
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
    // It has the properties of its input.
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
    Arc::clone(plan).replace_children(children, options)
}
