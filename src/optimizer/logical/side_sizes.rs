//! The sizes of a join's sides, as far as the logical plan tells: whether a range join is worth its sort.

use arrow::array::RecordBatch;
use datafusion::datasource::{MemTable, source_as_provider};
use datafusion::logical_expr::{Distinct, FetchType, LogicalPlan};

/// Probe sides with at most this many rows are faster compared with every build row than by sorting a large build side.
const FEW_PROBE_ROWS: usize = 16;

/// Build sides with at most this many rows are sorted in negligible time.
const SMALL_BUILD_ROWS: usize = 1 << 16;

/// Whether the probe side is known to be so small, and the build side may be so large, that sorting the build side would cost more than it saves.
pub(crate) fn is_sort_wasteful(probe: &LogicalPlan, build: &LogicalPlan) -> bool {
    let few = max_rows(probe).is_some_and(|rows| rows <= FEW_PROBE_ROWS);
    few && max_rows(build).is_none_or(|rows| rows > SMALL_BUILD_ROWS)
}

/// The maximum number of rows of a plan, if the plan tells it.
fn max_rows(plan: &LogicalPlan) -> Option<usize> {
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
