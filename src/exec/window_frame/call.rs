//! One window function over frames that slide.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, UInt64Array, new_empty_array};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Float64Type, Int64Type, Schema};
use datafusion::common::{Result, ScalarValue, exec_err, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::functions_window::nth_value::NthValue;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::window::{
    PlainAggregateWindowExpr, SlidingAggregateWindowExpr, StandardWindowExpr,
    StandardWindowFunctionExpr, WindowExpr,
};
use datafusion::physical_plan::windows::WindowUDFExpr;

use crate::exec::common::blocking::Waiting;
use crate::exec::window_frame::accumulated::accumulated;
use crate::exec::window_frame::bounds::FrameBounds;
use crate::exec::window_frame::clauses::{has_filter, ignores_nulls};
use datafusion_rmq_logical::expr::order_statistic::order_statistic_of;
use rmq_arrow::common::ordered_type::{key_layout, value_type};
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::common::workers::Workers;
use rmq_arrow::index::key_index::KeyIndex;
use rmq_arrow::index::sort_keys::Chunks;
use rmq_arrow::range_agg::counts::Counts;
use rmq_arrow::range_agg::order_statistics::{OrderStatistic, build_statistics};
use rmq_arrow::range_agg::prefix_sums::Sums;
use rmq_arrow::sorted::permutation::RowPermutation;
use rmq_engine::{Extreme, RangeEnd};

/// The frames are read unless they have more than this many times the rows that there are.
const READ_TIMES: usize = 16;

/// A window function, and what answers it.
#[derive(Debug, Clone)]
pub(crate) struct FrameCall {
    pub(crate) expr: Arc<dyn WindowExpr>,
    answer: Answer,
    data_type: DataType,
}

#[derive(Debug, Clone)]
enum Answer {
    Extreme(Extreme),
    Count,
    Sum,
    Average,
    /// A median, a percentile or a number of distinct values, which an accumulator finds in short frames.
    Statistic(OrderStatistic, Arc<AggregateFunctionExpr>),
    /// An aggregate whose accumulator can't let a row go.
    Accumulated(Arc<AggregateFunctionExpr>),
    /// The value at an end of the frame, the one nearest it that is not NULL if `skips_nulls`.
    End {
        end: RangeEnd,
        skips_nulls: bool,
    },
    /// A value at another place in the frame.
    Nth(Arc<dyn StandardWindowFunctionExpr>),
}

impl FrameCall {
    /// The call of `expr` over rows of `schema`; `None` if it is DataFusion's.
    ///
    /// # Errors
    /// Those of the types of its expressions.
    pub(crate) fn try_match(expr: &Arc<dyn WindowExpr>, schema: &Schema) -> Result<Option<Self>> {
        let any = expr.as_any();
        let aggregate = if let Some(sliding) = any.downcast_ref::<SlidingAggregateWindowExpr>() {
            sliding.get_aggregate_expr()
        } else if let Some(growing) = any.downcast_ref::<PlainAggregateWindowExpr>() {
            growing.get_aggregate_expr()
        } else if let Some(standard) = any.downcast_ref::<StandardWindowExpr>() {
            let function = standard.get_standard_func_expr();
            let udf = function.as_any().downcast_ref::<WindowUDFExpr>();
            let Some(udf) = udf.filter(|udf| udf.fun().inner().is::<NthValue>()) else {
                return Ok(None);
            };
            let end = match udf.fun().name() {
                "first_value" => Some(RangeEnd::First),
                "last_value" => Some(RangeEnd::Last),
                _ => None,
            };
            let answer = match end {
                Some(end) => Answer::End {
                    end,
                    skips_nulls: ignores_nulls(udf),
                },
                None => Answer::Nth(Arc::clone(function)),
            };
            return Self::try_new(expr, answer).map(Some);
        } else {
            return Ok(None);
        };
        if has_filter(expr.as_ref()) {
            return Ok(None);
        }
        let arguments = aggregate.expressions();
        let types = arguments.iter().map(|e| e.data_type(schema));
        let types: Vec<DataType> = types.collect::<Result<_>>()?;
        let keys = expr.order_by().iter();
        let keys = keys.map(|key| key.expr.data_type(schema));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let field = aggregate.field();
        let result = field.data_type();
        let inner = aggregate.fun().inner();
        let slides = !expr.get_window_frame().is_ever_expanding();
        let is_plain = !aggregate.is_distinct() && !aggregate.ignore_nulls();
        let answer = match types.as_slice() {
            [value] if inner.is::<Min>() && is_extreme_of(value, result) => {
                Answer::Extreme(Extreme::Min)
            }
            [value] if inner.is::<Max>() && is_extreme_of(value, result) => {
                Answer::Extreme(Extreme::Max)
            }
            [_] if inner.is::<Count>() && is_plain => Answer::Count,
            [_] if inner.is::<Sum>() && is_plain && Sums::supports(result) => Answer::Sum,
            [DataType::Float64]
                if inner.is::<Avg>() && is_plain && *result == DataType::Float64 =>
            {
                Answer::Average
            }
            [value] | [value, _]
                if let Some(statistic) = order_statistic(aggregate)
                    && statistic.is_known_for(value) =>
            {
                Answer::Statistic(statistic, Arc::new(aggregate.clone()))
            }
            // An error in DataFusion, or frames that it finds otherwise.
            _ if slides && aggregate.create_sliding_accumulator().is_err()
                || FrameBounds::are_of_calendar(expr.get_window_frame(), &keys) =>
            {
                Answer::Accumulated(Arc::new(aggregate.clone()))
            }
            _ => return Ok(None),
        };
        Self::try_new(expr, answer).map(Some)
    }

    fn try_new(expr: &Arc<dyn WindowExpr>, answer: Answer) -> Result<Self> {
        Ok(Self {
            data_type: expr.field()?.data_type().clone(),
            expr: Arc::clone(expr),
            answer,
        })
    }

    /// What answers the call, for EXPLAIN.
    pub(crate) fn method(&self) -> &'static str {
        match self.answer {
            Answer::Extreme(_) => "index",
            Answer::Count | Answer::Sum | Answer::Average => "prefix sums",
            Answer::Statistic(..) => "order statistics",
            Answer::Accumulated(_) => "rows of each frame",
            Answer::End { .. } | Answer::Nth(_) => "positions",
        }
    }

    /// Whether DataFusion reads or sorts all rows of each frame, also of one that only grows.
    pub(crate) fn reads_growing_frames(&self) -> bool {
        matches!(
            self.answer,
            Answer::End {
                end: RangeEnd::Last,
                skips_nulls: true,
            } | Answer::Statistic(OrderStatistic::Median | OrderStatistic::Percentile(_), _)
        )
    }

    /// Whether the rows of each frame are read, which may take long.
    pub(crate) fn reads_frames(&self) -> bool {
        matches!(self.answer, Answer::Accumulated(_) | Answer::Statistic(..))
    }

    /// The value of each frame. `arguments` are those of the function, `keys` the values of ORDER BY, of all rows. An
    /// index that is built for it is registered in the pool of `memory`.
    ///
    /// # Errors
    /// Those of the index and of the function; an execution error once nothing waits for the values.
    pub(crate) fn evaluate(
        &self,
        arguments: &[ArrayRef],
        keys: &[ArrayRef],
        frames: &[Range<usize>],
        waiting: &Waiting,
        memory: &MemoryReservation,
    ) -> Result<ArrayRef> {
        if frames.is_empty() {
            return Ok(new_empty_array(&self.data_type));
        }
        let ranges = || -> Ranges { frames.iter().map(inclusive).collect() };
        let found = match &self.answer {
            Answer::Extreme(extreme) => extremes(value(arguments)?, *extreme, &ranges())?,
            Answer::Count => Arc::new(counts(value(arguments)?)?.answer(&ranges())),
            Answer::Sum => sums(&cast(value(arguments)?, &self.data_type)?, &ranges())?.0,
            Answer::Average => {
                let (sums, counts) = sums(value(arguments)?, &ranges())?;
                let counts = counts.as_primitive::<Int64Type>().iter();
                let sums = sums.as_primitive::<Float64Type>().iter();
                let averages = sums
                    .zip(counts)
                    .map(|(sum, count)| Some(sum? / float(count?)));
                Arc::new(averages.collect::<Float64Array>())
            }
            Answer::Statistic(statistic, function) => {
                let values = value(arguments)?;
                let ranges = ranges();
                let check = || waiting.check();
                let found = if has_long_frames(frames, values.len()) {
                    statistics(values, *statistic, &ranges, memory, &check)?
                } else {
                    None
                };
                match found {
                    Some(found) => found,
                    None => accumulated(function, arguments, frames, waiting, memory)?,
                }
            }
            Answer::Accumulated(function) => {
                accumulated(function, arguments, frames, waiting, memory)?
            }
            Answer::End { end, skips_nulls } => {
                let values = value(arguments)?;
                take(values, &ends(values, frames, *end, *skips_nulls), None)?
            }
            Answer::Nth(function) => {
                let mut evaluator = function.create_evaluator()?;
                let columns = [arguments, keys].concat();
                let results = each_frame(frames, |frame| evaluator.evaluate(&columns, frame));
                ScalarValue::iter_to_array(results?)?
            }
        };
        if found.data_type() != &self.data_type {
            return exec_err!(
                "{} returned a {} instead of a {}",
                self.expr.name(),
                found.data_type(),
                self.data_type
            );
        }
        Ok(found)
    }
}

