//! The order statistics of a column of sorted rows, built once the ranges have enough rows for it to pay. Before that,
//! and where memory is short, an accumulator reads the rows.

use arrow::array::{Array, ArrayRef};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::ranges::Ranges;
use crate::exec::range_join::build_side::on_demand::OnDemand;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::range_agg::order_statistics::{OrderStatistic, StatisticIndex};

/// The mean number of rows of a range from which an index takes less than reading the rows.
const MIN_ROWS: usize = 32;

/// Ranges are read until they have this many times the rows of the build side: the values have to be sorted.
const READ_TIMES: usize = 8;

/// The order statistics of a column.
#[derive(Debug)]
pub(crate) struct OrderStatistics {
    /// The values of the sorted rows.
    values: ArrayRef,
    threads: usize,
    /// An empty reservation.
    memory: MemoryReservation,
    /// Of medians and percentiles.
    ranks: OnDemand<Registered>,
    /// Of numbers of distinct values.
    previous_rows: OnDemand<Registered>,
}

/// An index, with what registers its memory.
#[derive(Debug)]
struct Registered {
    index: StatisticIndex,
    memory: MemoryReservation,
}

/// The query that is answered.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    /// Tell what is built for it.
    pub(crate) metrics: &'a BuildMetrics,
    /// Returns an error once it is cancelled.
    pub(crate) check: &'a dyn Fn() -> Result<()>,
}

impl OrderStatistics {
    /// Of these values of sorted rows. What it builds, on up to `threads` threads, is registered in the pool of
    /// `memory`, an empty reservation.
    pub(crate) fn new(values: ArrayRef, threads: usize, memory: MemoryReservation) -> Self {
        Self {
            values,
            threads,
            memory,
            ranks: OnDemand::default(),
            previous_rows: OnDemand::default(),
        }
    }

    /// Bytes that are registered for what has been built.
    pub(crate) fn registered_bytes(&self) -> usize {
        let built = [self.ranks.get(), self.previous_rows.get()];
        let built = built.into_iter().flatten();
        built.map(|built| built.memory.size()).sum()
    }

    /// The statistic of each range; `None` if their rows are to be read. May block, to build what they justify.
    pub(crate) fn answer(
        &self,
        statistic: OrderStatistic,
        ranges: &Ranges,
        query: Query,
    ) -> Result<Option<ArrayRef>> {
        let (index, what) = match statistic {
            OrderStatistic::CountDistinct => (&self.previous_rows, "index of distinct values"),
            _ => (&self.ranks, "index of ranks"),
        };
        let most = READ_TIMES.saturating_mul(self.values.len());
        if !statistic.is_known_for(self.values.data_type())
            || !index.is_justified(rows_to_count(ranges), most)
        {
            return Ok(None);
        }
        index.build(&what, query.check, || {
            self.build(statistic, query).map(Some)
        });
        let Some(Registered { index, .. }) = index.get() else {
            return Ok(None);
        };
        query.metrics.record_order_statistics(ranges.len());
        index.answer(statistic, ranges).map(Some)
    }

    fn build(&self, statistic: OrderStatistic, query: Query) -> Result<Registered> {
        let _timer = query.metrics.index_time.timer();
        (query.check)()?;
        let memory = self.memory.new_empty();
        let (values, threads) = (&self.values, self.threads);
        let index = StatisticIndex::build(statistic, values, threads, &memory, query.check)?;
        query.metrics.index_bytes.add(index.bytes());
        Ok(Registered { index, memory })
    }
}

/// The rows of all ranges, which count for what is built: none if they are so few that reading them takes less.
fn rows_to_count(ranges: &Ranges) -> usize {
    let lengths = ranges
        .iter()
        .map(|(left, right)| right.saturating_sub(left) + 1);
    let lengths = lengths.filter_map(|length| usize::try_from(length).ok().filter(|l| *l > 0));
    let (rows, searches) = lengths.fold((0_usize, 0), |(rows, searches), length| {
        (rows.saturating_add(length), searches + 1)
    });
    if rows < MIN_ROWS * searches { 0 } else { rows }
}
