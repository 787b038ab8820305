//! A build side on disk.
//!
//! Each partition buffers probe rows and takes them through all runs that may match, in turns ([`RunCache`]): a run is
//! read, built and probed. What is found is merged if aggregates are returned, and returned if rows are. Memory is
//! bounded by the buffers, what a turn returns, and the pairs of one row with one part of a run.
//!
//! The runs are read again for each buffer that they may match. Where both sides come in the order of the range key,
//! these are few. Otherwise the work would grow with the product of the rows of both sides. Then both are divided by
//! hashes of the equality keys, so that a probe row matches one run ([`Self::runs_for`](SpilledSide::runs_for)).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::Result;
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::common::blocking::joined;
use crate::exec::common::once_per_run::{SharedWork, lock};
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::builder::BuildSideBuilder;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::probe::spilled::divide_runs::DivideRuns;
use crate::exec::range_join::probe::spilled::merge::MergePlan;
use crate::exec::range_join::probe::spilled::probe_buffer::{ProbeBuffer, ProbeBufferLimit};
use crate::exec::range_join::probe::spilled::run_cache::RunCache;
use crate::exec::range_join::probe::spilled::run_loader::RunLoader;
use crate::exec::range_join::probe::spilled::run_set::RunSet;
use crate::exec::range_join::spill::key_extent::KeyOrder;
use crate::exec::range_join::spill::reader::SpillFiles;
use crate::exec::range_join::spill::retaining_pool::RetainingPool;
use crate::exec::range_join::spill::run::{BuildRuns, MIN_SPLIT_ROWS};

/// Bytes of a candidate range and of the mark of a probe row.
const RANGE_BYTES: usize = 17;

/// The most files of probe rows that the partitions together have open. Systems allow a process 1,024 by default.
const OPEN_FILES: usize = 512;

/// Divided runs are not made smaller than for this much memory: each has a file.
const MIN_DIVIDED_BYTES: usize = 64 << 10;

/// A build side that is probed run by run.
#[derive(Debug)]
pub(crate) struct SpilledSide {
    pub(crate) key_order: Arc<KeyOrder>,
    pub(crate) cache: RunCache,
    pub(crate) columns: BuildColumns,
    schema: SchemaRef,
    /// How aggregates are merged; `None` if rows are returned.
    pub(crate) merge_plan: Option<Arc<MergePlan>>,
    pub(crate) files: Arc<SpillFiles>,
    runs: Mutex<Arc<RunSet>>,
    /// The same rows, divided by hashes of the equality keys.
    divided: SharedWork<Arc<RunSet>>,
    /// Whether rows of runs are marked in those divided by hashes; decided by the first partition.
    marks_divided: OnceLock<bool>,
    size: DataSize,
    /// The estimated bytes of the aggregates of one probe row.
    aggregate_bytes: usize,
    /// The number of partitions that have marked all their matches.
    finished_partitions: AtomicUsize,
    probe_partitions: usize,
    memory: Arc<RetainingPool>,
    retained_bytes: usize,
    buffer_limit: Arc<ProbeBufferLimit>,
}

impl SpilledSide {
    /// A build side that `builder` has divided into these runs, to be probed by this many partitions.
    pub(crate) fn try_new(
        runs: BuildRuns,
        builder: &BuildSideBuilder,
        probe_partitions: usize,
    ) -> Result<Self> {
        let columns = builder.columns.clone();
        let retained_bytes = runs.retained_bytes();
        builder.memory.retain(retained_bytes);
        let (mut merge_plan, mut aggregate_bytes) = (None, 0);
        if !columns.returns_rows {
            let plan = MergePlan::try_new(&columns, &builder.schema)?;
            // Each partial aggregate is as wide as one column, and all columns together are as wide as a row.
            let partials = plan.columns.aggregates.len();
            let value_columns = columns.values(builder.schema.fields()).len();
            aggregate_bytes = runs.row_bytes() * partials.div_ceil(value_columns.max(1));
            merge_plan = Some(Arc::new(plan));
        }
        let run_columns = merge_plan.as_ref().map_or(&columns, |plan| &plan.columns);
        let loader = RunLoader::new(run_columns.clone(), builder, retained_bytes);
        let buffer_limit = ProbeBufferLimit::new(runs.peak_granted_bytes / 4, probe_partitions);
        let build_bytes = runs.run_build_bytes();
        let files = Arc::clone(&runs.files);
        let (key_order, size) = (Arc::clone(&runs.key_order), runs.size);
        let runs = RunSet::try_new(runs.runs, 0, None, columns.marks_rows, &builder.memory)?;
        Ok(Self {
            key_order,
            cache: RunCache::new(loader, build_bytes),
            columns,
            schema: Arc::clone(&builder.schema),
            merge_plan,
            files,
            runs: Mutex::new(Arc::new(runs)),
            divided: SharedWork::default(),
            marks_divided: OnceLock::new(),
            size,
            aggregate_bytes,
            finished_partitions: AtomicUsize::new(0),
            probe_partitions,
            memory: Arc::clone(&builder.memory),
            retained_bytes,
            buffer_limit: Arc::new(buffer_limit),
        })
    }

