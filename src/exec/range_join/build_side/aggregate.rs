//! Computes one aggregate over ranges of the sorted build side.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::Int64Type;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::ranges::Ranges;
use crate::common::row_number::{row_number, rows_between};
use crate::exec::range_join::build_side::accumulator::RangeAccumulator;
use crate::exec::range_join::build_side::column::PreparedColumn;
use crate::exec::range_join::build_side::crossing::{threshold_test, values_at_crossings};
use crate::exec::range_join::build_side::value_index::ValueIndex;
use crate::logical_plan::accumulator_call::AccumulatorCall;
use crate::logical_plan::range_join::AggregateKind;
use crate::range_agg::counts::Counts;
use crate::range_agg::prefix_sums::Sums;
use crate::range_agg::values::Values;
use crate::sorted::sorted_rows::SortedRows;
use rmq_engine::{Comparison, RangeEnd};

/// One aggregate with the data structures that compute it.
#[derive(Debug)]
pub(crate) enum AggregateEvaluator {
    Extreme(Arc<ValueIndex>),
    CountRows,
    Count(Arc<Counts>),
    Sum(Arc<Sums>),
    SumLow(Arc<Sums>),
    First(Arc<Values>),
    Last(Arc<Values>),
    Rightmost(Arc<Values>),
    Accumulate(Box<RangeAccumulator>),
    AtExtreme {
        values: Arc<Values>,
        ordered_by: Arc<ValueIndex>,
        /// Finds the first NULL among the values that order, if NULLs come first.
        nulls: Option<Arc<Counts>>,
    },
    CountCrossing {
        searched: Arc<ValueIndex>,
        comparison: Comparison,
        threshold: usize,
    },
    AtCrossing {
        values: Arc<Values>,
        searched: Arc<ValueIndex>,
        end: RangeEnd,
        comparison: Comparison,
        threshold: usize,
    },
}

impl AggregateEvaluator {
    /// The evaluator of an aggregate over these arguments, which are indexes into `columns`. What an accumulator takes
    /// is registered in the pool of `memory`.
    pub(crate) fn try_new(
        (function, call): (AggregateKind, Option<&Arc<AccumulatorCall>>),
        arguments: &[usize],
        columns: &[PreparedColumn],
        memory: &MemoryReservation,
    ) -> Result<Self> {
        let argument = |i: usize| arguments.get(i).and_then(|column| columns.get(*column));
        let first = argument(0);
        let evaluator = match function {
            AggregateKind::CountRows => Some(Self::CountRows),
            AggregateKind::Count => first.and_then(|c| c.counts.clone()).map(Self::Count),
            AggregateKind::Sum => first.and_then(|c| c.sums.clone()).map(Self::Sum),
            AggregateKind::SumLow => first.and_then(|c| c.sums.clone()).map(Self::SumLow),
            AggregateKind::First => first.and_then(|c| c.values.clone()).map(Self::First),
            AggregateKind::Last => first.and_then(|c| c.values.clone()).map(Self::Last),
            AggregateKind::Rightmost => first.and_then(|c| c.values.clone()).map(Self::Rightmost),
            AggregateKind::Accumulate => {
                let sorted = (0..arguments.len()).map(|i| argument(i)?.sorted.clone());
                let sorted = sorted.collect::<Option<Vec<_>>>();
                let accumulator = call.zip(sorted).map(|(call, sorted)| {
                    RangeAccumulator::try_new(call, sorted, memory.new_empty())
                });
                accumulator.transpose()?.map(Box::new).map(Self::Accumulate)
            }
            AggregateKind::Extreme(extreme) => {
                first.and_then(|c| c.index(extreme)).map(Self::Extreme)
            }
            AggregateKind::AtExtreme {
                extreme,
                nulls_first,
            } => first
                .and_then(|c| c.values.clone())
                .zip(argument(1).and_then(|c| c.index(extreme)))
                .map(|(values, ordered_by)| Self::AtExtreme {
                    values,
                    ordered_by,
                    nulls: argument(1)
                        .filter(|_| nulls_first)
                        .and_then(|c| c.counts.clone()),
                }),
            AggregateKind::CountCrossing {
                comparison,
                threshold,
            } => {
                let extreme = threshold_test(comparison).extreme;
                let searched = first.and_then(|c| c.index(extreme));
                searched.map(|searched| Self::CountCrossing {
                    searched,
                    comparison,
                    threshold,
                })
            }
            AggregateKind::AtCrossing {
                end,
                comparison,
                threshold,
            } => {
                let extreme = threshold_test(comparison).extreme;
                let searched = argument(1).and_then(|c| c.index(extreme));
                let values = first.and_then(|c| c.values.clone());
                values
                    .zip(searched)
                    .map(|(values, searched)| Self::AtCrossing {
                        values,
                        searched,
                        end,
                        comparison,
                        threshold,
                    })
            }
        };
        evaluator.ok_or_else(|| {
            internal_datafusion_err!("{function:?} over a column that was not prepared for it")
        })
    }

