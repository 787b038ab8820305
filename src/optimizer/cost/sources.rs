//! The source whose rows a plan returns, and expressions over its columns.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;

/// Expressions with others in place of their columns.
pub(crate) fn over(
    exprs: Vec<PhysicalExprRef>,
    replace: impl Fn(&Column) -> PhysicalExprRef,
) -> Result<Vec<PhysicalExprRef>> {
    let replaced = exprs.into_iter().map(|expr| {
        let replaced = expr.transform_up(|e| {
            Ok(match e.downcast_ref::<Column>() {
                Some(column) => Transformed::yes(replace(column)),
                None => Transformed::no(e),
            })
        });
        Ok(replaced?.data)
    });
    replaced.collect()
}

/// The same column at another place.
pub(crate) fn moved(column: &Column, index: usize) -> PhysicalExprRef {
    Arc::new(Column::new(column.name(), index))
}

/// Whether an operator returns the rows of its input, in another order or in other partitions.
fn moves_rows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let moves = plan.is::<CoalescePartitionsExec>()
        || plan.is::<RepartitionExec>()
        || plan.is::<SortExec>();
    moves && plan.fetch().is_none()
}

/// The source whose rows a plan returns, perhaps fewer, and the keys over its columns, if there is one.
pub(crate) fn source_of<'a>(
    mut plan: &'a Arc<dyn ExecutionPlan>,
    keys: &[&PhysicalExprRef],
) -> Result<Option<(&'a DataSourceExec, Vec<PhysicalExprRef>)>> {
    if keys.iter().any(|key| is_volatile(key)) {
        return Ok(None);
    }
    let mut keys: Vec<PhysicalExprRef> = keys.iter().map(|key| Arc::clone(key)).collect();
    let source = loop {
        if let Some(filter) = plan.downcast_ref::<FilterExec>() {
            if let Some(projection) = filter.projection() {
                keys = over(keys, |column| moved(column, projection[column.index()]))?;
            }
            plan = filter.input();
        } else if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
            let exprs = projection.expr();
            if exprs.iter().any(|e| is_volatile(&e.expr)) {
                return Ok(None);
            }
            keys = over(keys, |column| Arc::clone(&exprs[column.index()].expr))?;
            plan = projection.input();
        } else if moves_rows(plan)
            && let [input] = plan.children()[..]
        {
            plan = input;
        } else {
            break plan.downcast_ref::<DataSourceExec>();
        }
    };
    Ok(source.map(|source| (source, keys)))
}

/// The table in memory that a source is, and keys over its columns, if it is one.
pub(crate) fn table_of(
    source: &DataSourceExec,
    keys: Vec<PhysicalExprRef>,
) -> Result<Option<(&MemorySourceConfig, Vec<PhysicalExprRef>)>> {
    let Some(memory) = source.data_source().downcast_ref::<MemorySourceConfig>() else {
        return Ok(None);
    };
    let keys = match memory.projection() {
        Some(projection) => over(keys, |column| moved(column, projection[column.index()]))?,
        None => keys,
    };
    Ok(Some((memory, keys)))
}