    /// The runs as they are now.
    pub(crate) fn runs(&self) -> Arc<RunSet> {
        Arc::clone(&lock(&self.runs))
    }

    /// The runs for the next probe rows of a partition: divided by hashes if it needs that, or if a partition before it
    /// did. All partitions have to mark rows of the same runs, so the first one decides for the others then.
    pub(crate) async fn runs_for(self: &Arc<Self>, wants_division: bool) -> Result<Arc<RunSet>> {
        let is_divided = if self.columns.marks_rows {
            *self.marks_divided.get_or_init(|| wants_division)
        } else {
            wants_division
        };
        if !is_divided {
            return Ok(self.runs());
        }
        let this = Arc::clone(self);
        // Work that is kept would keep the side that keeps the work.
        let runs = self.divided.get_or_restart(|| async move {
            // A task goes on while no partition is read, so others don't wait for the memory that it has.
            let task = SpawnedTask::spawn(this.divide());
            joined(task, "dividing spill runs").await
        });
        Ok(Arc::clone(&*runs.await?))
    }

    /// Divides the rows of all runs by hashes of the equality keys, in the memory for a run.
    async fn divide(self: Arc<Self>) -> Result<Arc<RunSet>> {
        let mut build_bytes = self.cache.without_part().await;
        let runs = self.runs();
        let dividing = DivideRuns {
            files: Arc::clone(&self.files),
            columns: self.columns.clone(),
            key_order: Arc::clone(&self.key_order),
            memory: self.memory.reservation(),
            run_bytes: self.retained_bytes.max(MIN_DIVIDED_BYTES),
            max_runs: (OPEN_FILES / self.probe_partitions.max(1)).clamp(16, 256),
        };
        let (divided, routing) = dividing.run(&runs, self.size).await?;
        // A batch may have taken more than there was to be.
        self.memory.retain(self.retained_bytes);
        let (first, marks_rows) = (runs.numbers().end, self.columns.marks_rows);
        let divided = RunSet::try_new(divided, first, Some(routing), marks_rows, &self.memory)?;
        let divided = Arc::new(divided);
        // What did not fit were runs of another size.
        *build_bytes = (*build_bytes).max(self.retained_bytes);
        *lock(&self.runs) = Arc::clone(&divided);
        Ok(divided)
    }

    /// The average bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.size.bytes.div_ceil(self.size.rows.max(1))
    }

    /// The types of the build side's columns in the rows that are returned.
    pub(crate) fn row_types(&self) -> Vec<DataType> {
        let fields = self.columns.values(self.schema.fields());
        let types = self.columns.row_columns.iter();
        types
            .map(|column| fields[*column].data_type().clone())
            .collect()
    }

    /// The estimated bytes that a row of a batch takes while it is buffered. Aggregates are in memory twice while the
    /// output is put together, and so are the rows.
    pub(crate) fn buffered_row_bytes(&self, batch: &RecordBatch) -> usize {
        let DataSize { rows, bytes } = DataSize::of_batch(batch);
        let row_bytes = bytes.div_ceil(rows.max(1));
        match self.merge_plan {
            Some(_) => 2 * (row_bytes + self.aggregate_bytes),
            None => row_bytes + RANGE_BYTES,
        }
    }

    /// The bytes of probe rows, and again of the rows that a turn returns, that a partition may hold.
    pub(crate) fn partition_bytes(&self) -> usize {
        self.buffer_limit.per_partition()
    }

    /// How many pairs are made at once, at most `most`: their rows are returned together.
    pub(crate) fn pairs_at_once(&self, most: usize) -> usize {
        // A row of the probe side takes about as much as one of the build side.
        let pair_bytes = (2 * self.row_bytes()).max(1);
        (self.partition_bytes() / pair_bytes).clamp(MIN_SPLIT_ROWS.min(most), most)
    }

    /// An empty buffer of probe rows.
    pub(crate) fn new_buffer(&self) -> ProbeBuffer {
        ProbeBuffer::new(Arc::clone(&self.buffer_limit), self.reservation())
    }

    /// An empty reservation.
    pub(crate) fn reservation(&self) -> MemoryReservation {
        self.memory.session_reservation()
    }

    /// Records that a partition has marked all its matches. Returns whether it is the last one, which sees the marks of
    /// all others.
    pub(crate) fn finish_partition(&self) -> bool {
        self.finished_partitions.fetch_add(1, Ordering::AcqRel) + 1 == self.probe_partitions
    }
}
