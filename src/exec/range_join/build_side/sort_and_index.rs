//! Sorts the collected rows of a build side by equality keys and range key, and prepares its columns for the
//! aggregates.

use std::cell::RefCell;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::workers::Workers;
use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::aggregate::AggregateEvaluator;
use crate::exec::range_join::build_side::collect::CollectedRows;
use crate::exec::range_join::build_side::column::{
    CollectedColumn, ColumnNeeds, ColumnPreparer, PreparedColumn,
};
use crate::exec::range_join::build_side::convert_keys::{convert_keys, split_off};
use crate::exec::range_join::build_side::input_order::restore_order;
use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::build_side::row_order::RowOrder;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::build_side::threshold_index::ThresholdIndex;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::sorted::group_sort::SortContext;
use crate::sorted::permutation::RowPermutation;
use crate::sorted::sort_rows::{RowsPart, sort_rows};
use crate::sorted::sorted_rows::SortedRows;

/// Sorts and indexes collected rows on a blocking thread.
pub(crate) async fn sort_and_index(
    columns: &BuildColumns,
    rows: CollectedRows,
    metrics: &BuildMetrics,
    threads: usize,
) -> Result<BuildSide> {
    let (columns, metrics) = (columns.clone(), metrics.clone());
    let work = move |waiting| sort_and_index_blocking(columns, rows, metrics, threads, waiting);
    blocking(work).await
}

/// Sorts and indexes collected rows on the calling thread, which may block. Between two steps `waiting` is checked; a
/// step can't be stopped.
pub(crate) fn sort_and_index_blocking(
    columns: BuildColumns,
    rows: CollectedRows,
    metrics: BuildMetrics,
    threads: usize,
    waiting: Waiting,
) -> Result<BuildSide> {
    let sorter = SortAndIndex {
        columns,
        metrics,
        threads,
        waiting,
    };
    sorter.run(rows)
}

struct SortAndIndex {
    columns: BuildColumns,
    metrics: BuildMetrics,
    threads: usize,
    waiting: Waiting,
}

/// The sorted keys, and the columns that are still to be sorted, with their memory.
struct Sorted {
    rows: SortedRows,
    rows_memory: MemoryReservation,
    permutation: RowPermutation,
    permutation_memory: MemoryReservation,
    columns: Vec<(CollectedColumn, Arc<MemoryReservation>)>,
    /// The number of rows, with those that can't match.
    total_rows: usize,
}

impl SortAndIndex {
    fn run(self, rows: CollectedRows) -> Result<BuildSide> {
        let types = rows.schema.fields().iter().map(|f| f.data_type().clone());
        let types: Vec<DataType> = types.collect();
        let sort_timer = self.metrics.sort_time.timer();
        let sorted = self.sort(rows, &types)?;
        sort_timer.done();
        let index_timer = self.metrics.index_time.timer();
        let side = self.index(sorted)?;
        index_timer.done();
        Ok(side)
    }

    /// Sorts the keys, and frees the collected ones.
    fn sort(&self, rows: CollectedRows, types: &[DataType]) -> Result<Sorted> {
        let CollectedRows {
            batches, memory, ..
        } = rows;
        let check = || self.waiting.check();
        let batches = if self.columns.row_order_matters() {
            batches
        } else {
            let key = self.columns.num_equality_keys;
            restore_order(batches, &[key..key + 1, 0..key + 1])?
        };
        let columns = self.columns.values(types).iter();
        let mut columns: Vec<CollectedColumn> = columns.map(CollectedColumn::new).collect();
        for batch in &batches {
            let values = self.columns.values(batch.columns());
            for (column, array) in columns.iter_mut().zip(values) {
                column.chunks.arrays.push(Arc::clone(array));
            }
        }
        let rows_memory = memory.new_empty();
        let workers = self.workers(&check);
        let parts = convert_keys(
            &self.columns,
            types,
            batches,
            &memory,
            &rows_memory,
            workers,
        )?;
        let total_rows = parts.iter().map(RowsPart::len).sum();
        self.metrics.build_rows.add(total_rows);
        let columns = columns.into_iter().map(|column| {
            let column_memory = split_off(&memory, column.chunks.bytes());
            column_memory.try_resize(column.chunks.bytes())?;
            Ok((column, Arc::new(column_memory)))
        });
        let columns: Vec<_> = columns.collect::<Result<_>>()?;
        let permutation_memory = memory.new_empty();
        drop(memory);
        let context = SortContext {
            memory: &permutation_memory,
            workers,
        };
        let (rows, permutation) = sort_rows(parts, context)?;
        // Sorting needs more memory than its result.
        rows_memory.try_resize(rows.bytes())?;
        permutation_memory.try_resize(permutation.bytes())?;
        let already_sorted = permutation.is_identity();
        self.metrics.already_sorted.add(usize::from(already_sorted));
        Ok(Sorted {
            rows,
            rows_memory,
            permutation,
            permutation_memory,
            columns,
            total_rows,
        })
    }