/// The statistic that an aggregate computes of its first argument, if it is one.
fn order_statistic(aggregate: &AggregateFunctionExpr) -> Option<OrderStatistic> {
    if aggregate.ignore_nulls() {
        return None;
    }
    let expressions = aggregate.expressions();
    let percentile = match expressions.as_slice() {
        [_] => None,
        [_, percentile] => Some(percentile.downcast_ref::<Literal>()?.value()),
        _ => return None,
    };
    let order = aggregate.order_bys().first();
    let is_descending = order.is_some_and(|by| by.options.descending);
    let (function, is_distinct) = (aggregate.fun(), aggregate.is_distinct());
    order_statistic_of(function, is_distinct, percentile, is_descending)
}

/// Whether an index of `rows` rows is worth it, as reading the frames would take several times as long as sorting them.
fn has_long_frames(frames: &[Range<usize>], rows: usize) -> bool {
    let read: usize = frames.iter().map(Range::len).fold(0, usize::saturating_add);
    read > READ_TIMES.saturating_mul(rows)
}

/// The statistic of each range; `None` if memory is short.
fn statistics(
    values: &ArrayRef,
    statistic: OrderStatistic,
    ranges: &Ranges,
    memory: &MemoryReservation,
    check: &dyn Fn() -> Result<()>,
) -> Result<Option<ArrayRef>> {
    let memory = memory.new_empty();
    // DataFusion's tasks use all cores already.
    let values = std::slice::from_ref(values);
    match build_statistics(statistic.kind(), values, 1, &memory, check) {
        Ok(column) => statistic.of_ranges(&column, ranges).map(Some),
        Err(error) => {
            check()?;
            log::debug!("frames are read, as they have no order statistics: {error}");
            Ok(None)
        }
    }
}

