//! Writes rows to a file for each of several partitions.

use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::{interleave_record_batch, take_record_batch};
use datafusion::common::Result;
use datafusion::execution::spill_file::SpillFile;

use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::spill::reader::{SpillFiles, SpilledRows};
use rmq_arrow::common::dictionaries::has_few_keys;
use rmq_arrow::common::row_number::row_numbers;

/// The target size of a batch in a file, where there is memory for eight: the least memory that reading needs.
pub(crate) const BATCH_BYTES: usize = 128 << 10;

/// The least rows of a batch in a file, because each batch has a fixed cost.
const MIN_BATCH_ROWS: usize = 1024;

/// A row of some batches: the batch, and the row in it.
pub(crate) type BatchRow = (usize, usize);

/// Appends a batch to a file, or ends it without one. `DataFusion` does not export the type of such a file.
type OpenFile = Box<dyn FnMut(Option<&RecordBatch>) -> Result<Option<Arc<dyn SpillFile>>> + Send>;

/// Files that are being written, one for each partition with rows.
pub(crate) struct PartitionWriter {
    files: Arc<SpillFiles>,
    partitions: Vec<Partition>,
    /// The target size of a batch.
    batch_bytes: usize,
}

#[derive(Default)]
struct Partition {
    file: Option<OpenFile>,
    size: DataSize,
}

impl PartitionWriter {
    pub(crate) fn new(files: Arc<SpillFiles>, partitions: usize) -> Self {
        let partitions = (0..partitions).map(|_| Partition::default()).collect();
        Self {
            files,
            partitions,
            batch_bytes: BATCH_BYTES,
        }
    }

    /// The same writer of batches that are at most about as large.
    pub(crate) fn with_batch_bytes(self, bytes: usize) -> Self {
        let batch_bytes = self.batch_bytes.min(bytes);
        Self {
            batch_bytes,
            ..self
        }
    }

    /// Appends a batch to a partition.
    pub(crate) fn append(&mut self, partition: usize, batch: &RecordBatch) -> Result<()> {
        let Partition { file, size } = &mut self.partitions[partition];
        let file = match file {
            Some(file) => file,
            None => {
                let what = "writing a side of a range join";
                let mut open = self.files.manager.create_in_progress_file(what)?;
                file.insert(Box::new(move |batch| match batch {
                    Some(batch) => open.append_batch(batch).map(|_| None),
                    None => open.finish(),
                }))
            }
        };
        for slice in slices(batch, self.batch_bytes) {
            file(Some(&slice))?;
            *size = *size + DataSize::of_batch(&slice);
        }
        Ok(())
    }

    /// Appends rows of some batches, those of each partition, and shows each batch of them to `written`. Calls `check`
    /// between partitions.
    pub(crate) fn append_rows(
        &mut self,
        batches: &[RecordBatch],
        rows: &[Vec<BatchRow>],
        check: &dyn Fn() -> Result<()>,
        mut written: impl FnMut(usize, &RecordBatch) -> Result<()>,
    ) -> Result<()> {
        for (partition, rows) in rows.iter().enumerate() {
            check()?;
            for batch in gather(batches, rows)? {
                written(partition, &batch)?;
                self.append(partition, &batch)?;
            }
        }
        Ok(())
    }

    /// Ends the file of the only partition. Returns its rows, if it has any.
    pub(crate) fn finish_one(self) -> Result<Option<SpilledRows>> {
        let rows = self.finish()?.into_iter().next().flatten();
        Ok(rows.map(|(rows, _)| rows))
    }

    /// Ends all files. Returns the rows of each partition and their size; `None` if it has none.
    pub(crate) fn finish(self) -> Result<Vec<Option<(SpilledRows, DataSize)>>> {
        let partitions = self.partitions.into_iter();
        let partitions = partitions.map(|Partition { file, size }| {
            let file = match file {
                Some(mut file) => file(None)?,
                None => None,
            };
            let files = Arc::clone(&self.files);
            let rows = size.rows;
            Ok(file.map(|file| (SpilledRows { file, files, rows }, size)))
        });
        partitions.collect()
    }
}

/// Slices of a batch of about this many bytes.
pub(crate) fn slices(batch: &RecordBatch, batch_bytes: usize) -> impl Iterator<Item = RecordBatch> {
    let DataSize { rows, bytes } = DataSize::of_batch(batch);
    let step = (rows * batch_bytes / bytes.max(1)).max(MIN_BATCH_ROWS);
    let starts = (0..rows).step_by(step);
    starts.map(move |start| batch.slice(start, step.min(rows - start)))
}

/// These rows of some batches as batches: one, unless dictionaries have too few keys for the values of several.
fn gather(batches: &[RecordBatch], rows: &[BatchRow]) -> Result<Vec<RecordBatch>> {
    let Some(first) = batches.first().filter(|_| !rows.is_empty()) else {
        return Ok(vec![]);
    };
    let schema = first.schema();
    if batches.len() > 1 && !schema.fields().iter().any(|f| has_few_keys(f.data_type())) {
        let batches: Vec<&RecordBatch> = batches.iter().collect();
        return Ok(vec![interleave_record_batch(&batches, rows)?]);
    }
    let of_batches = rows.chunk_by(|(a, _), (b, _)| a == b);
    let of_batches = of_batches.map(|rows| {
        let numbers = row_numbers(rows.iter().map(|(_, row)| *row))?;
        let batch = &batches[rows[0].0];
        Ok(take_record_batch(batch, &UInt32Array::from(numbers))?)
    });
    of_batches.collect()
}
