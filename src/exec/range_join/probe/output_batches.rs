//! The rows that a partition returns, in batches of the session's size.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::BatchCoalescer;
use datafusion::common::Result;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};

use crate::common::dictionaries::has_few_keys;
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
    let output = OutputBatches::new(&partition, partition.is_bounded);
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

/// Merges small batches, if possible.
struct OutputBatches {
    ready: VecDeque<RecordBatch>,
    /// `None` if each batch is returned as it is.
    coalescer: Option<BatchCoalescer>,
}

impl OutputBatches {
    /// No rows of this partition yet. Small batches are merged if `merges`, which makes rows wait for others.
    fn new(partition: &ProbePartition, merges: bool) -> Self {
        let mut fields = partition.schema.fields().iter();
        // Concatenating dictionaries whose keys are too narrow for the values of all batches fails or panics in Arrow.
        let merges = merges && !fields.any(|f| has_few_keys(f.data_type()));
        let coalescer = merges.then(|| {
            let size = partition
                .batch_size
                .min(partition.fetch.unwrap_or(usize::MAX));
            let size = size.max(1);
            let coalescer = BatchCoalescer::new(Arc::clone(&partition.schema), size);
            coalescer.with_biggest_coalesce_batch_size(Some(size / 2))
        });
        Self {
            ready: VecDeque::new(),
            coalescer,
        }
    }

    /// Adds rows.
    fn add(&mut self, rows: Vec<RecordBatch>) {
        self.ready
            .extend(rows.into_iter().filter(|batch| batch.num_rows() > 0));
    }

    /// The next batch that is complete.
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let Some(coalescer) = &mut self.coalescer else {
            return Ok(self.ready.pop_front());
        };
        loop {
            if let Some(batch) = coalescer.next_completed_batch() {
                return Ok(Some(batch));
            }
            match self.ready.pop_front() {
                Some(batch) => coalescer.push_batch(batch)?,
                None => return Ok(None),
            }
        }
    }

    /// Completes the last batch: no more rows come. Returns whether there is one.
    fn finish(&mut self) -> Result<bool> {
        match &mut self.coalescer {
            Some(coalescer) if !coalescer.is_empty() => {
                coalescer.finish_buffered_batch()?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
