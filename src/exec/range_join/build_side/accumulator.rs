//! Computes an aggregate that has no index or prefix sum, by accumulators of its function.
//!
//! Medians, percentiles and numbers of distinct values come from `order_statistics` once that pays. Of wide ranges the
//! states of blocks of rows are merged (`block_states`), if these are small. Of all others the rows are read, except
//! that consecutive equal ranges are computed once.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, new_empty_array};
use arrow::compute::interleave;
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::Accumulator;

use crate::exec::range_join::build_side::accumulated_rows::AccumulatedRows;
use crate::exec::range_join::build_side::block_states::{BlockStates, StatesKeeper};
use crate::exec::range_join::build_side::column::PreparedColumn;
use crate::exec::range_join::build_side::lazy_structure::LazyStructure;
use crate::exec::range_join::build_side::order_statistics::OrderStatistics;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::states::range_accumulators::accumulate_ranges;
use crate::states::state_tree::AggregatedRows;
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

/// What takes the accumulator of a range, which has accumulated these bytes, and returns those of what it keeps.
type TakeAccumulated<'a> =
    dyn FnMut(&Range<usize>, Box<dyn Accumulator>, usize) -> Result<usize> + 'a;

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
        if self.rows.call().output == AccumulatorOutput::State {
            self.states_of(&rows, check, &memory)
        } else {
            self.values_of(&rows, check, &memory)
        }
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

    fn values_of(
        &self,
        ranges: &[Range<usize>],
        check: &(dyn Fn() -> Result<()> + Sync),
        memory: &MemoryReservation,
    ) -> Result<ArrayRef> {
        let mut results: Vec<ScalarValue> = Vec::with_capacity(ranges.len());
        let mut result_bytes = 0;
        self.accumulate(ranges, check, memory, &mut |_, mut accumulator, equal| {
            let result = accumulator.evaluate()?;
            result_bytes += equal * result.size();
            results.extend(std::iter::repeat_n(result, equal));
            Ok(result_bytes)
        })?;
        let data_type = self.rows.function().function.field();
        let data_type = data_type.data_type();
        if results.is_empty() {
            return Ok(new_empty_array(data_type));
        }
        let results = ScalarValue::iter_to_array(results)?;
        if results.data_type() != data_type {
            return exec_err!(
                "{} returned a {} instead of a {data_type}",
                self.rows.call().text,
                results.data_type()
            );
        }
        Ok(results)
    }

    fn states_of(
        &self,
        ranges: &[Range<usize>],
        check: &(dyn Fn() -> Result<()> + Sync),
        memory: &MemoryReservation,
    ) -> Result<ArrayRef> {
        let mut column = self.rows.function().column(ranges.len());
        self.accumulate(
            ranges,
            check,
            memory,
            &mut |range, mut accumulator, equal| {
                let state = accumulator.state()?;
                for _ in 0..equal {
                    column.push((!range.is_empty()).then_some(state.as_slice()))?;
                }
                Ok(column.bytes())
            },
        )?;
        column.finish()
    }

    /// Passes to `take` what [`accumulate_ranges`] does. What it returns is registered, the bytes of all that it has
    /// taken.
    fn accumulate(
        &self,
        ranges: &[Range<usize>],
        check: &(dyn Fn() -> Result<()> + Sync),
        memory: &MemoryReservation,
        take: &mut TakeAccumulated<'_>,
    ) -> Result<()> {
        let (states, function) = (self.states.as_deref(), self.rows.function());
        let (taken, registered) = (Cell::new(0), Cell::new(0));
        let register = |bytes: usize| {
            if bytes > registered.get() {
                registered.set(bytes.next_multiple_of(REGISTERED_AT_A_TIME));
                memory.try_resize(registered.get())?;
            }
            Ok(())
        };
        let wide = accumulate_ranges(
            ranges,
            states.map(BlockStates::ranges_at_a_time),
            |ranges| match states {
                Some(states) => states.cover(ranges, check),
                None => Ok(None),
            },
            |range| {
                let mut accumulator = function.function.create_accumulator()?;
                let grow = |accumulated| register(taken.get() + accumulated);
                let rows = range.clone();
                self.rows.feed(&mut *accumulator, rows, check, &grow)?;
                Ok(accumulator)
            },
            check,
            |range, accumulator, equal| {
                taken.set(take(range, accumulator, equal)?);
                register(taken.get())
            },
        )?;
        if states.is_some_and(BlockStates::is_built) {
            self.metrics.record_block_states(wide);
        }
        Ok(())
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
        let grow = |bytes| memory.try_resize(bytes);
        of.rows.feed(&mut *accumulator, rows, check, &grow)?;
    }
    accumulator.evaluate()
}
