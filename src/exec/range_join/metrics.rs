//! The metrics of a range join that `EXPLAIN ANALYZE` shows.

use std::sync::OnceLock;
use std::time::Instant;

use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, ScopedTimerGuard, SpillMetrics, Time,
};

use crate::exec::common::metrics::{OperatorMetrics, bytes, rows, summary};
use rmq_engine::RangeJoinTimes;

/// The metric of rows of which only those that windows reach are sorted.
pub(crate) const ROWS_SCANNED: &str = "rows_scanned";

/// Rows of which only those that windows reach are sorted, and those of them that no window reaches.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReachCounts {
    pub(crate) scanned: Count,
    pub(crate) dropped: Count,
}

/// Metrics of the build side, which all partitions share.
#[derive(Debug, Clone)]
pub(crate) struct BuildMetrics {
    /// Time from the first batch of the build side until it is ready to be probed. Indexes may be built later.
    pub(crate) build_time: Time,
    /// Time spent computing what partitions of the probe side share: sorting, and building indexes.
    pub(crate) elapsed_compute: Time,
    /// Time spent sorting, or detecting that the rows are sorted.
    pub(crate) sort_time: Time,
    /// Time spent building indexes.
    pub(crate) index_time: Time,
    /// Bytes of the indexes, without their columns.
    pub(crate) index_bytes: Gauge,
    /// Rows of the build side.
    pub(crate) build_rows: Count,
    /// Bytes of memory that the build side takes.
    pub(crate) build_mem_used: Gauge,
    /// 1 if the rows arrived sorted.
    pub(crate) already_sorted: Count,
    /// Files, bytes and rows written to disk.
    pub(crate) spill: SpillMetrics,
    /// How many times a spill run was read from disk.
    pub(crate) spill_runs_read: Count,
    /// Bytes of spill files that were read.
    pub(crate) spill_read_bytes: Count,
    set: ExecutionPlanMetricsSet,
}

impl BuildMetrics {
    pub(crate) fn new(metrics: &ExecutionPlanMetricsSet) -> Self {
        let builder = || MetricBuilder::new(metrics);
        let spill = SpillMetrics {
            spill_file_count: summary(metrics).spill_count(0),
            spilled_bytes: summary(metrics).spilled_bytes(0),
            spilled_rows: summary(metrics).spilled_rows(0),
        };
        Self {
            build_time: summary(metrics).subset_time("build_time", 0),
            elapsed_compute: summary(metrics).elapsed_compute(0),
            sort_time: builder().subset_time("sort_time", 0),
            index_time: builder().subset_time("index_time", 0),
            index_bytes: bytes(summary(metrics)).gauge("index_bytes", 0),
            build_rows: rows(summary(metrics)).counter("build_rows", 0),
            build_mem_used: bytes(summary(metrics)).gauge("build_mem_used", 0),
            already_sorted: builder().counter("already_sorted", 0),
            spill,
            spill_runs_read: summary(metrics).counter("spill_runs_read", 0),
            spill_read_bytes: bytes(summary(metrics)).counter("spill_read_bytes", 0),
            set: metrics.clone(),
        }
    }

    /// Records that what partitions share has been computed since `started`.
    pub(crate) fn record_build(&self, started: Instant) {
        self.build_time.add_elapsed(started);
        self.elapsed_compute.add_elapsed(started);
    }

    /// Records how long a build on devices took.
    pub(crate) fn record_build_on_devices(&self, times: RangeJoinTimes) {
        let sort_time = times.upload + times.sort + times.gather;
        self.sort_time.add_duration(sort_time);
        self.index_time.add_duration(times.index);
    }

    /// Records how many bytes the join takes on each device. The metric is shown only if it takes any.
    pub(crate) fn record_device_bytes(&self, device_bytes: usize) {
        bytes(summary(&self.set))
            .gauge("device_bytes", 0)
            .add(device_bytes);
    }

    /// Records that the build side of an earlier query is used. The metric is shown only then.
    pub(crate) fn record_kept(&self) {
        summary(&self.set).counter("index_kept", 0).add(1);
    }

    /// Records that a build side of another process is read from its files. The metric is shown only then.
    pub(crate) fn record_loaded(&self) {
        summary(&self.set).counter("index_loaded", 0).add(1);
    }

