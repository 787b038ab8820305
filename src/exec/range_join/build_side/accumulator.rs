//! Computes an aggregate that has no index or prefix sum: feeds the rows of each range to an accumulator of its
//! function.
//!
//! The accumulator sees slices of the sorted columns, so rows are copied only for a FILTER that drops some of them, and
//! for an ORDER BY in another order than that of the range key. ORDER BY is resolved once for all rows, to the rank of
//! each row.
//!
//! This takes O(rows of the ranges), except that consecutive equal ranges are computed once, and that medians,
//! percentiles and numbers of distinct values come from `order_statistics` once that pays.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, UInt32Array, new_empty_array};
use arrow::compute::{prep_null_mask_filter, take_arrays};
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::Accumulator;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;

use crate::common::ranges::Ranges;
use crate::common::row_number::rows_between;
use crate::exec::range_join::build_side::order_statistics::OrderStatistics;
use crate::exec::range_join::build_side::states::StateFunction;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::order_statistic::order_statistic;
use crate::logical_plan::accumulator_call::AccumulatorCall;
use crate::range_agg::order_statistics::OrderStatistic;
use crate::sorted::id_table::number;

/// The rows that an accumulator sees between two checks for cancellation.
const STEP: usize = 1 << 16;

/// An aggregate over ranges of sorted rows.
#[derive(Debug)]
pub(crate) struct RangeAccumulator {
    call: Arc<AccumulatorCall>,
    function: AggregateFunctionExpr,
    /// The function once more, if states are returned.
    states: Option<StateFunction>,
    /// The arguments of the function that are no literals, in sorted order.
    columns: Vec<ArrayRef>,
    /// What answers ranges without reading their rows, if there is such a thing.
    statistics: Option<(OrderStatistic, Arc<OrderStatistics>)>,
    /// The expressions of ORDER BY, if the accumulator takes them as further arguments.
    order_columns: Vec<ArrayRef>,
    /// The rank of each row by ORDER BY.
    ranks: Option<Vec<u32>>,
    /// The rows for which FILTER holds.
    filter: Option<BooleanArray>,
    metrics: BuildMetrics,
    /// An empty reservation in the pool.
    memory: MemoryReservation,
    /// Registers the ranks.
    _ranks_memory: MemoryReservation,
}

impl RangeAccumulator {
    /// The aggregate over sorted columns, one for each argument of the call, and the order statistics of the first one
    /// if the aggregate is one of them.
    pub(crate) fn try_new(
        call: &Arc<AccumulatorCall>,
        mut columns: Vec<ArrayRef>,
        statistics: Option<Arc<OrderStatistics>>,
        metrics: &BuildMetrics,
        memory: MemoryReservation,
    ) -> Result<Self> {
        let types = columns.iter().map(|c| c.data_type().clone());
        let types: Vec<DataType> = types.collect();
        let function = call.physical(&types)?;
        let states = call
            .returns_state
            .then(|| StateFunction::try_new(call, &types))
            .transpose()?;
        let order_columns = call.order_by.iter();
        let order_columns = order_columns.map(|order| Arc::clone(&columns[order.argument]));
        let mut order_columns: Vec<ArrayRef> = order_columns.collect();
        let filter = columns.last().filter(|_| call.is_filtered).map(|filter| {
            let filter = filter.as_boolean();
            match filter.null_count() {
                0 => filter.clone(),
                _ => prep_null_mask_filter(filter),
            }
        });
        columns.truncate(call.num_columns());
        let ranks_memory = memory.new_empty();
        let ranks = if order_columns.is_empty() {
            None
        } else {
            Some(ranks(&order_columns, call, &ranks_memory)?)
        };
        if function.order_bys().is_empty() {
            order_columns.clear();
        }
        Ok(Self {
            statistics: order_statistic(call)
                .filter(|statistic| types.first().is_some_and(|t| statistic.is_known_for(t)))
                .zip(statistics),
            call: Arc::clone(call),
            metrics: metrics.clone(),
            function,
            states,
            columns,
            order_columns,
            ranks,
            filter,
            memory,
            _ranks_memory: ranks_memory,
        })
    }

