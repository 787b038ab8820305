//! Reads a run batch by batch.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::spill_file::SpillFile;
use datafusion::physical_plan::SpillManager;
use datafusion::physical_plan::metrics::Count;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use crate::exec::range_join::spill::row_position::RowPosition;

/// Writes and reads the files of one build side.
#[derive(Debug)]
pub(crate) struct SpillFiles {
    pub(crate) manager: SpillManager,
    /// The metric of how many times a run was read.
    pub(crate) runs_read: Count,
}

impl SpillFiles {
    /// Opens the file of a run whose first row has this position.
    pub(crate) fn read(
        &self,
        file: &Arc<dyn SpillFile>,
        first_row: RowPosition,
    ) -> Result<RunReader> {
        self.runs_read.add(1);
        let stream = self.manager.read_spill_as_stream(Arc::clone(file), None)?;
        Ok(RunReader::new(stream.boxed(), first_row))
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

    /// Whether all batches have been read.
    pub(crate) fn is_done(&self) -> bool {
        self.ended && self.put_back.is_empty()
    }
}