    /// Counts the rows of a build side of which only what windows reach is sorted. The metrics are shown only then.
    pub(crate) fn reach_counts(&self) -> ReachCounts {
        let count = |name| rows(summary(&self.set)).counter(name, 0);
        ReachCounts {
            scanned: count(ROWS_SCANNED),
            dropped: count("rows_dropped"),
        }
    }

    /// Records that a slice of the build side was read. The metric is shown only then.
    pub(crate) fn record_slice(&self) {
        summary(&self.set).counter("slices", 0).add(1);
    }

    /// Records that the build side consists of this many segments. The metric is shown only then.
    pub(crate) fn record_segments(&self, segments: usize) {
        summary(&self.set)
            .counter("index_segments", 0)
            .add(segments);
    }

    /// Records that the CPU builds an index that was planned for devices.
    pub(crate) fn record_cpu_fallback(&self) {
        summary(&self.set).counter("cuda_fallbacks", 0).add(1);
    }

    /// Records ranges whose rows were not read, as order statistics answered them.
    pub(crate) fn record_order_statistics(&self, ranges: usize) {
        summary(&self.set)
            .counter("order_statistics", 0)
            .add(ranges);
    }

    /// Records ranges whose rows were not all read, as the states of blocks of them were merged.
    pub(crate) fn record_block_states(&self, ranges: usize) {
        summary(&self.set).counter("block_states", 0).add(ranges);
    }

    /// Records ranges whose rows were read, as there was no memory for what answers them otherwise. The metric is shown
    /// only then.
    pub(crate) fn record_without_index(&self, ranges: usize) {
        summary(&self.set)
            .counter("windows_without_index", 0)
            .add(ranges);
    }

    /// The metrics for building a spill run, or a build side that was on devices. Rows that may be built several times
    /// are counted once.
    pub(crate) fn for_rebuild(&self) -> Self {
        Self {
            build_rows: Count::new(),
            already_sorted: Count::new(),
            index_bytes: Gauge::new(),
            ..self.clone()
        }
    }
}

/// Metrics of one partition whose rows are sent to devices; shown only for such partitions.
#[derive(Debug, Clone)]
pub(crate) struct DeviceMetrics {
    /// Batches that devices processed, each coalesced from several input batches.
    pub(crate) device_batches: Count,
    /// Searches and aggregations that were planned for devices and ran on the CPU.
    pub(crate) cuda_fallbacks: Count,
}

/// Metrics of one partition of the probe side.
#[derive(Debug)]
pub(crate) struct ProbeMetrics {
    /// Output rows and elapsed compute.
    pub(crate) baseline: OperatorMetrics,
    /// Rows of the probe side.
    pub(crate) probe_rows: Count,
    search_time: Time,
    query_time: Time,
    devices: OnceLock<DeviceMetrics>,
    partition: usize,
    set: ExecutionPlanMetricsSet,
}

impl ProbeMetrics {
    pub(crate) fn new(partition: usize, metrics: &ExecutionPlanMetricsSet) -> Self {
        Self {
            baseline: OperatorMetrics::new(metrics, partition),
            probe_rows: rows(summary(metrics)).counter("probe_rows", partition),
            search_time: summary(metrics).subset_time("search_time", partition),
            query_time: summary(metrics).subset_time("query_time", partition),
            devices: OnceLock::new(),
            partition,
            set: metrics.clone(),
        }
    }

    /// Measures finding the build rows that match, until it is dropped.
    pub(crate) fn time_search(&self) -> [ScopedTimerGuard<'_>; 2] {
        let compute = self.baseline.elapsed_compute();
        [self.search_time.timer(), compute.timer()]
    }

    /// Measures computing aggregates, or pairs, until it is dropped.
    pub(crate) fn time_query(&self) -> [ScopedTimerGuard<'_>; 2] {
        let compute = self.baseline.elapsed_compute();
        [self.query_time.timer(), compute.timer()]
    }

    /// Records rows whose matches an index on the join's threshold found. The metric is shown only if there are any.
    pub(crate) fn record_threshold_rows(&self, count: usize) {
        rows(summary(&self.set))
            .counter("threshold_rows", self.partition)
            .add(count);
    }

    /// The additional metrics of a partition whose rows are sent to devices.
    pub(crate) fn for_devices(&self) -> DeviceMetrics {
        let counter = |name| summary(&self.set).counter(name, self.partition);
        let metrics = || DeviceMetrics {
            device_batches: counter("device_batches"),
            cuda_fallbacks: counter("cuda_fallbacks"),
        };
        self.devices.get_or_init(metrics).clone()
    }
}