    fn workers<'a>(&self, check: &'a (dyn Fn() -> Result<()> + Sync)) -> Workers<'a> {
        Workers::new(self.threads, check)
    }

    /// Prepares the columns, and puts the build side together.
    fn index(&self, sorted: Sorted) -> Result<BuildSide> {
        let Sorted {
            rows,
            rows_memory,
            permutation,
            permutation_memory,
            columns,
            total_rows,
        } = sorted;
        let prepared = self.prepare_columns(columns, &permutation, &permutation_memory)?;
        let row_order = self.row_order(&prepared, rows.len(), &permutation, &permutation_memory)?;
        let kept_bytes = permutation.shared_order_bytes();
        drop(permutation);
        permutation_memory.try_resize(kept_bytes)?;
        let mut aggregates = vec![];
        let calls = self.columns.calls.iter().map(Option::as_ref);
        for ((function, arguments), call) in self.columns.aggregates.iter().zip(calls) {
            let function = (*function, call);
            let memory = &permutation_memory;
            let evaluator = AggregateEvaluator::try_new(function, arguments, &prepared, memory)?;
            aggregates.push(evaluator);
        }
        let matched = if self.columns.marks_rows {
            let memory = permutation_memory.new_empty();
            memory.try_grow(MatchedRows::bytes(total_rows))?;
            Some(MatchedRows::new(total_rows, memory))
        } else {
            None
        };
        let mut memory = vec![Arc::new(rows_memory), Arc::new(permutation_memory)];
        let row_columns = self.columns.row_columns.iter();
        let row_columns = row_columns.filter_map(|column| prepared.get(*column)?.rows.clone());
        let row_columns = row_columns.collect();
        let mut index_bytes = 0;
        for column in prepared {
            index_bytes += column.index_registered_bytes();
            memory.extend(column.memory);
        }
        let other_bytes: usize = memory.iter().map(|m| m.size()).sum();
        let build_mem_used = &self.metrics.build_mem_used;
        build_mem_used.set_max(other_bytes + index_bytes);
        Ok(BuildSide {
            rows,
            total_rows,
            aggregates,
            row_columns,
            row_order: row_order.map(Arc::new),
            threshold_index: Arc::new(ThresholdIndex::new(self.threads)),
            matched,
            _memory: memory,
        })
    }

    /// The order in which rows are returned, if it is not that of the range key.
    fn row_order(
        &self,
        prepared: &[PreparedColumn],
        len: usize,
        permutation: &RowPermutation,
        permutation_memory: &MemoryReservation,
    ) -> Result<Option<RowOrder>> {
        let Some((column, descending)) = self.columns.row_order else {
            return Ok(None);
        };
        let Some(keys) = prepared.get(column).and_then(|column| column.rows.clone()) else {
            return internal_err!("the column that rows are ordered by has not been prepared");
        };
        permutation_memory.try_grow(permutation.order_bytes())?;
        let check = || self.waiting.check();
        let rows = permutation.order(self.workers(&check))?.cloned();
        let memory = permutation_memory.new_empty();
        let order = RowOrder::new((keys, rows), len, descending, self.threads, memory);
        Ok(Some(order))
    }

    fn prepare_columns(
        &self,
        columns: Vec<(CollectedColumn, Arc<MemoryReservation>)>,
        permutation: &RowPermutation,
        permutation_memory: &MemoryReservation,
    ) -> Result<Vec<PreparedColumn>> {
        let check = || self.waiting.check();
        let column_preparer = ColumnPreparer {
            workers: self.workers(&check),
            metrics: &self.metrics,
            waiting: &self.waiting,
            lazy_indexes: RefCell::default(),
        };
        let mut prepared = vec![];
        for (i, (column, memory)) in columns.into_iter().enumerate() {
            let needs = ColumnNeeds::of_column(&self.columns, i);
            let column =
                column_preparer.prepare(column, memory, needs, permutation, permutation_memory)?;
            prepared.push(column);
        }
        Ok(prepared)
    }
}
