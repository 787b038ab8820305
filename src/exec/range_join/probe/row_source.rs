//! The output stream of a partition that returns rows.

use std::future::Future;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};

use crate::exec::common::output_batches::OutputBatches;
use crate::exec::range_join::probe::partition::ProbePartition;

/// Finds the rows that a partition returns.
pub(crate) trait RowSource: Send + 'static {
    /// More rows, possibly none; `None` at the end.
    fn next_rows(&mut self) -> impl Future<Output = Result<Option<Vec<RecordBatch>>>> + Send;
}

/// The output stream of a partition.
pub(crate) fn stream_rows(
    partition: Arc<ProbePartition>,
    rows: impl RowSource,
) -> BoxStream<'static, Result<RecordBatch>> {
    let size = partition
        .fetch
        .map_or(partition.batch_size, |rows| partition.batch_size.min(rows));
    let output = OutputBatches::new(&partition.schema, size, partition.is_bounded);
    let batches = stream::try_unfold(
        (output, rows, partition),
        |(mut output, mut rows, partition)| async move {
            loop {
                if let Some(batch) = output.next()? {
                    let batch = partition.metrics.baseline.record(batch);
                    return Ok(Some((batch, (output, rows, partition))));
                }
                match rows.next_rows().await? {
                    Some(rows) => output.add(rows),
                    None if output.finish()? => {}
                    None => return Ok(None),
                }
                // Lets other tasks run, and lets a cancelled query end.
                tokio::task::coop::consume_budget().await;
            }
        },
    );
    batches.boxed()
}
