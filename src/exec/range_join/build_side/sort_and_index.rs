//! Sorts the collected rows of a build side by equality keys and range key, and prepares its columns for the
//! aggregates.

use std::cell::RefCell;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::common::statistic_copies::CopyDevices;
use crate::exec::range_join::aggregate_table::Structures;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::aggregate::AggregateEvaluator;
use crate::exec::range_join::build_side::block_states::{NoKeeper, StatesKeeper};
use crate::exec::range_join::build_side::collect_or_spill::CollectedRows;
use crate::exec::range_join::build_side::column::{
    CollectedColumn, ColumnPreparer, PreparedColumn,
};
use crate::exec::range_join::build_side::convert_keys::{convert_keys, split_off};
use crate::exec::range_join::build_side::input_order::restore_order;
use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::build_side::row_order::RowOrder;
use crate::exec::range_join::build_side::side::{BuildSide, Movement, SortedSide};
use crate::exec::range_join::build_side::threshold_index::ThresholdIndex;
use crate::exec::range_join::metrics::BuildMetrics;
use rmq_arrow::common::workers::Workers;
use rmq_arrow::index::sort_keys::Chunks;
use rmq_arrow::sorted::group_sort::SortContext;
use rmq_arrow::sorted::permutation::RowPermutation;
use rmq_arrow::sorted::sort_rows::{RowsPart, sort_rows};

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
        devices: None,
        waiting,
    };
    indexer.run_alone(rows)
}

/// Sorts and indexes the rows of a build side.
pub(crate) struct SortAndIndex {
    pub(crate) columns: BuildColumns,
    pub(crate) metrics: BuildMetrics,
    pub(crate) threads: usize,
    /// Those that may answer for what is built.
    pub(crate) devices: Option<CopyDevices>,
    pub(crate) waiting: Waiting,
}

/// What is built over sorted rows.
pub(crate) struct SideParts {
    /// Of each value.
    pub(crate) prepared: Vec<PreparedColumn>,
    pub(crate) row_order: Option<Arc<RowOrder>>,
    pub(crate) threshold_index: Arc<ThresholdIndex>,
}

/// The sorted keys, and the columns that are still to be sorted, with their memory.
struct Sorted {
    side: SortedSide,
    columns: Vec<CollectedColumn>,
}

impl SortAndIndex {
    /// Sorts and indexes rows that are not kept. Frees the collected rows.
    pub(super) fn run_alone(&self, rows: CollectedRows) -> Result<BuildSide> {
        let memory = rows.memory.new_empty();
        let (sorted, prepared) = self.run(rows)?;
        let row_order = self.row_order(&sorted, &prepared)?;
        let sorted = Arc::new(sorted.without_permutation()?);
        let threshold_index = Arc::new(ThresholdIndex::new(self.threads));
        let parts = SideParts {
            prepared,
            row_order,
            threshold_index,
        };
        self.side(sorted, parts, &NoKeeper, &memory)
    }

    /// Sorts rows, and prepares their values. Frees the collected rows.
    pub(crate) fn run(&self, rows: CollectedRows) -> Result<(SortedSide, Vec<PreparedColumn>)> {
        let sort_timer = self.metrics.sort_time.timer();
        let Sorted { side, columns } = self.sort(rows)?;
        sort_timer.done();
        let index_timer = self.metrics.index_time.timer();
        let needs = self.columns.structures(columns.len());
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
        missing: &[(usize, Structures)],
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
        let columns = self.collected_columns(&types, self.chunks(&types, &batches), &memory)?;
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
        let chunks = self.chunks(&types, &batches);
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
        let columns = self.collected_columns(&types, chunks, &memory)?;
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

    /// The arrays of each value of rows that have columns of these types. A run has the range key once more.
    fn chunks(&self, types: &[DataType], batches: &[RecordBatch]) -> Vec<Vec<ArrayRef>> {
        let values = self.columns.values(types).len();
        let arrays = |value: usize| {
            let arrays = batches.iter();
            let arrays = arrays.map(|b| Arc::clone(&self.columns.values(b.columns())[value]));
            arrays.collect()
        };
        (0..values).map(arrays).collect()
    }

    /// The values, whose memory is split off `memory`. All columns have these types.
    fn collected_columns(
        &self,
        types: &[DataType],
        chunks: Vec<Vec<ArrayRef>>,
        memory: &MemoryReservation,
    ) -> Result<Vec<CollectedColumn>> {
        let columns = chunks.into_iter().zip(self.columns.values(types));
        let columns = columns.map(|(arrays, data_type)| {
            let chunks = Chunks::borrowed(arrays);
            let memory = split_off(memory, chunks.bytes());
            memory.try_resize(chunks.bytes())?;
            Ok(CollectedColumn {
                chunks,
                data_type: data_type.clone(),
                memory: Arc::new(memory),
            })
        });
        columns.collect()
    }

    pub(crate) fn workers<'a>(&self, check: &'a (dyn Fn() -> Result<()> + Sync)) -> Workers<'a> {
        Workers::new(self.threads, check)
    }

    /// Puts a build side together, whose states of blocks are kept in `states`. What it takes is registered in the pool
    /// of `memory`.
    pub(crate) fn side(
        &self,
        sorted: Arc<SortedSide>,
        parts: SideParts,
        states: &dyn StatesKeeper,
        memory: &MemoryReservation,
    ) -> Result<BuildSide> {
        let SideParts {
            prepared,
            row_order,
            threshold_index,
        } = parts;
        let aggregates = self.columns.aggregates.iter();
        let (threads, metrics) = (self.threads, &self.metrics);
        let evaluator =
            |a| AggregateEvaluator::try_new(a, &prepared, states, threads, metrics, memory);
        let aggregates = aggregates.map(evaluator);
        let aggregates = aggregates.collect::<Result<_>>()?;
        let matched = if self.columns.marks_rows {
            let memory = memory.new_empty();
            memory.try_grow(MatchedRows::bytes(sorted.total_rows))?;
            Some(MatchedRows::new(sorted.total_rows, memory))
        } else {
            None
        };
        let row_columns = self.columns.row_columns.iter();
        let row_columns = row_columns.filter_map(|column| prepared.get(*column)?.rows().cloned());
        let row_columns = row_columns.collect();
        let side = BuildSide {
            sorted,
            aggregates,
            row_columns,
            row_order,
            threshold_index,
            matched,
            values: prepared,
        };
        self.metrics.build_mem_used.set_max(side.registered_bytes());
        Ok(side)
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
        let keys = prepared
            .get(column)
            .and_then(|column| column.rows().cloned());
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
        columns: impl Iterator<Item = (CollectedColumn, Structures)>,
        permutation: &RowPermutation,
        permutation_memory: &MemoryReservation,
    ) -> Result<Vec<PreparedColumn>> {
        let check = || self.waiting.check();
        let column_preparer = ColumnPreparer {
            permutation,
            permutation_memory,
            workers: self.workers(&check),
            metrics: &self.metrics,
            devices: self.devices.as_ref(),
            waiting: &self.waiting,
            lazy: RefCell::default(),
        };
        let prepared = columns.map(|(column, needs)| column_preparer.prepare(column, &needs));
        prepared.collect()
    }
}

fn types(rows: &CollectedRows) -> Vec<DataType> {
    let fields = rows.schema.fields().iter();
    fields.map(|field| field.data_type().clone()).collect()
}
