//! The metrics of range lookups in `EXPLAIN ANALYZE`.

use std::sync::OnceLock;

use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, Gauge, Time};

use crate::exec::common::metrics::{OperatorMetrics, bytes, rows, summary};
use crate::exec::range_lookup::index_builder::{Origin, PreparedIndex};
use rmq_arrow::index::key_index::Answer;

/// Metrics of one partition.
#[derive(Debug)]
pub(crate) struct RangeLookupMetrics {
    /// Output rows, elapsed compute.
    pub(crate) baseline: OperatorMetrics,
    /// Time to answer ranges.
    pub(crate) query_time: Time,
    /// Time to build the indexes that were not cached.
    index_build_time: Time,
    /// Time to read the columns of the indexes that were not cached.
    index_load_time: Time,
    /// Bytes of the queried indexes, columns not included.
    index_bytes: Gauge,
    /// Rows of the queried columns.
    index_rows: Gauge,
    /// Number of indexes that this query built.
    indexes_built: Count,
    /// Number of indexes that an earlier query had built.
    indexes_reused: Count,
    /// Metrics of indexes to which rows were added; registered with the first of these.
    extended: OnceLock<ExtensionMetrics>,
    /// Metrics of indexes on devices; registered with the first of these.
    on_devices: OnceLock<DeviceMetrics>,
    /// Metrics of columns that are not in memory; registered with the first of these.
    in_files: OnceLock<FileMetrics>,
    partition: usize,
    set: ExecutionPlanMetricsSet,
}

/// Metrics of indexes to which rows were added.
#[derive(Debug)]
struct ExtensionMetrics {
    /// Number of indexes of an earlier query that this query extended.
    indexes_extended: Count,
    /// Rows that were indexed for it: those that were added, and those that are indexed again together with them.
    index_rows_added: Count,
}

/// Metrics of indexes on devices.
#[derive(Debug)]
struct DeviceMetrics {
    /// Number of batches that devices answered, each gathered from several input batches.
    device_batches: Count,
    /// Bytes of each device that the queried indexes take.
    device_bytes: Gauge,
    /// Number of indexes and batches that the CPU took over from devices.
    cuda_fallbacks: Count,
}

/// Metrics of columns that are not in memory.
#[derive(Debug)]
struct FileMetrics {
    /// Chunks of the queried columns, whose extremes are in memory.
    index_chunks: Gauge,
    /// Rows that were read at the edges of ranges.
    boundary_rows_read: Count,
}

impl RangeLookupMetrics {
    pub(crate) fn new(partition: usize, metrics: &ExecutionPlanMetricsSet) -> Self {
        let time = |name| summary(metrics).subset_time(name, partition);
        let count = |name| summary(metrics).counter(name, partition);
        Self {
            baseline: OperatorMetrics::new(metrics, partition),
            query_time: time("query_time"),
            index_build_time: time("index_build_time"),
            index_load_time: time("index_load_time"),
            index_bytes: bytes(summary(metrics)).gauge("index_bytes", partition),
            index_rows: rows(summary(metrics)).gauge("index_rows", partition),
            indexes_built: count("indexes_built"),
            indexes_reused: count("indexes_reused"),
            extended: OnceLock::new(),
            on_devices: OnceLock::new(),
            in_files: OnceLock::new(),
            partition,
            set: metrics.clone(),
        }
    }

    fn on_devices(&self) -> &DeviceMetrics {
        self.on_devices.get_or_init(|| {
            let device_bytes = bytes(summary(&self.set));
            DeviceMetrics {
                device_batches: summary(&self.set).counter("device_batches", self.partition),
                device_bytes: device_bytes.gauge("device_bytes", self.partition),
                cuda_fallbacks: summary(&self.set).counter("cuda_fallbacks", self.partition),
            }
        })
    }

    fn in_files(&self) -> &FileMetrics {
        self.in_files.get_or_init(|| {
            let rows_read = rows(summary(&self.set));
            FileMetrics {
                index_chunks: summary(&self.set).gauge("index_chunks", self.partition),
                boundary_rows_read: rows_read.counter("boundary_rows_read", self.partition),
            }
        })
    }

    fn extended(&self) -> &ExtensionMetrics {
        self.extended.get_or_init(|| {
            let rows_added = rows(summary(&self.set));
            ExtensionMetrics {
                indexes_extended: summary(&self.set).counter("indexes_extended", self.partition),
                index_rows_added: rows_added.counter("index_rows_added", self.partition),
            }
        })
    }

    /// Records a batch that was answered.
    pub(crate) fn record_answer(&self, prepared: &PreparedIndex, answer: &Answer) {
        if answer.used_cpu_fallback {
            self.on_devices().cuda_fallbacks.add(1);
        } else if prepared.ready.reserved.index.is_on_devices() {
            self.on_devices().device_batches.add(1);
        }
    }

    /// Records rows of a column in files that were read for a batch.
    pub(crate) fn record_rows_read(&self, rows: usize) {
        self.in_files().boundary_rows_read.add(rows);
    }

    /// Records an index that the operator queries.
    pub(crate) fn record_index(&self, prepared: &PreparedIndex) {
        let index = &prepared.ready.reserved.index;
        if index.is_on_devices() {
            let bytes = prepared.ready.reserved.device_bytes();
            self.on_devices().device_bytes.add(bytes);
        }
        if prepared.fell_back {
            self.on_devices().cuda_fallbacks.add(1);
        }
        if let Some(chunks) = index.chunks() {
            self.in_files().index_chunks.add(chunks.len());
        }
        self.index_bytes.add(index.index_bytes());
        self.index_rows.add(index.rows());
        let load_time = match prepared.origin {
            Origin::Cached => {
                self.indexes_reused.add(1);
                return;
            }
            Origin::Loaded(load_time) => {
                let loaded = summary(&self.set).counter("index_loaded", self.partition);
                loaded.add(1);
                load_time
            }
            Origin::Built(built) if built.rows < index.rows() => {
                self.extended().indexes_extended.add(1);
                self.extended().index_rows_added.add(built.rows);
                built.load_time
            }
            Origin::Built(built) => {
                self.indexes_built.add(1);
                built.load_time
            }
        };
        self.index_build_time.add_duration(index.build_time());
        self.index_load_time.add_duration(load_time);
    }
}
