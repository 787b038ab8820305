//! Collects the rows of the build side, and spills those that memory can't hold.

use std::ops::Add;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Fields, Schema, SchemaRef};
use datafusion::common::runtime::JoinSet;
use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use futures::TryStreamExt;

use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::failed_rows::FailedRows;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::spill::retaining_pool::RetainingPool;
use crate::exec::range_join::spill::row_position::RowPosition;
use crate::exec::range_join::spill::run::BuildRuns;
use crate::exec::range_join::spill::store::SpillStore;
use rmq_arrow::common::array_bytes::{arrays_bytes, compact_if_sparse};
use rmq_arrow::sorted::sort_rows::too_many_rows;

/// The rows of the build side in memory, each batch with the columns of [`BuildColumns`].
#[derive(Debug)]
pub(crate) struct CollectedRows {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Vec<RecordBatch>,
    /// Registers the memory of the batches.
    pub(crate) memory: MemoryReservation,
}

impl CollectedRows {
    pub(crate) fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// The types of the columns.
    pub(crate) fn types(&self) -> Vec<DataType> {
        let fields = self.schema.fields().iter();
        fields.map(|field| field.data_type().clone()).collect()
    }

    /// The same rows with these of the columns, registered by themselves.
    ///
    /// # Errors
    /// If memory is short, or a column is not there.
    pub(crate) fn only(&self, columns: &[usize]) -> Result<Self> {
        let batches = self.batches.iter().map(|batch| batch.project(columns));
        let batches: Vec<RecordBatch> = batches.collect::<Result<_, _>>()?;
        let bytes = batches.iter().map(|batch| arrays_bytes(batch.columns()));
        let memory = self.memory.new_empty();
        memory.try_grow(bytes.sum())?;
        Ok(Self {
            schema: Arc::new(self.schema.project(columns)?),
            batches,
            memory,
        })
    }

    /// Columns of the same rows, which may have been collected in batches of other sizes: each with the rows and its
    /// number among their columns.
    ///
    /// # Errors
    /// Arrow's, if arrays are too long to be put together.
    pub(crate) fn beside_each_other(
        columns: &[(&Self, usize)],
    ) -> Result<(SchemaRef, Vec<RecordBatch>)> {
        let fields = columns.iter();
        let fields = fields.map(|(rows, number)| Arc::clone(&rows.schema.fields()[*number]));
        let schema: SchemaRef = Arc::new(Schema::new(fields.collect::<Fields>()));
        let sizes = |rows: &Self| -> Vec<usize> {
            rows.batches.iter().map(RecordBatch::num_rows).collect()
        };
        let mut all = columns.iter().map(|(rows, _)| sizes(rows));
        let first = all.next().unwrap_or_default();
        if all.all(|sizes| sizes == first) {
            let batches = first.iter().enumerate().map(|(batch, rows)| {
                let columns = columns.iter();
                let columns =
                    columns.map(|(rows, number)| Arc::clone(rows.batches[batch].column(*number)));
                batch_of(&schema, columns.collect(), *rows)
            });
            return Ok((Arc::clone(&schema), batches.collect::<Result<_>>()?));
        }
        let together = columns.iter().map(|(rows, number)| {
            let arrays = rows.batches.iter();
            let arrays = arrays.map(|batch| batch.column(*number).as_ref());
            concat(&arrays.collect::<Vec<&dyn Array>>())
        });
        let together = together.collect::<Result<_, _>>()?;
        let batch = batch_of(&schema, together, first.iter().sum())?;
        Ok((schema, vec![batch]))
    }
}

/// The rows of the build side, as they were collected.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) rows: CollectedRows,
    /// The runs of all rows, if memory could not hold them.
    pub(crate) runs: Option<BuildRuns>,
    /// Those for which the range key has failed. They are among the others, too, where it is NULL.
    pub(crate) failed: FailedRows,
}

