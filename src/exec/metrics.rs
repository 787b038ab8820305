//! What `EXPLAIN ANALYZE` shows of a range join.

use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, Time,
};

use super::relation::PreparedIndex;

/// Metrics of one partition.
#[derive(Debug)]
pub(crate) struct RangeJoinMetrics {
    /// Output rows, elapsed compute.
    pub(crate) baseline: BaselineMetrics,
    /// Time spent answering ranges.
    pub(crate) query_time: Time,
    /// Time it took to build the indexes that were not there.
    index_build_time: Time,
    /// Time it took to read the columns of those.
    index_load_time: Time,
    /// Bytes of the indexes asked, columns not included.
    index_bytes: Gauge,
    /// Rows of the columns asked.
    index_rows: Gauge,
    /// How many indexes this query built.
    indexes_built: Count,
    /// How many an earlier query had left.
    indexes_reused: Count,
}

impl RangeJoinMetrics {
    pub(crate) fn new(partition: usize, metrics: &ExecutionPlanMetricsSet) -> Self {
        let builder = || MetricBuilder::new(metrics);
        Self {
            baseline: BaselineMetrics::new(metrics, partition),
            query_time: builder().subset_time("query_time", partition),
            index_build_time: builder().subset_time("index_build_time", partition),
            index_load_time: builder().subset_time("index_load_time", partition),
            index_bytes: builder().gauge("index_bytes", partition),
            index_rows: builder().gauge("index_rows", partition),
            indexes_built: builder().counter("indexes_built", partition),
            indexes_reused: builder().counter("indexes_reused", partition),
        }
    }

    /// Notes an index that this operator asks.
    pub(crate) fn note_index(&self, prepared: &PreparedIndex) {
        let index = &prepared.held.index;
        self.index_bytes.add(index.index_bytes());
        self.index_rows.add(index.rows());
        if let Some(load_time) = prepared.built {
            self.indexes_built.add(1);
            self.index_build_time.add_duration(index.build_time());
            self.index_load_time.add_duration(load_time);
        } else {
            self.indexes_reused.add(1);
        }
    }
}
