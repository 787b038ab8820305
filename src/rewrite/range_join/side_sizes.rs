//! How large the sides of a join are, as far as that is known: whether a range join pays.

use arrow::array::RecordBatch;
use datafusion::datasource::{MemTable, source_as_provider};
use datafusion::logical_expr::{Distinct, FetchType, LogicalPlan};

/// Up to so many rows of the probe side, pairs are compared faster than the build side, which is searched, is sorted.
const FEW_PROBE_ROWS: usize = 16;

/// A build side of at most so many rows is sorted in no time.
const SMALL_BUILD_ROWS: usize = 1 << 16;

/// Whether the probe side is known to be so small that the build side, unless that is small too, had better not be
/// sorted.
pub(crate) fn is_cheaper_unsorted(probe: &LogicalPlan, build: &LogicalPlan) -> bool {
    let few = most_rows(probe).is_some_and(|rows| rows <= FEW_PROBE_ROWS);
    few && most_rows(build).is_none_or(|rows| rows > SMALL_BUILD_ROWS)
}

/// How many rows a plan has at most, where that can be told without running it.
fn most_rows(plan: &LogicalPlan) -> Option<usize> {
    let at_most = |input: &LogicalPlan, limit: Option<usize>| {
        [most_rows(input), limit].into_iter().flatten().min()
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
        LogicalPlan::Aggregate(aggregate) => most_rows(&aggregate.input),
        LogicalPlan::Projection(projection) => most_rows(&projection.input),
        LogicalPlan::Filter(filter) => most_rows(&filter.input),
        LogicalPlan::Window(window) => most_rows(&window.input),
        LogicalPlan::SubqueryAlias(alias) => most_rows(&alias.input),
        LogicalPlan::Distinct(Distinct::All(input)) => most_rows(input),
        LogicalPlan::Sort(sort) => at_most(&sort.input, sort.fetch),
        LogicalPlan::Limit(limit) => match limit.get_fetch_type() {
            Ok(FetchType::Literal(fetch)) => at_most(&limit.input, fetch),
            _ => most_rows(&limit.input),
        },
        LogicalPlan::Union(union) => union.inputs.iter().try_fold(0_usize, |sum, input| {
            Some(sum.saturating_add(most_rows(input)?))
        }),
        _ => None,
    }
}

/// The rows of a table in memory, unless it is being written.
fn rows_in_memory(table: &MemTable) -> Option<usize> {
    table.batches.iter().try_fold(0, |sum, partition| {
        let batches = partition.try_read().ok()?;
        Some(sum + batches.iter().map(RecordBatch::num_rows).sum::<usize>())
    })
}
