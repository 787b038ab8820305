//! What `EXPLAIN ANALYZE` says of a range join by key.

use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, SpillMetrics, Time,
};

/// Metrics of the build side, which the partitions share.
#[derive(Debug, Clone)]
pub(super) struct BuildMetrics {
    /// Time from the first batch of the build side to the last index.
    pub(super) build_time: Time,
    /// Time of sorting, or of finding that the rows are sorted.
    pub(super) sort_time: Time,
    /// Time of building indexes.
    pub(super) index_time: Time,
    /// Bytes of the indexes, columns not included.
    pub(super) index_bytes: Gauge,
    /// Rows of the build side.
    pub(super) build_rows: Count,
    /// Bytes of all that is kept of the build side.
    pub(super) build_mem_used: Gauge,
    /// 1 where the rows came sorted.
    pub(super) already_sorted: Count,
    /// What was written to disk.
    pub(super) spill: SpillMetrics,
    /// How often a piece was read from disk.
    pub(super) pieces_read: Count,
}

impl BuildMetrics {
    pub(super) fn new(metrics: &ExecutionPlanMetricsSet) -> Self {
        let builder = || MetricBuilder::new(metrics);
        Self {
            build_time: builder().subset_time("build_time", 0),
            sort_time: builder().subset_time("sort_time", 0),
            index_time: builder().subset_time("index_time", 0),
            index_bytes: builder().gauge("index_bytes", 0),
            build_rows: builder().counter("build_rows", 0),
            build_mem_used: builder().gauge("build_mem_used", 0),
            already_sorted: builder().counter("already_sorted", 0),
            spill: SpillMetrics::new(metrics, 0),
            pieces_read: builder().counter("pieces_read", 0),
        }
    }

    /// For a piece of the build side, which may be built many times: its rows are counted when it is written.
    pub(super) fn of_a_piece(&self) -> Self {
        Self {
            build_rows: Count::new(),
            already_sorted: Count::new(),
            index_bytes: Gauge::new(),
            ..self.clone()
        }
    }
}

/// Metrics of one partition of the probe side.
#[derive(Debug)]
pub(super) struct ProbeMetrics {
    /// Output rows, elapsed compute.
    pub(super) baseline: BaselineMetrics,
    /// Rows of the probe side.
    pub(super) probe_rows: Count,
    /// Time of finding positions.
    pub(super) search_time: Time,
    /// Time of answering.
    pub(super) query_time: Time,
}

impl ProbeMetrics {
    pub(super) fn new(partition: usize, metrics: &ExecutionPlanMetricsSet) -> Self {
        let builder = || MetricBuilder::new(metrics);
        Self {
            baseline: BaselineMetrics::new(metrics, partition),
            probe_rows: builder().counter("probe_rows", partition),
            search_time: builder().subset_time("search_time", partition),
            query_time: builder().subset_time("query_time", partition),
        }
    }
}