    /// The range-minimum index that the aggregate queries, if any.
    pub(crate) fn index(&self) -> Option<&Arc<ValueIndex>> {
        match self {
            Self::Extreme(index)
            | Self::AtExtreme {
                ordered_by: index, ..
            }
            | Self::CountCrossing {
                searched: index, ..
            }
            | Self::AtCrossing {
                searched: index, ..
            } => Some(index),
            _ => None,
        }
    }

    /// The aggregate over each range of `rows`, with the thresholds of the probe rows. Over an empty range counts are 0
    /// and all else is NULL, but an accumulator decides itself. What reads rows calls `check` between ranges.
    pub(crate) fn evaluate(
        &self,
        ranges: &Ranges,
        thresholds: &[ArrayRef],
        rows: &SortedRows,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<ArrayRef> {
        Ok(match self {
            Self::CountRows => {
                let counts = ranges.iter().map(|(l, r)| (r - l + 1).max(0));
                Arc::new(counts.collect::<Int64Array>())
            }
            Self::Count(counts) => Arc::new(counts.answer(ranges)),
            Self::Sum(sums) => sums.answer(ranges),
            Self::SumLow(sums) => sums.sums_low(ranges)?,
            Self::Extreme(index) => extreme_values(index, ranges)?,
            Self::First(values) => values.at(ranges.iter().map(|(l, r)| (l <= r).then_some(l)))?,
            Self::Last(values) => {
                let last = ranges.iter().map(|range| last_row(rows, range));
                values.at(last.collect::<Result<Vec<_>>>()?.into_iter())?
            }
            Self::Rightmost(values) => {
                values.at(ranges.iter().map(|(l, r)| (l <= r).then_some(r)))?
            }
            Self::Accumulate(accumulator) => accumulator.evaluate(ranges, check)?,
            Self::AtExtreme {
                values,
                ordered_by,
                nulls,
            } => {
                let positions = extreme_positions(ordered_by, ranges)?;
                let positions = positions.as_primitive::<Int64Type>().iter();
                let rows = positions.zip(ranges.iter()).map(|(position, range)| {
                    let null = nulls.as_ref().and_then(|nulls| nulls.first_null(range));
                    // If all values that order are NULL, the first row wins.
                    let first = (range.0 <= range.1).then_some(range.0);
                    null.or(position).or(first)
                });
                values.at(rows)?
            }
            Self::CountCrossing {
                searched,
                comparison,
                threshold,
            } => {
                let thresholds = evaluated(thresholds, *threshold)?;
                let test = threshold_test(*comparison);
                let queries = searched
                    .index()
                    .threshold_queries(ranges, thresholds, test)?;
                Arc::new(searched.index().count(&queries, check)?)
            }
            Self::AtCrossing {
                values,
                searched,
                end,
                comparison,
                threshold,
            } => {
                let thresholds = evaluated(thresholds, *threshold)?;
                let test = (*end, *comparison);
                values_at_crossings(values, searched, ranges, thresholds, test)?
            }
        })
    }
}

/// The threshold with this number.
fn evaluated(thresholds: &[ArrayRef], number: usize) -> Result<&ArrayRef> {
    let threshold = thresholds.get(number);
    threshold.ok_or_else(|| internal_datafusion_err!("a threshold was not evaluated"))
}

/// The extreme value of each range; NULL for a range without values.
fn extreme_values(index: &ValueIndex, ranges: &Ranges) -> Result<ArrayRef> {
    let ranges = std::slice::from_ref(ranges);
    let answer = index.index().keys().answer(ranges, true, false)?;
    answer
        .values
        .ok_or_else(|| internal_datafusion_err!("an index returned no values"))
}

/// The position of the extreme value of each range; NULL for a range without values.
fn extreme_positions(index: &ValueIndex, ranges: &Ranges) -> Result<ArrayRef> {
    let ranges = std::slice::from_ref(ranges);
    let answer = index.index().keys().answer(ranges, false, true)?;
    answer
        .positions
        .ok_or_else(|| internal_datafusion_err!("an index returned no positions"))
}

/// The first of the rows of a range with the greatest key; `None` for an empty range.
fn last_row(rows: &SortedRows, range: (i64, i64)) -> Result<Option<i64>> {
    let Range { start, end } = rows_between(range)?;
    if start == end {
        return Ok(None);
    }
    let first = rows.first_equal(start as usize, end as usize - 1);
    Ok(Some(row_number(first)?.into()))
}
