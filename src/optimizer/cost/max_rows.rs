//! The size of a join's side, as far as the logical plan tells.

use arrow::array::RecordBatch;
use datafusion::datasource::{MemTable, source_as_provider};
use datafusion::logical_expr::{Distinct, FetchType, LogicalPlan};

/// The maximum number of rows of a plan, if the plan tells it.
pub(crate) fn max_rows(plan: &LogicalPlan) -> Option<usize> {
    let at_most = |input: &LogicalPlan, limit: Option<usize>| {
        [max_rows(input), limit].into_iter().flatten().min()
    };
    match plan {
        LogicalPlan::EmptyRelation(empty) => Some(usize::from(empty.produce_one_row)),
        LogicalPlan::Values(values) => Some(values.values.len()),
        LogicalPlan::TableScan(scan) => {
            let provider = source_as_provider(&scan.source).ok();
            let rows = provider.and_then(|p| p.downcast_ref::<MemTable>().and_then(rows_in_memory));
            [rows, scan.fetch].into_iter().flatten().min()
        }
        LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => Some(1),
        LogicalPlan::Aggregate(aggregate) => max_rows(&aggregate.input),
        LogicalPlan::Projection(projection) => max_rows(&projection.input),
        LogicalPlan::Filter(filter) => max_rows(&filter.input),
        LogicalPlan::Window(window) => max_rows(&window.input),
        LogicalPlan::SubqueryAlias(alias) => max_rows(&alias.input),
        LogicalPlan::Distinct(Distinct::All(input)) => max_rows(input),
        LogicalPlan::Sort(sort) => at_most(&sort.input, sort.fetch),
        LogicalPlan::Limit(limit) => match limit.get_fetch_type() {
            Ok(FetchType::Literal(fetch)) => at_most(&limit.input, fetch),
            _ => max_rows(&limit.input),
        },
        LogicalPlan::Union(union) => union.inputs.iter().try_fold(0_usize, |sum, input| {
            Some(sum.saturating_add(max_rows(input)?))
        }),
        _ => None,
    }
}

/// The number of rows of a table in memory; `None` while it is being written.
fn rows_in_memory(table: &MemTable) -> Option<usize> {
    table.batches.iter().try_fold(0, |sum, partition| {
        let batches = partition.try_read().ok()?;
        Some(sum + batches.iter().map(RecordBatch::num_rows).sum::<usize>())
    })
}
