//! The stream of one partition: evaluates the bounds of each batch, asks the indexes, adds the answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, exec_err, internal_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::RecordOutput;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, TryStreamExt};

use super::metrics::RangeJoinMetrics;
use super::range_join::PhysicalCall;
use super::relation::PreparedIndex;
use crate::functions::bounds::Ranges;

/// Calls that one search of one index answers.
#[derive(Debug)]
pub(super) struct Search {
    /// The first of them, which stands for the bounds and the index of all.
    pub(super) call: PhysicalCall,
    /// Of each call: its place among the operator's calls, and whether it asks for the position.
    pub(super) places: Vec<(usize, bool)>,
}

/// What one partition needs to answer its batches.
#[derive(Debug)]
pub(super) struct Answering {
    pub(super) schema: SchemaRef,
    pub(super) searches: Vec<Search>,
    pub(super) metrics: RangeJoinMetrics,
    pub(super) context: Arc<TaskContext>,
    /// Whether another partition has put the indexes into the metrics.
    pub(super) noted: Arc<AtomicBool>,
    /// The indexes that the searches ask, in their order; empty until the first row arrives.
    pub(super) prepared: Vec<PreparedIndex>,
}

impl Answering {
    /// The input with the answers, batch by batch.
    pub(super) fn stream(self, input: SendableRecordBatchStream) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.schema);
        let batches = futures::stream::try_unfold((self, input), |(mut this, mut input)| async {
            let Some(batch) = input.try_next().await? else {
                return Ok(None);
            };
            let batch = this.answer(&batch).await?;
            Ok(Some((batch, (this, input))))
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, batches.fuse()))
    }

    async fn answer(&mut self, batch: &RecordBatch) -> Result<RecordBatch> {
        if batch.num_rows() == 0 {
            return Ok(RecordBatch::new_empty(Arc::clone(&self.schema)));
        }
        if self.prepared.is_empty() {
            self.prepare().await?;
        }
        let compute = self.metrics.baseline.elapsed_compute().clone();
        let _timer = compute.timer();
        let rows = batch.num_rows();
        let calls = self.schema.fields().len() - batch.num_columns();
        let mut answers: Vec<Option<ArrayRef>> = vec![None; calls];
        for (search, prepared) in self.searches.iter().zip(&self.prepared) {
            let left = search.call.left.evaluate(batch)?.into_array(rows)?;
            let right = search.call.right.evaluate(batch)?.into_array(rows)?;
            let ranges = Ranges::try_new(&left, &right)?;
            let wants = |position| search.places.iter().any(|(_, p)| *p == position);
            let query_timer = self.metrics.query_time.timer();
            let answer = prepared
                .held
                .index
                .answer(&ranges, wants(false), wants(true))?;
            query_timer.done();
            for (place, position) in &search.places {
                answers[*place] = if *position {
                    answer.positions.clone()
                } else {
                    answer.values.clone()
                };
            }
        }
        let mut columns = batch.columns().to_vec();
        for answer in answers {
            columns.push(answer.ok_or_else(|| internal_datafusion_err!("a call has no answer"))?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
        Ok(batch.record_output(&self.metrics.baseline))
    }

    async fn prepare(&mut self) -> Result<()> {
        let mut prepared = vec![];
        for Search { call, .. } in &self.searches {
            let extreme = call.function.extreme;
            let index = call
                .relation
                .index(&call.column, extreme, &self.context)
                .await?;
            let found = call.function.result_type(index.held.index.value_type());
            if found != call.data_type {
                return exec_err!(
                    "{call}: the column was a {} when the query was planned and now is a {found}; run the query again",
                    call.data_type
                );
            }
            prepared.push(index);
        }
        if !self.noted.swap(true, Ordering::Relaxed) {
            for index in &prepared {
                self.metrics.note_index(index);
            }
        }
        self.prepared = prepared;
        Ok(())
    }
}
