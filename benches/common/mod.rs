//! What the SQL benchmarks share: tables in memory.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::prelude::SessionContext;

/// Rows in a batch, as DataFusion's own readers produce them.
pub const BATCH_SIZE: usize = 8192;

/// Registers a table in memory. Each partition is one contiguous part of the rows, in batches of `batch_size`.
pub fn register_table(
    ctx: &SessionContext,
    name: &str,
    columns: Vec<(&str, ArrayRef)>,
    partitions: usize,
    batch_size: usize,
) -> Result<()> {
    let table = RecordBatch::try_from_iter(columns)?;
    let rows = table.num_rows();
    let share = rows.div_ceil(partitions).max(1);
    let partitions = (0..rows).step_by(share).map(|start| {
        let end = rows.min(start + share);
        let batches = (start..end).step_by(batch_size);
        batches
            .map(|from| table.slice(from, batch_size.min(end - from)))
            .collect()
    });
    let table = MemTable::try_new(table.schema(), partitions.collect())?;
    ctx.register_table(name, Arc::new(table))?;
    Ok(())
}