/// Whether an index of values of this type returns values of the type of the result.
fn is_extreme_of(value: &DataType, result: &DataType) -> bool {
    key_layout(value).is_some() && value_type(value) == *result
}

fn value(arguments: &[ArrayRef]) -> Result<&ArrayRef> {
    let first = arguments.first();
    first.ok_or_else(|| internal_datafusion_err!("a window function has no argument"))
}

/// The inclusive range of a frame's positions.
#[expect(
    clippy::cast_possible_wrap,
    reason = "positions within arrays fit in an i64"
)]
fn inclusive(frame: &Range<usize>) -> (i64, i64) {
    (frame.start as i64, frame.end as i64 - 1)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "DataFusion divides by the same float"
)]
fn float(count: i64) -> f64 {
    count as f64
}

/// The result of each frame; consecutive equal ones are computed once.
fn each_frame(
    frames: &[Range<usize>],
    mut compute: impl FnMut(&Range<usize>) -> Result<ScalarValue>,
) -> Result<Vec<ScalarValue>> {
    let mut results: Vec<ScalarValue> = Vec::with_capacity(frames.len());
    for (i, frame) in frames.iter().enumerate() {
        let result = match results.last() {
            Some(last) if frames[i - 1] == *frame => last.clone(),
            _ => compute(frame)?,
        };
        results.push(result);
    }
    Ok(results)
}

/// The position of the value at an end of each frame, or of the one nearest it that is not NULL; NULL without any.
fn ends(
    values: &ArrayRef,
    frames: &[Range<usize>],
    end: RangeEnd,
    skips_nulls: bool,
) -> UInt64Array {
    let nulls = values.logical_nulls().filter(|_| skips_nulls);
    // For each position the nearest valid one from there on, towards the other end.
    let nearest = nulls.map(|nulls| {
        let mut nearest: Vec<Option<usize>> = vec![None; nulls.len()];
        let mut last = None;
        let mut visit = |position: usize| {
            last = if nulls.is_valid(position) {
                Some(position)
            } else {
                last
            };
            nearest[position] = last;
        };
        match end {
            RangeEnd::First => (0..nulls.len()).rev().for_each(&mut visit),
            RangeEnd::Last => (0..nulls.len()).for_each(&mut visit),
        }
        nearest
    });
    let positions = frames.iter().map(|frame| {
        if frame.is_empty() {
            return None;
        }
        let position = match end {
            RangeEnd::First => frame.start,
            RangeEnd::Last => frame.end - 1,
        };
        let found = match &nearest {
            Some(nearest) => nearest[position]?,
            None => position,
        };
        frame.contains(&found).then_some(found as u64)
    });
    positions.collect()
}

fn extremes(values: &ArrayRef, extreme: Extreme, ranges: &Ranges) -> Result<ArrayRef> {
    // DataFusion's tasks use all cores already.
    let chunks = Chunks::borrowed(vec![Arc::clone(values)]);
    let index = KeyIndex::on_cpu(&chunks, values.data_type(), extreme, 1)?;
    let answer = index.answer(std::slice::from_ref(ranges), true, false)?;
    answer.into_values()
}

fn counts(values: &ArrayRef) -> Result<Counts> {
    let order = RowPermutation::identity(values.len());
    Counts::try_new(
        std::slice::from_ref(values),
        &order,
        Workers::new(1, &|| Ok(())),
    )
}

/// The sums of ranges, NULL where a range has no value, and the numbers of values.
fn sums(values: &ArrayRef, ranges: &Ranges) -> Result<(ArrayRef, ArrayRef)> {
    let counts = Arc::new(counts(values)?);
    let sums = Sums::try_new(
        std::slice::from_ref(values),
        values.data_type(),
        Arc::clone(&counts),
        Workers::new(1, &|| Ok(())),
    )?;
    Ok((sums.answer(ranges), Arc::new(counts.answer(ranges))))
}
