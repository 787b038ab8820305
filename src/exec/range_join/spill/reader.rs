//! Rows in spill files, and the reader of a run.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::config::SpillCompression;
use datafusion::execution::TaskContext;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::spill_file::SpillFile;
use datafusion::physical_plan::SpillManager;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::spill::row_position::RowPosition;

/// Writes and reads files of rows of one schema.
#[derive(Debug)]
pub(crate) struct SpillFiles {
    pub(crate) manager: SpillManager,
    runtime: Arc<RuntimeEnv>,
    compression: SpillCompression,
    pub(crate) metrics: BuildMetrics,
}

impl SpillFiles {
    pub(crate) fn new(schema: &SchemaRef, metrics: &BuildMetrics, context: &TaskContext) -> Self {
        let compression = context.session_config().spill_compression();
        Self::with_parts(schema, metrics, context.runtime_env(), compression)
    }

    /// The same for rows of another schema.
    pub(crate) fn for_schema(&self, schema: &SchemaRef) -> Self {
        let runtime = Arc::clone(&self.runtime);
        Self::with_parts(schema, &self.metrics, runtime, self.compression)
    }

    fn with_parts(
        schema: &SchemaRef,
        metrics: &BuildMetrics,
        runtime: Arc<RuntimeEnv>,
        compression: SpillCompression,
    ) -> Self {
        let (spill, schema) = (metrics.spill.clone(), Arc::clone(schema));
        let manager = SpillManager::new(Arc::clone(&runtime), spill, schema);
        Self {
            manager: manager.with_compression_type(compression),
            runtime,
            compression,
            metrics: metrics.clone(),
        }
    }
}

/// Rows in a file, which is deleted with this.
#[derive(Clone)]
pub(crate) struct SpilledRows {
    pub(crate) file: Arc<dyn SpillFile>,
    pub(crate) files: Arc<SpillFiles>,
    pub(crate) rows: usize,
}

impl SpilledRows {
    /// Reads the batches that were written; if `is_ahead`, before the consumer polls for them.
    pub(crate) fn read(&self, is_ahead: bool) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let (manager, file) = (&self.files.manager, Arc::clone(&self.file));
        let stream = if is_ahead {
            manager.read_spill_as_stream(file, None)?
        } else {
            manager.read_spill_as_stream_unbuffered(file, None)?
        };
        // The bytes of a batch are not known: each row is counted with the average.
        let (rows, read) = (
            self.rows.max(1),
            self.files.metrics.spill_read_bytes.clone(),
        );
        let bytes = self
            .file
            .size()
            .and_then(|bytes| usize::try_from(bytes).ok());
        let counted = stream.inspect_ok(move |batch| {
            // A file that does not tell its size is not counted.
            if let Some(bytes) = bytes {
                let share = bytes as u128 * batch.num_rows() as u128 / rows as u128;
                read.add(usize::try_from(share).unwrap_or(bytes));
            }
        });
        Ok(counted.boxed())
    }
}

impl fmt::Debug for SpilledRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpilledRows")
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

/// A run that is being read. Batches can be put back, to be read again in smaller groups.
pub(crate) struct RunReader {
    stream: BoxStream<'static, Result<RecordBatch>>,
    put_back: VecDeque<RecordBatch>,
    /// The position of the next row that has not been built.
    next_row: RowPosition,
    /// The number of rows of the run before it.
    rows_before: usize,
    ended: bool,
}

impl RunReader {
    pub(crate) fn new(
        stream: BoxStream<'static, Result<RecordBatch>>,
        first_row: RowPosition,
    ) -> Self {
        Self {
            stream,
            put_back: VecDeque::new(),
            next_row: first_row,
            rows_before: 0,
            ended: false,
        }
    }

    /// The next batch; `None` at the end of the run.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(batch) = self.put_back.pop_front() {
            return Ok(Some(batch));
        }
        let batch = if self.ended {
            None
        } else {
            self.stream.try_next().await?
        };
        self.ended = batch.is_none();
        Ok(batch)
    }

    /// Returns batches to the front of the run, in their order.
    pub(crate) fn put_back(
        &mut self,
        batches: impl IntoIterator<Item = RecordBatch, IntoIter: DoubleEndedIterator>,
    ) {
        for batch in batches.into_iter().rev() {
            self.put_back.push_front(batch);
        }
    }

    /// Reads past the next `rows` rows.
    ///
    /// # Errors
    /// Those of reading the file.
    pub(crate) async fn skip(&mut self, rows: usize) -> Result<()> {
        let mut left = rows;
        while left > 0
            && let Some(batch) = self.next().await?
        {
            if batch.num_rows() > left {
                self.put_back([batch.slice(left, batch.num_rows() - left)]);
                break;
            }
            left -= batch.num_rows();
        }
        self.advance(rows);
        Ok(())
    }

    /// The number of rows of the run that have been built, or skipped.
    pub(crate) fn rows_before(&self) -> usize {
        self.rows_before
    }

    /// Advances past `rows` rows that have been built. Returns the position of the first of them.
    pub(crate) fn advance(&mut self, rows: usize) -> RowPosition {
        let first_row = self.next_row;
        self.next_row = first_row.after(rows);
        self.rows_before += rows;
        first_row
    }
}
