//! The order statistics of a column of sorted rows, built once the ranges have enough rows for it to pay. Before that,
//! and where memory is short, an accumulator reads the rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::range_function::IndexKind;
use crate::common::ranges::Ranges;
use crate::exec::range_join::build_side::lazy_structure::LazyStructure;
use crate::exec::range_join::build_side::on_demand::OnDemand;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::index::column_statistics::ColumnStatistics;
use crate::range_agg::order_statistics::{build_statistics, is_known_for};

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
    kind: IndexKind,
    /// The values of the sorted rows, one array after another.
    values: Vec<ArrayRef>,
    threads: usize,
    /// An empty reservation.
    memory: MemoryReservation,
    metrics: BuildMetrics,
    built: OnDemand<Registered>,
}

/// An index, with what registers its memory.
#[derive(Debug)]
struct Registered {
    index: ColumnStatistics,
    memory: Arc<MemoryReservation>,
}

impl OrderStatistics {
    /// Of these values of sorted rows, without which it is never built. What it builds, on up to `threads` threads, is
    /// registered in the pool of `memory`, an empty reservation.
    pub(crate) fn new(
        kind: IndexKind,
        values: Vec<ArrayRef>,
        threads: usize,
        memory: MemoryReservation,
        metrics: BuildMetrics,
    ) -> Self {
        Self {
            kind,
            values,
            threads,
            memory,
            metrics,
            built: OnDemand::default(),
        }
    }

    /// The index, if it is built.
    pub(crate) fn index(&self) -> Option<&ColumnStatistics> {
        Some(&self.built.get()?.index)
    }

    fn try_build(&self) -> Result<Registered> {
        let _timers = [
            self.metrics.index_time.timer(),
            self.metrics.elapsed_compute.timer(),
        ];
        let memory = self.memory.new_empty();
        let (values, threads) = (&self.values, self.threads);
        let index = build_statistics(self.kind, values, threads, &memory, &|| Ok(()))?;
        self.metrics.index_bytes.add(index.bytes());
        let memory = Arc::new(memory);
        Ok(Registered { index, memory })
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
