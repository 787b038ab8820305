//! The metrics that all operators have, and builders of others, so that all operators give theirs the same types and
//! categories.

use arrow::array::RecordBatch;
use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, MetricBuilder, MetricCategory, MetricType, Time, Timestamp,
};

use rmq_arrow::common::array_bytes::arrays_bytes;

/// The metrics that all operators have, of one partition: those of DataFusion's `BaselineMetrics`, but `output_bytes`
/// counts the bytes of the rows returned. DataFusion counts the whole buffers of each batch, and batches may be slices
/// of one buffer.
#[derive(Debug)]
pub(crate) struct OperatorMetrics {
    elapsed_compute: Time,
    output_rows: Count,
    output_bytes: Count,
    output_batches: Count,
    end: Timestamp,
}

impl OperatorMetrics {
    /// Begins now. The partition ends when this is dropped.
    pub(crate) fn new(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        let builder = || MetricBuilder::new(metrics);
        builder().start_timestamp(partition).record();
        Self {
            end: summary(metrics).end_timestamp(partition),
            elapsed_compute: summary(metrics).elapsed_compute(partition),
            output_rows: summary(metrics).output_rows(partition),
            output_bytes: summary(metrics).output_bytes(partition),
            output_batches: builder()
                .with_type(MetricType::Dev)
                .output_batches(partition),
        }
    }

    /// Time spent computing, on whatever thread or device.
    pub(crate) fn elapsed_compute(&self) -> &Time {
        &self.elapsed_compute
    }

    /// Records a batch that is returned.
    pub(crate) fn record(&self, batch: RecordBatch) -> RecordBatch {
        self.output_rows.add(batch.num_rows());
        self.output_bytes.add(arrays_bytes(batch.columns()));
        self.output_batches.add(1);
        batch
    }
}

impl Drop for OperatorMetrics {
    fn drop(&mut self) {
        self.end.record();
    }
}

/// A metric for high-level insight, which `datafusion.explain.analyze_level = 'summary'` keeps.
pub(crate) fn summary(metrics: &ExecutionPlanMetricsSet) -> MetricBuilder<'_> {
    MetricBuilder::new(metrics).with_type(MetricType::Summary)
}

/// A metric that counts rows.
pub(crate) fn rows(builder: MetricBuilder<'_>) -> MetricBuilder<'_> {
    builder.with_category(MetricCategory::Rows)
}

/// A metric that measures bytes.
pub(crate) fn bytes(builder: MetricBuilder<'_>) -> MetricBuilder<'_> {
    builder.with_category(MetricCategory::Bytes)
}
