//! Sorts the collected rows of a build side by equality keys and range key, and prepares its columns for the
//! aggregates.

use std::cell::RefCell;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::workers::Workers;
use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::aggregate::AggregateEvaluator;
use crate::exec::range_join::build_side::collect_or_spill::CollectedRows;
use crate::exec::range_join::build_side::column::{
    CollectedColumn, ColumnNeeds, ColumnPreparer, PreparedColumn,
};
use crate::exec::range_join::build_side::convert_keys::{convert_keys, split_off};
use crate::exec::range_join::build_side::input_order::restore_order;
use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::build_side::row_order::RowOrder;
use crate::exec::range_join::build_side::side::{BuildSide, Movement, SortedSide};
use crate::exec::range_join::build_side::threshold_index::ThresholdIndex;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::sorted::group_sort::SortContext;
use crate::sorted::permutation::RowPermutation;
use crate::sorted::sort_rows::{RowsPart, sort_rows};

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
    let indexer = SortAndIndex {
        columns,
        metrics,
        threads,
        waiting,
    };
    let memory = rows.memory.new_empty();
    let (sorted, prepared) = indexer.run(rows)?;
    let row_order = indexer.row_order(&sorted, &prepared)?;
    let sorted = Arc::new(sorted.without_permutation()?);
    let threshold_index = Arc::new(ThresholdIndex::new(threads));
    indexer.side(sorted, prepared, row_order, threshold_index, &memory)
}

/// Sorts and indexes the rows of a build side.
pub(crate) struct SortAndIndex {
    pub(crate) columns: BuildColumns,
    pub(crate) metrics: BuildMetrics,
    pub(crate) threads: usize,
    pub(crate) waiting: Waiting,
}

/// The sorted keys, and the columns that are still to be sorted, with their memory.
struct Sorted {
    side: SortedSide,
    columns: Vec<(CollectedColumn, Arc<MemoryReservation>)>,
}

impl SortAndIndex {
    /// Sorts rows, and prepares their values. Frees the collected rows.
    pub(crate) fn run(&self, rows: CollectedRows) -> Result<(SortedSide, Vec<PreparedColumn>)> {
        let sort_timer = self.metrics.sort_time.timer();
        let Sorted { side, columns } = self.sort(rows)?;
        sort_timer.done();
        let index_timer = self.metrics.index_time.timer();
        let needs = (0..columns.len()).map(|i| ColumnNeeds::of_column(&self.columns, i));
        let check = || self.waiting.check();
        let permutation = side.permutation(self.workers(&check))?;
        let memory = &side.permutation_memory;
        let prepared = self.prepare_columns(columns.into_iter().zip(needs), permutation, memory)?;
        index_timer.done();
        Ok((side, prepared))
    }

    /// Prepares what is missing of values that came with the same rows, in the same order, as those of a sorted side.
    /// Frees the collected rows.
    pub(crate) fn add_values(
        &self,
        rows: CollectedRows,
        side: &SortedSide,
        missing: &[(usize, ColumnNeeds)],
    ) -> Result<Vec<(usize, PreparedColumn)>> {
        let _timer = self.metrics.index_time.timer();
        let types = types(&rows);
        let CollectedRows {
            batches, memory, ..
        } = rows;
        let (batches, _) = self.in_sorting_order(batches, side.is_restored)?;
        let collected: usize = batches.iter().map(RecordBatch::num_rows).sum();
        if collected != side.total_rows {
            return internal_err!(
                "a range join read {collected} rows of a table that has {}",
                side.total_rows
            );
        }
        let columns = with_memory(self.collected_columns(&types, &batches), &memory)?;
        drop((batches, memory));
        let check = || self.waiting.check();
        let permutation = side.permutation(self.workers(&check))?;
        let columns = columns.into_iter().enumerate().filter_map(|(i, column)| {
            let (_, needs) = missing.iter().find(|(column, _)| *column == i)?;
            Some((column, needs.clone()))
        });
        let prepared = self.prepare_columns(columns, permutation, &side.permutation_memory)?;
        Ok(missing.iter().map(|(i, _)| *i).zip(prepared).collect())
    }

    /// Sorts the keys, and frees the collected ones.
    fn sort(&self, rows: CollectedRows) -> Result<Sorted> {
        let types = types(&rows);
        let CollectedRows {
            batches, memory, ..
        } = rows;
        let check = || self.waiting.check();
        let may_restore = !self.columns.row_order_matters();
        let (batches, is_restored) = self.in_sorting_order(batches, may_restore)?;
        let columns = self.collected_columns(&types, &batches);
        let rows_memory = memory.new_empty();
        let workers = self.workers(&check);
        let parts = convert_keys(
            &self.columns,
            &types,
            batches,
            &memory,
            &rows_memory,
            workers,
        )?;
        let total_rows = parts.iter().map(RowsPart::len).sum();
        self.metrics.build_rows.add(total_rows);
        let columns = with_memory(columns, &memory)?;
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
        let side = SortedSide {
            rows,
            rows_memory,
            movement: Some(Movement::Known(permutation)),
            permutation_memory,
            total_rows,
            is_restored,
        };
        Ok(Sorted { side, columns })
    }