/// Reads all partitions of the input concurrently. The collected rows are in the order of the partitions, whatever the
/// order of arrival. If `memory` can't hold them, all go to the store, if there is one, and their runs are returned.
pub(crate) async fn collect(
    columns: &BuildColumns,
    schema: &SchemaRef,
    partitions: Vec<SendableRecordBatchStream>,
    memory: &Arc<RetainingPool>,
    store: Option<Arc<SpillStore>>,
) -> Result<Collected> {
    let empty = || PartitionRows {
        batches: vec![],
        size: DataSize::default(),
        memory: memory.reservation(),
        spilled_rows: 0,
    };
    let collector = Arc::new(Collector {
        in_memory: Mutex::new(RowsInMemory {
            partitions: partitions.iter().map(|_| empty()).collect(),
            memory: Arc::clone(memory),
            may_spill: store.is_some(),
            failed: FailedRows::new(memory.reservation()),
        }),
        memory: Arc::clone(memory),
        row_order_matters: columns.row_order_matters(),
        spilling: store.map(|store| Spilling {
            runs: tokio::sync::Mutex::new(store.new_runs(0)),
            store,
        }),
    });
    let readers = partitions.into_iter().enumerate();
    let readers = readers.map(|(partition, input)| PartitionReader {
        input,
        partition,
        columns: columns.clone(),
        schema: Arc::clone(schema),
        collector: Arc::clone(&collector),
    });
    let mut tasks = JoinSet::new();
    readers.for_each(|reader| {
        tasks.spawn(reader.run());
    });
    // An error stops all tasks, as does dropping this future.
    while let Some(ended) = tasks.join_next().await {
        let ended = ended.unwrap_or_else(|error| {
            if error.is_panic() {
                std::panic::resume_unwind(error.into_panic());
            }
            internal_err!("reading the build side of a range join did not end: {error}")
        });
        if ended.is_err() {
            // Their rows are dropped before another attempt.
            tasks.shutdown().await;
        }
        ended?;
    }
    collector.finish(schema).await
}

/// A batch of this many rows, which may have no columns.
fn batch_of(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let schema = Arc::clone(schema);
    Ok(RecordBatch::try_new_with_options(
        schema, columns, &options,
    )?)
}

/// Reads one partition of the input.
struct PartitionReader {
    input: SendableRecordBatchStream,
    partition: usize,
    columns: BuildColumns,
    schema: SchemaRef,
    collector: Arc<Collector>,
}

impl PartitionReader {
    async fn run(mut self) -> Result<()> {
        while let Some(batch) = self.input.try_next().await? {
            let rows = batch.num_rows();
            if rows == 0 {
                continue;
            }
            let (arrays, failed) = self.columns.evaluate(&batch)?;
            let arrays = arrays.into_iter().map(compact_if_sparse).collect();
            let batch = batch_of(&self.schema, arrays, rows)?;
            if !failed.is_empty() {
                self.collector.in_memory().failed.add(&batch, failed)?;
            }
            self.collector.add(self.partition, batch).await?;
        }
        Ok(())
    }
}

/// The rows of all partitions that have been read so far.
struct Collector {
    /// No task waits with this lock. One that is passed on to a waiting task, as an asynchronous lock is, would stay
    /// taken while that task's thread computes something else, such as a sort, and all others wait for it.
    in_memory: Mutex<RowsInMemory>,
    memory: Arc<RetainingPool>,
    /// Whether a run must consist of rows of one partition, so that the positions of its rows are known.
    row_order_matters: bool,
    /// None if rows can't be spilled.
    spilling: Option<Spilling>,
}

/// What has been spilled.
struct Spilling {
    store: Arc<SpillStore>,
    /// Locked while rows are spilled.
    runs: tokio::sync::Mutex<BuildRuns>,
}

/// The rows of all partitions in memory.
struct RowsInMemory {
    partitions: Vec<PartitionRows>,
    memory: Arc<RetainingPool>,
    may_spill: bool,
    failed: FailedRows,
}

/// The rows of one partition.
struct PartitionRows {
    /// The rows in memory.
    batches: Vec<RecordBatch>,
    size: DataSize,
    memory: MemoryReservation,
    /// The number of rows that were spilled before those in memory.
    spilled_rows: u64,
}

impl PartitionRows {
    fn push(&mut self, batch: RecordBatch, size: DataSize) {
        self.size = self.size + size;
        self.batches.push(batch);
    }

    /// Takes the rows in memory, and the reservation of their memory.
    fn take(&mut self) -> (Vec<RecordBatch>, MemoryReservation) {
        self.spilled_rows += self.size.rows as u64;
        self.size = DataSize::default();
        (std::mem::take(&mut self.batches), self.memory.take())
    }
}

impl RowsInMemory {
    /// The size of the rows.
    fn size(&self) -> DataSize {
        let sizes = self.partitions.iter().map(|rows| rows.size);
        sizes.fold(DataSize::default(), Add::add)
    }

