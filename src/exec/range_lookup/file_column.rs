//! A column of Parquet files that is not in memory: ranges are answered by the extremes of its chunks, and by the rows
//! at the edges of ranges, which are read.

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::TaskContext;

use crate::exec::range_lookup::file_rows::{AskedColumn, FileRows};
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::index::chunk_extremes::Block;
use rmq_arrow::index::column_index::ColumnIndex;
use rmq_arrow::index::key_index::Answer;

/// A column of files, one of whose extremes is asked.
#[derive(Debug)]
pub(crate) struct FileColumn {
    pub(crate) rows: Arc<FileRows>,
    pub(crate) asked: AskedColumn,
    /// How many tasks may read at a time.
    pub(crate) tasks: usize,
}

impl FileColumn {
    /// Answers ranges by the index of the column's chunks. Also returns the number of rows that were read.
    ///
    /// # Errors
    /// Those of reading the files, also if they have changed, and the engine's.
    pub(crate) async fn answer(
        &self,
        index: &ColumnIndex,
        ranges: &Ranges,
        context: &Arc<TaskContext>,
    ) -> Result<(Answer, usize)> {
        let chunks = index
            .chunks()
            .ok_or_else(|| internal_datafusion_err!("a column of files has no chunks"))?;
        let partial = chunks.answer(index.keys()?, ranges)?;
        let (blocks, edges) = partial.edges();
        let rows = blocks.iter().map(Block::len).sum();
        let asked = vec![self.asked.clone()];
        let mut read = self.rows.answer(asked, blocks, self.tasks, context).await?;
        let read = read.pop().unwrap_or_default();
        let extreme = self.asked.extreme;
        let answer = chunks.finish(index.keys()?, extreme, partial, &edges, read)?;
        Ok((answer, rows))
    }
}
