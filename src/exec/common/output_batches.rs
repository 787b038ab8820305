//! The rows that an operator returns, in batches of the session's size.

use std::collections::VecDeque;

use arrow::array::RecordBatch;
use arrow::compute::BatchCoalescer;
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;

use rmq_arrow::common::dictionaries::has_few_keys;

/// Merges small batches, if possible.
pub(crate) struct OutputBatches {
    ready: VecDeque<RecordBatch>,
    /// `None` if each batch is returned as it is.
    coalescer: Option<BatchCoalescer>,
}

impl OutputBatches {
    /// No rows yet. Small batches are merged if `merges`, to batches of `size` rows, which makes rows wait for others.
    pub(crate) fn new(schema: &SchemaRef, size: usize, merges: bool) -> Self {
        let mut fields = schema.fields().iter();
        // Concatenating dictionaries whose keys are too narrow for the values of all batches fails or panics in Arrow.
        let merges = merges && !fields.any(|f| has_few_keys(f.data_type()));
        let coalescer = merges.then(|| {
            let size = size.max(1);
            let coalescer = BatchCoalescer::new(SchemaRef::clone(schema), size);
            coalescer.with_biggest_coalesce_batch_size(Some(size / 2))
        });
        Self {
            ready: VecDeque::new(),
            coalescer,
        }
    }

    /// Adds rows.
    pub(crate) fn add(&mut self, rows: impl IntoIterator<Item = RecordBatch>) {
        self.ready
            .extend(rows.into_iter().filter(|batch| batch.num_rows() > 0));
    }

    /// The next batch that is complete.
    pub(crate) fn next(&mut self) -> Result<Option<RecordBatch>> {
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
    pub(crate) fn finish(&mut self) -> Result<bool> {
        match &mut self.coalescer {
            Some(coalescer) if !coalescer.is_empty() => {
                coalescer.finish_buffered_batch()?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
