//! The source whose rows a plan returns, expressions over its columns, and samples of their values.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::interleave;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};

use crate::exec::common::versioned_scan::VersionedScanExec;
use rmq_arrow::common::dictionaries::has_few_keys;

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

/// The input of a plan that adds columns to all of its rows, after those of the input.
fn below_window(plan: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    match plan.downcast_ref::<BoundedWindowAggExec>() {
        Some(window) => Some(window.input()),
        None => Some(plan.downcast_ref::<WindowAggExec>()?.input()),
    }
}

/// The input of an aggregate that has only groups and, as the domain of a subquery does, their keys once more as
/// values, and its columns over that input.
fn distinct_rows(
    aggregate: &AggregateExec,
) -> Option<(&Arc<dyn ExecutionPlan>, Vec<PhysicalExprRef>)> {
    let mut first = aggregate;
    if !matches!(
        aggregate.mode(),
        AggregateMode::Single | AggregateMode::SinglePartitioned
    ) {
        // The aggregate of each partition, below.
        let mut plan = aggregate.input();
        while moves_rows(plan) {
            plan = plan.children().first()?;
        }
        first = plan.downcast_ref::<AggregateExec>()?;
        if !matches!(first.mode(), AggregateMode::Partial) {
            return None;
        }
    }
    let groups = first.group_expr();
    if !groups.is_single() {
        return None;
    }
    let mut columns: Vec<PhysicalExprRef> = vec![];
    columns.extend(groups.expr().iter().map(|(expr, _)| Arc::clone(expr)));
    for call in first.aggr_expr() {
        let [argument] = &call.expressions()[..] else {
            return None;
        };
        let is_key = columns[..groups.expr().len()].contains(argument);
        if call.fun().name() != "first_value" || !is_key {
            return None;
        }
        columns.push(Arc::clone(argument));
    }
    Some((first.input(), columns))
}

/// A source, and expressions over its columns.
pub(crate) type Source<'a> = (&'a Arc<dyn ExecutionPlan>, Vec<PhysicalExprRef>);

/// The source whose rows a plan returns, perhaps fewer, and the keys over its columns, if there is one.
pub(crate) fn source_of<'a>(
    mut plan: &'a Arc<dyn ExecutionPlan>,
    keys: &[&PhysicalExprRef],
) -> Result<Option<Source<'a>>> {
    if keys.iter().any(|key| is_volatile(key)) {
        return Ok(None);
    }
    let mut keys: Vec<PhysicalExprRef> = keys.iter().map(|key| Arc::clone(key)).collect();
    loop {
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
        } else if let Some(input) = below_window(plan)
            && let columns = input.schema().fields().len()
            && keys
                .iter()
                .flat_map(collect_columns)
                .all(|column| column.index() < columns)
        {
            plan = input;
        } else if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
            let Some((input, groups)) = distinct_rows(aggregate) else {
                return Ok(None);
            };
            keys = over(keys, |column| Arc::clone(&groups[column.index()]))?;
            plan = input;
        } else if let Some(scan) = plan.downcast_ref::<VersionedScanExec>() {
            plan = scan.hidden();
        } else if moves_rows(plan)
            && let [input] = plan.children()[..]
        {
            plan = input;
        } else {
            let is_source = plan.is::<DataSourceExec>();
            return Ok(is_source.then_some((plan, keys)));
        }
    }
}

/// The table in memory that a source is, and keys over its columns, if it is one.
pub(crate) fn table_of(
    source: &Arc<dyn ExecutionPlan>,
    keys: Vec<PhysicalExprRef>,
) -> Result<Option<(&MemorySourceConfig, Vec<PhysicalExprRef>)>> {
    let source = source.downcast_ref::<DataSourceExec>();
    let Some(memory) = source.and_then(|s| s.data_source().downcast_ref::<MemorySourceConfig>())
    else {
        return Ok(None);
    };
    let keys = match memory.projection() {
        Some(projection) => over(keys, |column| moved(column, projection[column.index()]))?,
        None => keys,
    };
    Ok(Some((memory, keys)))
}

/// The values of expressions on a sample of the rows of an in-memory table, at most so many. `None` if the plan is not
/// one, an expression can't be evaluated on its rows, or it has fewer than two.
pub(crate) fn sampled(
    plan: &Arc<dyn ExecutionPlan>,
    keys: &[&PhysicalExprRef],
    most: usize,
) -> Result<Option<Vec<ArrayRef>>> {
    let Some((source, keys)) = source_of(plan, keys)? else {
        return Ok(None);
    };
    let Some((memory, keys)) = table_of(source, keys)? else {
        return Ok(None);
    };
    let columns: BTreeSet<usize> = keys
        .iter()
        .flat_map(|key| collect_columns(key).into_iter().map(|c| c.index()))
        .collect();
    let columns: Vec<usize> = columns.into_iter().collect();
    let keys = over(keys, |column| {
        let at = columns.partition_point(|other| *other < column.index());
        moved(column, at)
    })?;
    let batches: Vec<_> = memory
        .partitions()
        .iter()
        .flatten()
        .filter(|b| b.num_rows() > 0)
        .collect();
    let starts: Vec<usize> = batches
        .iter()
        .scan(0, |end, batch| {
            let start = *end;
            *end += batch.num_rows();
            Some(start)
        })
        .collect();
    let rows: usize = batches.iter().map(|batch| batch.num_rows()).sum();
    if rows < 2 {
        return Ok(None);
    }
    let chosen: BTreeSet<usize> = if rows <= most {
        (0..rows).collect()
    } else {
        (0..most).map(|i| scattered(i) % rows).collect()
    };
    let chosen = chosen.into_iter().map(|row| {
        let batch = starts.partition_point(|start| *start <= row) - 1;
        (batch, row - starts[batch])
    });
    let chosen: Vec<(usize, usize)> = chosen.collect();
    let types = memory.original_schema();
    // Arrow panics where a dictionary's keys are too narrow for the values of all batches.
    if columns
        .iter()
        .any(|column| has_few_keys(types.field(*column).data_type()))
    {
        return Ok(None);
    }
    let sampled = columns.iter().map(|column| {
        let arrays: Vec<&dyn Array> = batches.iter().map(|b| b.column(*column).as_ref()).collect();
        Ok(interleave(&arrays, &chosen)?)
    });
    let schema = Arc::new(types.project(&columns)?);
    let options = RecordBatchOptions::new().with_row_count(Some(chosen.len()));
    let sampled = sampled.collect::<Result<_>>()?;
    let sampled = RecordBatch::try_new_with_options(schema, sampled, &options)?;
    let arrays = keys.iter().map(|key| {
        let values = key.evaluate(&sampled).ok()?;
        values.into_array(sampled.num_rows()).ok()
    });
    // What fails here need not fail in the join.
    Ok(arrays.collect())
}

/// A number that seems random, by `SplitMix64`: rows at one distance from each other may have the same keys.
fn scattered(i: usize) -> usize {
    let mut bits = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    usize::try_from((bits ^ (bits >> 31)) >> 1).unwrap_or(i)
}
