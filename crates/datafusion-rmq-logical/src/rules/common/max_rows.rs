//! The size of a join's side, as far as the logical plan tells.

use arrow::array::RecordBatch;
use datafusion_catalog::{MemTable, default_table_source::source_as_provider};
use datafusion_expr::{Distinct, FetchType, LogicalPlan};

/// A side with at most this many rows is compared with all of the other one, by `DataFusion`'s join, in less time than
/// that takes to sort.
pub const FEW_ROWS: usize = 16;

/// A build side of at most this many rows is always sorted: it takes only a few milliseconds.
pub const MAX_EAGERLY_SORTED_ROWS: usize = 1 << 16;

/// Whether the probe side is known to be so small, and the build side may be so large, that sorting the build side
/// would cost more than it saves.
pub fn is_sort_wasteful(probe: &LogicalPlan, build: &LogicalPlan) -> bool {
    let few = max_rows(probe).is_some_and(|rows| rows <= FEW_ROWS);
    few && max_rows(build).is_none_or(|rows| rows > MAX_EAGERLY_SORTED_ROWS)
}

/// The maximum number of rows of a plan, if the plan tells it.
pub fn max_rows(plan: &LogicalPlan) -> Option<usize> {
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
