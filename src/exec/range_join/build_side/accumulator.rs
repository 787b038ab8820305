//! Computes an aggregate that has no index or prefix sum, by accumulators of its function.
//!
//! Medians, percentiles and numbers of distinct values come from `order_statistics` once that pays. Of wide ranges the
//! states of blocks of rows are merged (`block_states`), if these are small. Of all others the rows are read, except
//! that consecutive equal ranges are computed once.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::interleave;
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::range_join::build_side::accumulated_rows::AccumulatedRows;
use crate::exec::range_join::build_side::block_states::{BlockStates, StatesKeeper};
use crate::exec::range_join::build_side::column::PreparedColumn;
use crate::exec::range_join::build_side::lazy_structure::LazyStructure;
use crate::exec::range_join::build_side::order_statistics::OrderStatistics;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::states::aggregated_ranges::{AggregatedRanges, Method, Output};
use crate::states::aggregated_rows::AggregatedRows;
use crate::states::runs_of_ranges::aggregate_runs;
use datafusion_rmq_logical::logical_plan::accumulator_call::{AccumulatorCall, AccumulatorOutput};
use rmq_arrow::common::range_groups::RangeGroups;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::common::row_number::rows_between;
use rmq_arrow::range_agg::order_statistics::OrderStatistic;

/// Results are registered in steps of these bytes: all threads wait for the pool.
const REGISTERED_AT_A_TIME: usize = 1 << 16;

/// An aggregate over ranges of sorted rows.
#[derive(Debug)]
pub(crate) struct RangeAccumulator {
    rows: Arc<AccumulatedRows>,
    /// What answers ranges without reading their rows, if there is such a thing.
    statistics: Option<(OrderStatistic, Arc<OrderStatistics>)>,
    /// What answers wide ranges without reading all of their rows, if the function's states are small.
    states: Option<Arc<BlockStates>>,
    metrics: BuildMetrics,
    /// An empty reservation in the pool.
    memory: MemoryReservation,
    /// The columns, which register their memory, if ranges are aggregated after the build side is dropped.
    _retained: Vec<PreparedColumn>,
}

impl RangeAccumulator {
    /// The aggregate over sorted columns, one for each argument of the call, and the order statistics of the first one
    /// if the aggregate is one of them. Other states of blocks are those of `states`. What is built of them is built on
    /// up to `threads` threads.
    pub(crate) fn try_new(
        call: &Arc<AccumulatorCall>,
        columns: &[ArrayRef],
        statistics: Option<Arc<OrderStatistics>>,
        states: &dyn StatesKeeper,
        threads: usize,
        metrics: &BuildMetrics,
        memory: &MemoryReservation,
    ) -> Result<Self> {
        let value_type = columns.first().map(|values| values.data_type().clone());
        let statistics = call
            .order_statistic()
            .filter(|statistic| value_type.is_some_and(|t| statistic.is_known_for(&t)))
            .zip(statistics);
        let rows = Arc::new(AccumulatedRows::try_new(call, columns.to_vec(), memory)?);
        let states = if statistics.is_none() {
            let make = || BlockStates::try_new(&rows, threads, metrics, memory);
            states.states(call, columns, &make)
        } else {
            None
        };
        Ok(Self {
            rows,
            statistics,
            states,
            metrics: metrics.clone(),
            memory: memory.new_empty(),
            _retained: vec![],
        })
    }

    /// The same, which aggregates ranges also after the build side is dropped: of these columns.
    pub(crate) fn retaining(self, columns: Vec<PreparedColumn>) -> Self {
        Self {
            _retained: columns,
            ..self
        }
    }

    /// Whether the ranges of rows are returned, to be aggregated later.
    pub(crate) fn returns_ranges(&self) -> bool {
        self.rows.call().output == AccumulatorOutput::Range
    }

    /// Whether order statistics may answer it.
    pub(crate) fn has_statistics(&self) -> bool {
        self.statistics.is_some()
    }

    /// What merges states of blocks, if there is such a thing.
    pub(crate) fn states(&self) -> Option<&Arc<BlockStates>> {
        self.states.as_ref()
    }

