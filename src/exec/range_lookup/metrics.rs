//! What `EXPLAIN ANALYZE` shows of a range join.

use std::sync::OnceLock;

use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, Time,
};

use crate::exec::range_lookup::relation::PreparedIndex;
use crate::index::key_index::Answer;

/// Metrics of one partition.
#[derive(Debug)]
pub(crate) struct RangeLookupMetrics {
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
    /// Of calls that go to devices; shown only where there are some.
    on_devices: OnceLock<OnDevices>,
    partition: usize,
    set: ExecutionPlanMetricsSet,
}

/// Metrics of calls that go to devices.
#[derive(Debug)]
struct OnDevices {
    /// Batches that devices answered, each gathered from many.
    device_batches: Count,
    /// Bytes that the indexes asked take of each device.
    device_bytes: Gauge,
    /// Indexes and batches that were meant for devices and that the CPU took.
    cuda_fallbacks: Count,
}

impl RangeLookupMetrics {
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
            on_devices: OnceLock::new(),
            partition,
            set: metrics.clone(),
        }
    }

    fn on_devices(&self) -> &OnDevices {
        self.on_devices.get_or_init(|| {
            let builder = || MetricBuilder::new(&self.set);
            OnDevices {
                device_batches: builder().counter("device_batches", self.partition),
                device_bytes: builder().gauge("device_bytes", self.partition),
                cuda_fallbacks: builder().counter("cuda_fallbacks", self.partition),
            }
        })
    }

    /// Notes a batch that was answered.
    pub(crate) fn note_answer(&self, prepared: &PreparedIndex, answer: &Answer) {
        if answer.used_cpu_fallback {
            self.on_devices().cuda_fallbacks.add(1);
        } else if prepared.ready.reserved.index.is_on_devices() {
            self.on_devices().device_batches.add(1);
        }
    }

    /// Notes an index that this operator asks.
    pub(crate) fn note_index(&self, prepared: &PreparedIndex) {
        let index = &prepared.ready.reserved.index;
        if index.is_on_devices() {
            let bytes = prepared.ready.reserved.device_bytes();
            self.on_devices().device_bytes.add(bytes);
        }
        if prepared.fell_back {
            self.on_devices().cuda_fallbacks.add(1);
        }
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