    /// The aggregate of each range. Calls `check` between ranges.
    pub(crate) fn evaluate(
        &self,
        ranges: &Ranges,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<ArrayRef> {
        if let Some(states) = &self.states {
            return self.states(states, ranges, check);
        }
        if let Some((statistic, statistics)) = &self.statistics
            && let Some(index) = statistics.index()
        {
            self.metrics.record_order_statistics(ranges.len());
            return index.answer(*statistic, ranges);
        }
        let memory = self.memory.new_empty();
        let mut results: Vec<ScalarValue> = Vec::with_capacity(ranges.len());
        let mut result_bytes = 0;
        let mut last = None;
        for (left, right) in ranges.iter() {
            let range = if left <= right {
                (left, right)
            } else {
                (0, -1)
            };
            let result = match results.last() {
                Some(result) if last == Some(range) => result.clone(),
                _ => {
                    check()?;
                    let mut accumulator = self.function.create_accumulator()?;
                    let grow = |bytes| memory.try_resize(result_bytes + bytes);
                    self.feed(&mut *accumulator, range, check, &grow)?;
                    accumulator.evaluate()?
                }
            };
            last = Some(range);
            result_bytes += result.size();
            memory.try_resize(result_bytes)?;
            results.push(result);
        }
        let data_type = self.function.field();
        let data_type = data_type.data_type();
        if results.is_empty() {
            return Ok(new_empty_array(data_type));
        }
        let results = ScalarValue::iter_to_array(results)?;
        if results.data_type() != data_type {
            return exec_err!(
                "{} returned a {} instead of a {data_type}",
                self.call.text,
                results.data_type()
            );
        }
        Ok(results)
    }

    /// The state after the rows of each range, a struct; NULL for an empty range.
    fn states(
        &self,
        states: &StateFunction,
        ranges: &Ranges,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<ArrayRef> {
        let memory = self.memory.new_empty();
        let mut column = states.column(ranges.len());
        let (mut state, mut last) = (vec![], None);
        for (left, right) in ranges.iter() {
            if left > right {
                column.push(None)?;
                continue;
            }
            if last != Some((left, right)) {
                check()?;
                let mut accumulator = states.function.create_accumulator()?;
                let grow = |bytes| memory.try_resize(column.bytes() + bytes);
                self.feed(&mut *accumulator, (left, right), check, &grow)?;
                state = accumulator.state()?;
                last = Some((left, right));
            }
            column.push(Some(&state))?;
            memory.try_resize(column.bytes())?;
        }
        column.finish()
    }

    /// Shows an accumulator the rows of a range.
    fn feed(
        &self,
        accumulator: &mut dyn Accumulator,
        range: (i64, i64),
        check: &dyn Fn() -> Result<()>,
        grow: &dyn Fn(usize) -> Result<()>,
    ) -> Result<()> {
        let range = rows_between(range)?;
        let (start, end) = (range.start as usize, range.end as usize);
        let mut order = self.order_of(start, end);
        if order.is_none()
            && let Some(filter) = &self.filter
            && filter.slice(start, end - start).has_false()
        {
            order = Some((start..end).map(number).collect());
        }
        let rows: Option<Vec<u32>> = order.map(|mut rows| {
            if let Some(filter) = &self.filter {
                rows.retain(|row| filter.value(*row as usize));
            }
            rows
        });
        let columns: Vec<ArrayRef> = self
            .columns
            .iter()
            .chain(&self.order_columns)
            .cloned()
            .collect();
        let count = rows.as_ref().map_or(end - start, Vec::len);
        for from in (0..count).step_by(STEP) {
            let len = STEP.min(count - from);
            let step = match &rows {
                None => columns.iter().map(|c| c.slice(start + from, len)).collect(),
                Some(rows) => {
                    let rows = UInt32Array::from(rows[from..from + len].to_vec());
                    take_arrays(&columns, &rows, None)?
                }
            };
            accumulator.update_batch(&self.arguments(step, len)?)?;
            check()?;
            grow(accumulator.size())?;
        }
        Ok(())
    }

    /// The rows of a range by ORDER BY; `None` if that is their order already.
    fn order_of(&self, start: usize, end: usize) -> Option<Vec<u32>> {
        let ranks = self.ranks.as_ref()?;
        if ranks[start..end].is_sorted() {
            return None;
        }
        let mut rows: Vec<u32> = (start..end).map(number).collect();
        rows.sort_unstable_by_key(|row| ranks[*row as usize]);
        Some(rows)
    }

    /// The arguments of the accumulator: literals, and these columns, of `len` rows.
    fn arguments(&self, columns: Vec<ArrayRef>, len: usize) -> Result<Vec<ArrayRef>> {
        let mut columns = columns.into_iter();
        let mut arguments = vec![];
        for literal in &self.call.literals {
            match literal {
                Some(literal) => arguments.push(literal.to_array_of_size(len)?),
                None => arguments.extend(columns.next()),
            }
        }
        arguments.extend(columns);
        Ok(arguments)
    }
}

/// The rank of each row by the columns of ORDER BY; of equal rows, the first comes first.
fn ranks(
    columns: &[ArrayRef],
    call: &AccumulatorCall,
    memory: &MemoryReservation,
) -> Result<Vec<u32>> {
    let fields = columns.iter().zip(&call.order_by).map(|(column, order)| {
        SortField::new_with_options(column.data_type().clone(), order.options())
    });
    let converter = RowConverter::new(fields.collect())?;
    let count = columns.first().map_or(0, Array::len);
    memory.try_grow(2 * count * size_of::<u32>())?;
    let rows = converter.convert_columns(columns)?;
    memory.try_grow(rows.size())?;
    let mut order: Vec<u32> = (0..count).map(number).collect();
    order.sort_by(|a, b| rows.row(*a as usize).cmp(&rows.row(*b as usize)));
    let mut ranks = vec![0; count];
    for (rank, row) in order.iter().enumerate() {
        ranks[*row as usize] = number(rank);
    }
    drop((rows, order));
    memory.try_resize(count * size_of::<u32>())?;
    Ok(ranks)
}