    /// The aggregate of each range, or the state after its rows: a struct, NULL for an empty range. Calls `check`
    /// between ranges.
    pub(crate) fn evaluate(
        &self,
        ranges: &Ranges,
        check: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<ArrayRef> {
        if let Some((statistic, statistics)) = &self.statistics
            && let Some(index) = statistics.index()
        {
            self.metrics.record_order_statistics(ranges.len());
            return statistic.of_ranges(index, ranges);
        }
        let statistics = self.statistics.as_ref();
        if statistics.is_some_and(|(_, statistics)| statistics.has_failed())
            || self
                .states
                .as_ref()
                .is_some_and(|states| states.has_failed())
        {
            self.metrics.record_without_index(ranges.len());
        }
        let rows = ranges.iter().map(rows_between);
        let rows = rows.map(|rows| rows.map(|r| r.start as usize..r.end as usize));
        let rows: Vec<Range<usize>> = rows.collect::<Result<_>>()?;
        let memory = self.memory.new_empty();
        let output = match self.rows.call().output {
            AccumulatorOutput::State => Output::State,
            AccumulatorOutput::Value | AccumulatorOutput::Range => {
                let function = &self.rows.function().function;
                let of_no_rows = if rows.iter().any(Range::is_empty) {
                    function.create_accumulator()?.evaluate()?
                } else {
                    ScalarValue::try_from(function.field().data_type())?
                };
                Output::Value { of_no_rows }
            }
        };
        let registered = Cell::new(0);
        let grow = |bytes: usize| {
            check()?;
            if bytes > registered.get() {
                registered.set(bytes.next_multiple_of(REGISTERED_AT_A_TIME));
                memory.try_resize(registered.get())?;
            }
            Ok(())
        };
        let Some(states) = self.states.as_deref() else {
            let read = |ranges: &[&Range<usize>]| {
                AggregatedRanges::read(&*self.rows, ranges, Method::OneByOne, false)
            };
            return Ok(aggregate_runs(&rows, &output, |ranges| ranges.len(), read, &grow)?.0);
        };
        let at_a_time = |ranges: &[&Range<usize>]| states.at_a_time(ranges);
        let cover = |ranges: &[&Range<usize>]| states.cover(ranges, check);
        let (values, wide) = aggregate_runs(&rows, &output, at_a_time, cover, &grow)?;
        if states.is_built() {
            self.metrics.record_block_states(wide);
        }
        Ok(values)
    }

    /// The statistic of each group of ranges, where a row that is in several of them counts as often. Builds what
    /// answers them if they justify it, and so may block. Calls `check` between ranges whose rows are read.
    ///
    /// # Errors
    /// Those of the accumulators. An internal error for an aggregate that is no order statistic.
    pub(crate) fn evaluate_groups(
        &self,
        groups: &RangeGroups,
        check: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<ArrayRef> {
        let Some((statistic, statistics)) = &self.statistics else {
            return internal_err!("{} has no order statistics", self.rows.call().text);
        };
        let united;
        let groups = if *statistic == OrderStatistic::CountDistinct {
            united = groups.united();
            &united
        } else {
            groups
        };
        let ranges = groups.ranges();
        if statistics.should_build(&ranges) {
            statistics.build()?;
        }
        if groups.are_single() {
            return self.evaluate(&ranges, check);
        }
        if let Some(index) = statistics.index()
            && *statistic != OrderStatistic::CountDistinct
        {
            self.metrics.record_order_statistics(groups.len());
            return statistic.of_groups(index, groups);
        }
        // The rows of several ranges are read.
        let (mut single, mut several, mut places) = (RangeGroups::default(), vec![], vec![]);
        for group in groups.iter() {
            places.push(if let [range] = group {
                single.push([range.clone()]);
                (0, single.len() - 1)
            } else {
                let ranges = group.iter().map(|range| (self, range.clone()));
                several.push(accumulated(&ranges.collect::<Vec<_>>(), check)?);
                (1, several.len() - 1)
            });
        }
        let single = self.evaluate(&single.ranges(), check)?;
        let several = ScalarValue::iter_to_array(several)?;
        let values: [&dyn Array; 2] = [&single, &several];
        Ok(interleave(&values, &places)?)
    }
}

/// The value of an accumulator that has read the rows of ranges, each of an aggregate of the same call. Calls `check`
/// from time to time.
///
/// # Errors
/// The accumulator's. If memory is short.
pub(crate) fn accumulated(
    ranges: &[(&RangeAccumulator, Range<u32>)],
    check: &(dyn Fn() -> Result<()> + Sync),
) -> Result<ScalarValue> {
    let Some((first, _)) = ranges.first() else {
        return internal_err!("no range of rows to read");
    };
    let mut accumulator = first.rows.function().function.create_accumulator()?;
    let memory = first.memory.new_empty();
    for (of, rows) in ranges {
        let rows = rows.start as usize..rows.end as usize;
        let grow = |bytes| {
            check()?;
            memory.try_resize(bytes)
        };
        of.rows.update(&mut *accumulator, rows, &grow)?;
    }
    accumulator.evaluate()
}
