//! Writes the rows of a build side to disk in spill runs, and opens them for reading.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryLimit;

use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::spill::key_extent::{KeyExtent, KeyOrder};
use crate::exec::range_join::spill::partition_writer::{BATCH_BYTES, PartitionWriter, slices};
use crate::exec::range_join::spill::reader::SpillFiles;
use crate::exec::range_join::spill::row_position::RowPosition;
use crate::exec::range_join::spill::run::{BuildRun, BuildRuns};

/// Writes and reads the spill runs of one build side.
#[derive(Debug)]
pub(crate) struct SpillStore {
    files: Arc<SpillFiles>,
    /// The index of the range key among the columns.
    key_column: usize,
    key_order: Arc<KeyOrder>,
}

impl SpillStore {
    /// A store for batches of this schema; `None` if the session's memory is unlimited or it may not write to disk.
    pub(crate) fn try_new(
        schema: &SchemaRef,
        key_column: usize,
        metrics: &BuildMetrics,
        context: &TaskContext,
    ) -> Result<Option<Arc<Self>>> {
        let unlimited = matches!(context.memory_pool().memory_limit(), MemoryLimit::Infinite);
        if unlimited || !context.runtime_env().disk_manager.tmp_files_enabled() {
            return Ok(None);
        }
        Ok(Some(Arc::new(Self {
            files: Arc::new(SpillFiles::new(schema, metrics, context)),
            key_column,
            key_order: Arc::new(KeyOrder::try_new(schema.field(key_column).data_type())?),
        })))
    }

    /// No runs yet, of rows that were collected in this much granted memory.
    pub(crate) fn new_runs(&self, peak_granted_bytes: usize) -> BuildRuns {
        BuildRuns::new(
            Arc::clone(&self.files),
            Arc::clone(&self.key_order),
            peak_granted_bytes,
        )
    }

    /// Appends consecutive rows, the first at position `first_row`, to `runs`: as one run, or as several that can each
    /// be built in the memory for a run.
    pub(crate) async fn write(
        self: &Arc<Self>,
        batches: Vec<RecordBatch>,
        first_row: RowPosition,
        runs: &mut BuildRuns,
    ) -> Result<()> {
        let (this, run_build_bytes) = (Arc::clone(self), runs.run_build_bytes());
        let batch_bytes = BATCH_BYTES.min(runs.retained_bytes() / 8);
        let size = batches.iter().map(DataSize::of_batch);
        let size = size.fold(DataSize::default(), |all, batch| all + batch);
        let sizes = (run_build_bytes, batch_bytes);
        let work = move |waiting| this.write_runs(batches, sizes, first_row, &waiting);
        runs.runs.extend(blocking(work).await?);
        runs.size = runs.size + size;
        Ok(())
    }

    fn write_runs(
        &self,
        batches: Vec<RecordBatch>,
        (run_build_bytes, batch_bytes): (usize, usize),
        mut first_row: RowPosition,
        waiting: &Waiting,
    ) -> Result<Vec<BuildRun>> {
        // Rows that were read from disk may take a little more memory.
        let run_build_bytes = run_build_bytes - run_build_bytes / 8;
        let mut written = vec![];
        let (mut run, mut size) = (vec![], DataSize::default());
        for batch in batches {
            for slice in slices(&batch, batch_bytes) {
                let slice_size = DataSize::of_batch(&slice);
                if !run.is_empty() && (size + slice_size).build_bytes() > run_build_bytes {
                    written.push(self.write_run(&run, first_row, waiting)?);
                    first_row = first_row.after(size.rows);
                    run.clear();
                    size = DataSize::default();
                }
                run.push(slice);
                size = size + slice_size;
            }
        }
        if !run.is_empty() {
            written.push(self.write_run(&run, first_row, waiting)?);
        }
        Ok(written)
    }

    fn write_run(
        &self,
        batches: &[RecordBatch],
        first_row: RowPosition,
        waiting: &Waiting,
    ) -> Result<BuildRun> {
        let mut file = PartitionWriter::new(Arc::clone(&self.files), 1);
        let mut keys = None;
        for batch in batches {
            waiting.check()?;
            file.append(0, batch)?;
            let batch_keys = self.key_order.extent(batch.column(self.key_column))?;
            keys = KeyExtent::union(keys, batch_keys);
        }
        let rows = file.finish_one()?;
        Ok(BuildRun {
            rows: rows.ok_or_else(|| internal_datafusion_err!("a spill run has no rows"))?,
            first_row,
            keys,
        })
    }
}