    /// The batches in the order in which their rows are numbered, and whether that is another one than they came in.
    pub(crate) fn in_sorting_order(
        &self,
        batches: Vec<RecordBatch>,
        may_restore: bool,
    ) -> Result<(Vec<RecordBatch>, bool)> {
        if !may_restore {
            return Ok((batches, false));
        }
        let key = self.columns.num_equality_keys;
        restore_order(batches, &[key..key + 1, 0..key + 1])
    }

    fn collected_columns(
        &self,
        types: &[DataType],
        batches: &[RecordBatch],
    ) -> Vec<CollectedColumn> {
        let columns = self.columns.values(types).iter();
        let mut columns: Vec<CollectedColumn> = columns.map(CollectedColumn::new).collect();
        for batch in batches {
            let values = self.columns.values(batch.columns());
            for (column, array) in columns.iter_mut().zip(values) {
                column.chunks.arrays.push(Arc::clone(array));
            }
        }
        columns
    }

    pub(crate) fn workers<'a>(&self, check: &'a (dyn Fn() -> Result<()> + Sync)) -> Workers<'a> {
        Workers::new(self.threads, check)
    }

    /// Puts a build side together. What it takes is registered in the pool of `memory`.
    pub(crate) fn side(
        &self,
        sorted: Arc<SortedSide>,
        prepared: Vec<PreparedColumn>,
        row_order: Option<Arc<RowOrder>>,
        threshold_index: Arc<ThresholdIndex>,
        memory: &MemoryReservation,
    ) -> Result<BuildSide> {
        let mut aggregates = vec![];
        let calls = self.columns.calls.iter().map(Option::as_ref);
        for ((function, arguments), call) in self.columns.aggregates.iter().zip(calls) {
            let function = (*function, call);
            let evaluator = AggregateEvaluator::try_new(function, arguments, &prepared, memory)?;
            aggregates.push(evaluator);
        }
        let matched = if self.columns.marks_rows {
            let memory = memory.new_empty();
            memory.try_grow(MatchedRows::bytes(sorted.total_rows))?;
            Some(MatchedRows::new(sorted.total_rows, memory))
        } else {
            None
        };
        let row_columns = self.columns.row_columns.iter();
        let row_columns = row_columns.filter_map(|column| prepared.get(*column)?.rows.clone());
        let row_columns = row_columns.collect();
        let bytes = prepared.iter().map(PreparedColumn::registered_bytes);
        let build_mem_used = &self.metrics.build_mem_used;
        build_mem_used.set_max(sorted.registered_bytes() + bytes.sum::<usize>());
        Ok(BuildSide {
            sorted,
            aggregates,
            row_columns,
            row_order,
            threshold_index,
            matched,
            memory: prepared.into_iter().flat_map(|p| p.memory).collect(),
        })
    }

    /// The order in which rows are returned, if it is not that of the range key.
    pub(crate) fn row_order(
        &self,
        side: &SortedSide,
        prepared: &[PreparedColumn],
    ) -> Result<Option<Arc<RowOrder>>> {
        let Some((column, descending)) = self.columns.row_order else {
            return Ok(None);
        };
        let keys = prepared.get(column).and_then(|column| column.rows.clone());
        let Some(keys) = keys else {
            return internal_err!("the column that rows are ordered by has not been prepared");
        };
        let check = || self.waiting.check();
        let permutation = side.permutation(self.workers(&check))?;
        let memory = &side.permutation_memory;
        memory.try_grow(permutation.order_bytes())?;
        let rows = permutation.order(self.workers(&check))?.cloned();
        let (len, memory) = (side.rows.len(), memory.new_empty());
        let order = RowOrder::new((keys, rows), len, descending, self.threads, memory);
        Ok(Some(Arc::new(order)))
    }

    /// Prepares what is needed of columns.
    pub(crate) fn prepare_columns(
        &self,
        columns: impl Iterator<Item = ((CollectedColumn, Arc<MemoryReservation>), ColumnNeeds)>,
        permutation: &RowPermutation,
        memory: &MemoryReservation,
    ) -> Result<Vec<PreparedColumn>> {
        let check = || self.waiting.check();
        let column_preparer = ColumnPreparer {
            workers: self.workers(&check),
            metrics: &self.metrics,
            waiting: &self.waiting,
            lazy_indexes: RefCell::default(),
        };
        let prepared = columns.map(|((column, column_memory), needs)| {
            column_preparer.prepare(column, column_memory, needs, permutation, memory)
        });
        prepared.collect()
    }
}

fn types(rows: &CollectedRows) -> Vec<DataType> {
    let fields = rows.schema.fields().iter();
    fields.map(|field| field.data_type().clone()).collect()
}

/// Splits what registers the memory of each column off `memory`.
fn with_memory(
    columns: Vec<CollectedColumn>,
    memory: &MemoryReservation,
) -> Result<Vec<(CollectedColumn, Arc<MemoryReservation>)>> {
    let columns = columns.into_iter().map(|column| {
        let column_memory = split_off(memory, column.chunks.bytes());
        column_memory.try_resize(column.chunks.bytes())?;
        Ok((column, Arc::new(column_memory)))
    });
    columns.collect()
}
