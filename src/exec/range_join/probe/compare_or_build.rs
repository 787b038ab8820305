//! A build side whose sort is deferred until the probe side has turned out to have many rows.
//!
//! The number of probe rows is known only when the probe side ends. So the build side is collected first, as for any
//! join, and each partition of the probe side is read until it ends or has too many rows for a nested loop. The first
//! partition that has too many rows has the build side sorted, for itself and for all partitions that come after it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{Array, RecordBatch};
use arrow::compute::concat_batches;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::dictionaries::has_few_keys;
use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::builder::BuildSideBuilder;
use crate::exec::range_join::build_side::collect_or_spill::CollectedRows;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::nested_loop::NestedLoop;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::spill::retaining_pool::is_out_of_memory;
use crate::sorted::order_keys::OrderKeys;

/// Probe sides with at most this many rows (across all partitions) use a nested-loop comparison instead of sorting the
/// build side: a comparison takes about 1 ns per pair, sorting about 50 ns per row.
pub(crate) const MAX_NESTED_LOOP_ROWS: usize = 16;

/// A build side of at most this many rows is always sorted: it takes only a few milliseconds.
pub(crate) const MAX_EAGERLY_SORTED_ROWS: usize = 1 << 16;

/// A build side in memory that is not sorted yet, and what sorting it needs.
#[derive(Debug)]
pub(crate) struct DeferredBuild {
    pub(crate) builder: BuildSideBuilder,
    pub(crate) probe_partitions: usize,
    /// The probe rows that were to be compared so far.
    compared_rows: AtomicUsize,
    /// The collected rows, until they are sorted.
    rows: Mutex<Option<UnsortedRows>>,
}

#[derive(Debug)]
struct UnsortedRows {
    batches: Vec<RecordBatch>,
    /// Registers the batches; taken by the task that sorts them.
    memory: Option<MemoryReservation>,
}

impl DeferredBuild {
    /// Whether sorting these rows takes so long that it is worth waiting for the size of the probe side.
    pub(crate) fn is_worthwhile(columns: &BuildColumns, batches: &[RecordBatch]) -> Result<bool> {
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let is_large = rows > MAX_EAGERLY_SORTED_ROWS;
        let (Some(first), true) = (
            batches.first(),
            is_large && !columns.prevailing && !columns.marks_rows,
        ) else {
            return Ok(false);
        };
        if columns.num_equality_keys > 0 {
            // Grouping moves all rows, even if they are in the order of the range key.
            return Ok(true);
        }
        let key = columns.range_key(first.columns());
        let pairs = key.len() - 1;
        let ascending = OrderKeys::are_at_most(&key.slice(0, pairs), &key.slice(1, pairs))?;
        let descents = pairs - ascending.count_set_bits();
        Ok(descents > pairs / 16)
    }

    pub(crate) fn new(
        builder: BuildSideBuilder,
        rows: CollectedRows,
        probe_partitions: usize,
    ) -> Self {
        Self {
            builder,
            probe_partitions,
            compared_rows: AtomicUsize::new(0),
            rows: Mutex::new(Some(UnsortedRows {
                batches: rows.batches,
                memory: Some(rows.memory),
            })),
        }
    }

    /// Whether a partition of the probe side with `rows` rows so far is still small enough for a nested loop, as far as
    /// is known.
    pub(crate) fn may_compare(&self, rows: usize) -> bool {
        let compared = self.compared_rows.load(Ordering::Relaxed);
        compared + rows <= MAX_NESTED_LOOP_ROWS && self.rows().is_some()
    }

    /// Joins all rows of a partition by a nested loop. Returns `None` if all partitions together have too many rows, or
    /// if memory does not suffice.
    pub(crate) async fn compare(
        &self,
        partition: Arc<ProbePartition>,
        batches: &[RecordBatch],
    ) -> Result<Option<Vec<RecordBatch>>> {
        self.run(partition, batches, NestedLoop::run).await
    }

    /// Builds the rows that match any row of a partition, found by a nested loop. Returns `None` as [`Self::compare`]
    /// does.
    pub(crate) async fn build_matching(
        &self,
        partition: Arc<ProbePartition>,
        batches: &[RecordBatch],
    ) -> Result<Option<BuildSide>> {
        self.run(partition, batches, NestedLoop::build_matching)
            .await
    }

    /// Runs a nested loop over all rows of a partition.
    async fn run<T: Send + 'static>(
        &self,
        partition: Arc<ProbePartition>,
        batches: &[RecordBatch],
        work: impl FnOnce(NestedLoop, &Waiting) -> Result<T> + Send + 'static,
    ) -> Result<Option<T>> {
        let Self {
            builder,
            compared_rows,
            ..
        } = self;
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        if compared_rows.fetch_add(rows, Ordering::Relaxed) + rows > MAX_NESTED_LOOP_ROWS {
            return Ok(None);
        }
        let unsorted = self.rows().as_ref().map(|rows| rows.batches.clone());
        let (Some(build), Some(first)) = (unsorted, batches.first()) else {
            return Ok(None);
        };
        // Concatenating dictionaries whose keys are too narrow for the values of all batches fails or panics in Arrow.
        let schema = first.schema();
        let mut fields = schema.fields().iter();
        if fields.any(|field| has_few_keys(field.data_type())) {
            return Ok(None);
        }
        let Ok(batch) = concat_batches(&schema, batches) else {
            return Ok(None);
        };
        let nested_loop = NestedLoop {
            batch,
            columns: builder.columns.clone(),
            schema: Arc::clone(&builder.schema),
            threads: builder.options.threads(),
            memory: builder.memory.reservation(),
            partition,
            build,
        };
        match blocking(move |waiting| work(nested_loop, &waiting)).await {
            Err(error) if is_out_of_memory(&error) => Ok(None),
            joined => joined.map(Some),
        }
    }

    /// The rows, to be sorted. They stay available to nested loops until they are [discarded](Self::discard_rows).
    pub(crate) fn rows_to_build(&self) -> CollectedRows {
        let unsorted = self.rows().as_mut().map(|rows| {
            let memory = rows.memory.take();
            (rows.batches.clone(), memory)
        });
        let (batches, memory) = unsorted.unwrap_or_default();
        CollectedRows {
            schema: Arc::clone(&self.builder.schema),
            batches,
            memory: memory.unwrap_or_else(|| self.builder.memory.reservation()),
        }
    }

    /// Frees the rows, which have been sorted.
    pub(crate) fn discard_rows(&self) {
        *self.rows() = None;
    }

    fn rows(&self) -> MutexGuard<'_, Option<UnsortedRows>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
