//! Collects the rows of the build side, and spills those that memory can't hold.

use std::ops::Add;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::common::runtime::JoinSet;
use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use futures::TryStreamExt;
use tokio::sync::Mutex;

use crate::common::array_bytes::compact_if_sparse;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::spill::retaining_pool::RetainingPool;
use crate::exec::range_join::spill::row_position::RowPosition;
use crate::exec::range_join::spill::run::SpillRuns;
use crate::exec::range_join::spill::store::SpillStore;
use crate::sorted::sort_rows::too_many_rows;

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
}

/// All rows of the build side.
pub(crate) enum Collected {
    InMemory(CollectedRows),
    Spilled(SpillRuns, Arc<SpillStore>),
}

/// Reads all partitions of the input concurrently. The collected rows are in the order of the partitions, whatever the order of arrival. Rows that
/// `memory` can't hold go to the store, if there is one.
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
    let collector = Arc::new(Mutex::new(Collector {
        partitions: partitions.iter().map(|_| empty()).collect(),
        memory: Arc::clone(memory),
        store,
        row_order_matters: columns.row_order_matters(),
        runs: SpillRuns::default(),
    }));
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
        ended.unwrap_or_else(|error| {
            if error.is_panic() {
                std::panic::resume_unwind(error.into_panic());
            }
            internal_err!("reading the build side of a range join did not end: {error}")
        })?;
    }
    let mut collector = collector.lock().await;
    collector.finish(schema).await
}

/// Reads one partition of the input.
struct PartitionReader {
    input: SendableRecordBatchStream,
    partition: usize,
    columns: BuildColumns,
    schema: SchemaRef,
    collector: Arc<Mutex<Collector>>,
}

impl PartitionReader {
    async fn run(mut self) -> Result<()> {
        while let Some(batch) = self.input.try_next().await? {
            let rows = batch.num_rows();
            if rows == 0 {
                continue;
            }
            let arrays = self.columns.evaluate(&batch)?.into_iter();
            let arrays = arrays.map(compact_if_sparse).collect();
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let schema = Arc::clone(&self.schema);
            let batch = RecordBatch::try_new_with_options(schema, arrays, &options)?;
            let mut collector = self.collector.lock().await;
            collector.add(self.partition, batch).await?;
        }
        Ok(())
    }
}

/// The rows of all partitions that have been read so far.
struct Collector {
    partitions: Vec<PartitionRows>,
    memory: Arc<RetainingPool>,
    store: Option<Arc<SpillStore>>,
    /// Whether a spill run must consist of rows of one partition, so that the positions of its rows are known.
    row_order_matters: bool,
    runs: SpillRuns,
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
    /// Takes the rows in memory, and the reservation of their memory.
    fn take(&mut self) -> (Vec<RecordBatch>, MemoryReservation) {
        self.spilled_rows += self.size.rows as u64;
        self.size = DataSize::default();
        (std::mem::take(&mut self.batches), self.memory.take())
    }
}

impl Collector {
    /// Adds a batch to its partition. The other partitions wait while rows are spilled.
    async fn add(&mut self, partition: usize, batch: RecordBatch) -> Result<()> {
        let batch_size = DataSize::of_batch(&batch);
        let rows = self.size().rows + batch_size.rows;
        if u32::try_from(rows).is_err() {
            return too_many_rows(rows);
        }
        let mut fits = true;
        if let Some(store) = self.store.clone() {
            fits = self.ensure_build_memory(batch_size);
            while !fits && self.spill(&store).await? {
                self.memory.retain(self.runs.retained_bytes());
                fits = self.ensure_build_memory(batch_size);
            }
        }
        let rows = &mut self.partitions[partition];
        if fits {
            rows.memory.try_grow(batch_size.bytes)?;
        }
        rows.size = rows.size + batch_size;
        rows.batches.push(batch);
        match self.store.clone() {
            Some(store) if !fits => self.spill(&store).await.map(|_| ()),
            _ => Ok(()),
        }
    }

    /// The size of the rows in memory.
    fn size(&self) -> DataSize {
        let sizes = self.partitions.iter().map(|rows| rows.size);
        sizes.fold(DataSize::default(), Add::add)
    }

    /// Tries to get the memory to build the rows in memory and `more` rows.
    fn ensure_build_memory(&mut self, more: DataSize) -> bool {
        let needed = (self.size() + more).build_bytes();
        let allowed = needed.min(self.memory.share());
        let fits = self.memory.ensure_granted(allowed).is_ok() && allowed == needed;
        if !fits {
            let peak = &mut self.runs.peak_granted_bytes;
            *peak = (*peak).max(self.memory.granted_bytes());
        }
        fits
    }

    /// Spills the rows of the largest partition if the row order matters, else all rows. Returns whether there were any.
    async fn spill(&mut self, store: &Arc<SpillStore>) -> Result<bool> {
        let partitions = self.partitions.iter_mut().enumerate();
        let partitions = partitions.filter(|(_, rows)| !rows.batches.is_empty());
        let (first_row, rows): (_, Vec<_>) = if self.row_order_matters {
            let Some((partition, rows)) = partitions.max_by_key(|(_, rows)| rows.size.bytes) else {
                return Ok(false);
            };
            let row = rows.spilled_rows;
            (RowPosition { partition, row }, vec![rows.take()])
        } else {
            let rows = partitions.map(|(_, rows)| rows.take());
            (RowPosition::default(), rows.collect())
        };
        let (batches, _memory): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let batches: Vec<RecordBatch> = batches.into_iter().flatten().collect();
        if batches.is_empty() {
            return Ok(false);
        }
        store.write(batches, first_row, &mut self.runs).await?;
        Ok(true)
    }

    /// Returns all rows after the last batch.
    async fn finish(&mut self, schema: &SchemaRef) -> Result<Collected> {
        if let Some(store) = self.store.take().filter(|_| !self.runs.is_empty()) {
            while self.spill(&store).await? {}
            return Ok(Collected::Spilled(std::mem::take(&mut self.runs), store));
        }
        let size = self.size();
        let batches = self.partitions.iter_mut().flat_map(|rows| rows.take().0);
        let batches = batches.collect();
        // The pool retains what the partitions' reservations had.
        let memory = self.memory.reservation();
        memory.try_grow(size.bytes)?;
        Ok(Collected::InMemory(CollectedRows {
            schema: Arc::clone(schema),
            batches,
            memory,
        }))
    }
}