    /// Adds a batch of this size to its partition. Returns false, without adding it, if rows have to be spilled first.
    fn try_add(&mut self, partition: usize, batch: &RecordBatch, size: DataSize) -> Result<bool> {
        let all = self.size() + size;
        if u32::try_from(all.rows).is_err() {
            return too_many_rows(all.rows);
        }
        if self.may_spill {
            // The memory to build all of them.
            let needed = all.build_bytes();
            let allowed = needed.min(self.memory.share());
            if self.memory.ensure_granted(allowed).is_err() || allowed < needed {
                return Ok(false);
            }
        }
        let rows = &mut self.partitions[partition];
        match rows.memory.try_grow(size.bytes) {
            Ok(()) => {}
            // Rows that are being written count as used.
            Err(_) if self.may_spill => return Ok(false),
            Err(error) => return Err(error),
        }
        rows.push(batch.clone(), size);
        Ok(true)
    }

    /// Takes the rows of the largest partition if `one_partition`, else all rows: the position of the first, the
    /// batches, and the reservations of their memory. None if there are no rows.
    fn take_to_spill(
        &mut self,
        one_partition: bool,
    ) -> Option<(RowPosition, Vec<RecordBatch>, Vec<MemoryReservation>)> {
        let partitions = self.partitions.iter_mut().enumerate();
        let partitions = partitions.filter(|(_, rows)| !rows.batches.is_empty());
        let (first_row, rows): (_, Vec<_>) = if one_partition {
            let (partition, rows) = partitions.max_by_key(|(_, rows)| rows.size.bytes)?;
            let row = rows.spilled_rows;
            (RowPosition { partition, row }, vec![rows.take()])
        } else {
            let rows = partitions.map(|(_, rows)| rows.take());
            (RowPosition::default(), rows.collect())
        };
        let (batches, memory): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let batches: Vec<RecordBatch> = batches.into_iter().flatten().collect();
        (!batches.is_empty()).then_some((first_row, batches, memory))
    }
}

impl Collector {
    fn in_memory(&self) -> MutexGuard<'_, RowsInMemory> {
        // A poisoned state is consistent: no update of it can panic half-way.
        self.in_memory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a batch to its partition. Partitions whose rows don't fit wait while rows are spilled.
    async fn add(&self, partition: usize, batch: RecordBatch) -> Result<()> {
        let size = DataSize::of_batch(&batch);
        if self.in_memory().try_add(partition, &batch, size)? {
            return Ok(());
        }
        let Some(Spilling { store, runs }) = &self.spilling else {
            return internal_err!("a range join without a disk is to spill rows");
        };
        let runs = &mut *runs.lock().await;
        // Another partition may have spilled rows meanwhile.
        while !self.in_memory().try_add(partition, &batch, size)? {
            runs.peak_granted_bytes = runs.peak_granted_bytes.max(self.memory.granted_bytes());
            if !self.spill(store, runs).await? {
                // The batch is too large by itself.
                self.in_memory().partitions[partition].push(batch, size);
                while self.spill(store, runs).await? {}
                return Ok(());
            }
            self.memory.retain(runs.retained_bytes());
        }
        Ok(())
    }

    /// Spills the rows of the largest partition if the row order matters, else all rows. Returns whether there were
    /// any.
    async fn spill(&self, store: &Arc<SpillStore>, runs: &mut BuildRuns) -> Result<bool> {
        let rows = self.in_memory().take_to_spill(self.row_order_matters);
        let Some((first_row, batches, _memory)) = rows else {
            return Ok(false);
        };
        store.write(batches, first_row, runs).await?;
        Ok(true)
    }

    /// Returns all rows, or their runs, after the last batch.
    async fn finish(&self, schema: &SchemaRef) -> Result<Collected> {
        let mut spilled = None;
        if let Some(Spilling { store, runs }) = &self.spilling {
            let mut runs = std::mem::replace(&mut *runs.lock().await, store.new_runs(0));
            if !runs.is_empty() {
                while self.spill(store, &mut runs).await? {}
                spilled = Some(runs);
            }
        }
        let mut rows = self.in_memory();
        let size = rows.size();
        let batches = rows.partitions.iter_mut().flat_map(|rows| rows.take().0);
        let batches = batches.collect();
        // The pool retains what the partitions' reservations had.
        let memory = self.memory.reservation();
        memory.try_grow(size.bytes)?;
        let failed = FailedRows::new(self.memory.reservation());
        Ok(Collected {
            failed: std::mem::replace(&mut rows.failed, failed),
            rows: CollectedRows {
                schema: Arc::clone(schema),
                batches,
                memory,
            },
            runs: spilled,
        })
    }
}
