//! What `EXPLAIN ANALYZE` says of a range join by key.

use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, SpillMetrics, Time,
};

/// Metrics of the build side, which the partitions share.
#[derive(Debug, Clone)]
pub(crate) struct BuildMetrics {
    /// Time from the first batch of the build side until it can be asked. Indexes may be built later.
    pub(crate) build_time: Time,
    /// Time of sorting, or of finding that the rows are sorted.
    pub(crate) sort_time: Time,
    /// Time of building indexes.
    pub(crate) index_time: Time,
    /// Bytes of the indexes, columns not included.
    pub(crate) index_bytes: Gauge,
    /// Rows of the build side.
    pub(crate) build_rows: Count,
    /// Bytes of all that is kept of the build side.
    pub(crate) build_mem_used: Gauge,
    /// 1 where the rows came sorted.
    pub(crate) already_sorted: Count,
    /// What was written to disk.
    pub(crate) spill: SpillMetrics,
    /// How often a piece was read from disk.
    pub(crate) pieces_read: Count,
    set: ExecutionPlanMetricsSet,
}

impl BuildMetrics {
    pub(crate) fn new(metrics: &ExecutionPlanMetricsSet) -> Self {
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
            set: metrics.clone(),
        }
    }

    /// Notes how many bytes of each device the join takes; shown only where it takes any.
    pub(crate) fn note_device_bytes(&self, bytes: usize) {
        MetricBuilder::new(&self.set)
            .gauge("device_bytes", 0)
            .add(bytes);
    }

    /// Notes an index that was meant for devices.
    pub(crate) fn note_fallback(&self) {
        MetricBuilder::new(&self.set)
            .counter("cuda_fallbacks", 0)
            .add(1);
    }

    /// For a piece of the build side, which may be built many times: its rows are counted when it is written.
    pub(crate) fn of_a_piece(&self) -> Self {
        Self {
            build_rows: Count::new(),
            already_sorted: Count::new(),
            index_bytes: Gauge::new(),
            ..self.clone()
        }
    }
}

/// Metrics of one partition whose rows go to devices; shown only where they do.
#[derive(Debug)]
pub(crate) struct DeviceMetrics {
    /// Batches that devices answered, each gathered from many.
    pub(crate) device_batches: Count,
    /// Searches and answers that were meant for devices and that the CPU took.
    pub(crate) cuda_fallbacks: Count,
}

/// Metrics of one partition of the probe side.
#[derive(Debug)]
pub(crate) struct ProbeMetrics {
    /// Output rows, elapsed compute.
    pub(crate) baseline: BaselineMetrics,
    /// Rows of the probe side.
    pub(crate) probe_rows: Count,
    /// Time of finding positions.
    pub(crate) search_time: Time,
    /// Time of answering.
    pub(crate) query_time: Time,
    partition: usize,
    set: ExecutionPlanMetricsSet,
}

impl ProbeMetrics {
    pub(crate) fn new(partition: usize, metrics: &ExecutionPlanMetricsSet) -> Self {
        let builder = || MetricBuilder::new(metrics);
        Self {
            baseline: BaselineMetrics::new(metrics, partition),
            probe_rows: builder().counter("probe_rows", partition),
            search_time: builder().subset_time("search_time", partition),
            query_time: builder().subset_time("query_time", partition),
            partition,
            set: metrics.clone(),
        }
    }

    /// Notes rows that were compared with the whole build side; shown only where any were.
    pub(crate) fn note_picked(&self, rows: usize) {
        MetricBuilder::new(&self.set)
            .counter("picked_rows", self.partition)
            .add(rows);
    }

    /// Those of a partition whose rows go to devices.
    pub(crate) fn on_devices(&self) -> DeviceMetrics {
        let builder = || MetricBuilder::new(&self.set);
        DeviceMetrics {
            device_batches: builder().counter("device_batches", self.partition),
            cuda_fallbacks: builder().counter("cuda_fallbacks", self.partition),
        }
    }
}
