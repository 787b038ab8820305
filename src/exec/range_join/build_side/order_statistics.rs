//! The order statistics of a column of sorted rows, built once the ranges have enough rows for it to pay. Before that,
//! and where memory is short, an accumulator reads the rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::common::statistic_copies::CopyDevices;
use crate::exec::range_join::build_side::lazy_structure::LazyStructure;
use crate::exec::range_join::build_side::on_demand::OnDemand;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::kept::reserved_index::DeviceBytes;
use rmq_arrow::common::range_function::IndexKind;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::index::column_statistics::ColumnStatistics;
use rmq_arrow::range_agg::order_statistics::{build_statistics, is_known_for};

/// The mean number of rows of a range from which an index takes less than reading the rows.
const MIN_ROWS: usize = 32;

/// Ranges are read until they have this many times the rows of the build side: the values have to be sorted.
const READ_TIMES: usize = 3;

/// An index of extremes lists the rows that pass a threshold, of a range of this many rows, in the time in which an
/// accumulator reads one.
const LISTED_FOR_ONE_READ: usize = 6;

/// The order statistics of a column, of one kind.
#[derive(Debug)]
pub(crate) struct OrderStatistics {
    pub(crate) kind: IndexKind,
    /// The values of the sorted rows, one array after another. Without any, the index is never built.
    pub(crate) values: Vec<ArrayRef>,
    pub(crate) threads: usize,
    /// Those that may get a copy of the index, and answer large batches.
    pub(crate) devices: Option<CopyDevices>,
    /// An empty reservation, in whose pool the index is registered.
    pub(crate) memory: MemoryReservation,
    pub(crate) metrics: BuildMetrics,
    pub(crate) built: OnDemand<Registered>,
}

/// An index, with what registers its memory.
#[derive(Debug)]
pub(crate) struct Registered {
    index: ColumnStatistics,
    memory: Arc<MemoryReservation>,
    /// That of a copy.
    _on_devices: Option<DeviceBytes>,
}

impl OrderStatistics {
    /// The index, if it is built.
    pub(crate) fn index(&self) -> Option<&ColumnStatistics> {
        Some(&self.built.get()?.index)
    }

    /// Whether it can't be built.
    pub(crate) fn has_failed(&self) -> bool {
        self.built.has_failed()
    }

    fn try_build(&self) -> Result<Registered> {
        let _timers = [
            self.metrics.index_time.timer(),
            self.metrics.elapsed_compute.timer(),
        ];
        let memory = self.memory.new_empty();
        let (values, threads) = (&self.values, self.threads);
        let mut index = build_statistics(self.kind, values, threads, &memory, &|| Ok(()))?;
        self.metrics.index_bytes.add(index.bytes());
        let devices = self.devices.as_ref();
        let on_devices = devices.and_then(|devices| devices.copy(&mut index, threads));
        if on_devices.is_some() {
            self.metrics.record_device_bytes(index.device_bytes());
        }
        Ok(Registered {
            index,
            memory: Arc::new(memory),
            _on_devices: on_devices,
        })
    }

    /// Whether it should answer ranges that would read this many rows without it. Counts the rows.
    fn is_justified(&self, read: usize) -> bool {
        let rows: usize = self.values.iter().map(Array::len).sum();
        let most = READ_TIMES.saturating_mul(rows);
        let values = self.values.first();
        values.is_some_and(|values| is_known_for(self.kind, values.data_type()))
            && !self.built.is_decided()
            && self.built.is_justified(read, most)
    }
}

/// The statistics as they answer numbers of rows that pass a threshold: without them these rows are listed, which takes
/// a fraction of the time in which others are read.
#[derive(Debug)]
pub(crate) struct ListedOtherwise(pub(crate) Arc<OrderStatistics>);

impl LazyStructure for ListedOtherwise {
    fn should_build(&self, ranges: &Ranges) -> bool {
        self.0
            .is_justified(rows_to_count(ranges) / LISTED_FOR_ONE_READ)
    }

    fn build(&self) -> Result<()> {
        self.0.build()
    }

    fn memory(&self) -> Vec<Arc<MemoryReservation>> {
        self.0.memory()
    }
}

impl LazyStructure for OrderStatistics {
    fn should_build(&self, ranges: &Ranges) -> bool {
        self.is_justified(rows_to_count(ranges))
    }

    fn build(&self) -> Result<()> {
        let what = format!("index of {:?}", self.kind);
        let build = || self.try_build().map(Some);
        self.built.build(&what, &|| Ok(()), build);
        Ok(())
    }

    /// What it will take is not registered before it is built: without it rows are read.
    fn memory(&self) -> Vec<Arc<MemoryReservation>> {
        let built = self.built.get();
        built
            .map(|built| Arc::clone(&built.memory))
            .into_iter()
            .collect()
    }
}

/// The rows of all ranges, which count for what is built: none if they are so few that reading them takes less.
fn rows_to_count(ranges: &Ranges) -> usize {
    let (rows, searches) = ranges.rows();
    if rows < MIN_ROWS * searches { 0 } else { rows }
}
