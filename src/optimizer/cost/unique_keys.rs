//! Whether keys are unique, as those of a subquery with GROUP BY are.

use std::sync::Arc;

use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;

/// Whether no two rows of a plan have the same keys: they have all that an aggregate is grouped by.
pub(crate) fn are_unique(plan: &Arc<dyn ExecutionPlan>, keys: &[&PhysicalExprRef]) -> bool {
    let keys = keys.iter().filter_map(|key| index_of(key)).collect();
    are_groups(plan, keys)
}

fn index_of(expr: &PhysicalExprRef) -> Option<usize> {
    expr.downcast_ref::<Column>().map(Column::index)
}

/// Whether no two rows of a plan have the same values in the columns with these indexes.
fn are_groups(plan: &Arc<dyn ExecutionPlan>, keys: Vec<usize>) -> bool {
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        let groups = aggregate.group_expr();
        let is_last = matches!(
            aggregate.mode(),
            AggregateMode::Single
                | AggregateMode::SinglePartitioned
                | AggregateMode::Final
                | AggregateMode::FinalPartitioned
        );
        return is_last
            && groups.is_single()
            && (0..groups.expr().len()).all(|group| keys.contains(&group));
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let exprs = projection.expr();
        let below = keys
            .iter()
            .filter_map(|key| index_of(&exprs.get(*key)?.expr));
        return are_groups(projection.input(), below.collect());
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let below = match filter.projection() {
            Some(projection) => keys
                .iter()
                .filter_map(|key| projection.get(*key).copied())
                .collect(),
            None => keys,
        };
        return are_groups(filter.input(), below);
    }
    let moves_rows = plan.is::<CoalescePartitionsExec>()
        || plan.is::<RepartitionExec>()
        || plan.is::<SortExec>();
    match plan.children().as_slice() {
        [input] if moves_rows => are_groups(input, keys),
        _ => false,
    }
}
