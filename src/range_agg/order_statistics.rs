//! Order statistics of ranges of rows: medians, percentiles and numbers of distinct values, in time logarithmic in the
//! distinct values of the column, however long a range is.
//!
//! A wavelet matrix ([`WaveletMatrix`]) has the ranks of the values in the order of the rows: it counts the rows of a
//! range below a rank, and finds the rank of the n-th smallest. Distinct values are counted by another one, of each
//! row's previous row with the same value ([`previous_rows`]). The arithmetic between two values is that of
//! DataFusion's functions, so that the answers are the same bits.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, Int64Array, PrimitiveArray};
use arrow::datatypes::{
    ArrowNativeTypeOp, DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    Float32Type, Float64Type,
};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::median::Median;
use datafusion::functions_aggregate::percentile_cont::PercentileCont;
use datafusion::logical_expr::AggregateUDF;
use rmq_engine::cpu::{WaveletMatrix, previous_rows};

use crate::common::errors::engine_error;
use crate::common::ranges::Ranges;
use crate::common::row_number::{row_number, rows_between};
use crate::common::workers::Workers;
use crate::index::rank::Ranked;
use crate::sorted::group_sort::SortContext;
use crate::sorted::value_ranks::rank_values;

/// A statistic of the values of a range that are not NULL.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum OrderStatistic {
    Median,
    /// Between 0 and 1.
    Percentile(f64),
    CountDistinct,
}

impl OrderStatistic {
    /// The statistic that a function computes of one column, if it is one. `percentile` is its second argument, of
    /// values in ascending or descending order.
    pub(crate) fn of_function(
        function: &AggregateUDF,
        is_distinct: bool,
        percentile: Option<&ScalarValue>,
        is_descending: bool,
    ) -> Option<Self> {
        let function = function.inner();
        match (is_distinct, percentile) {
            (true, None) if function.is::<Count>() => Some(Self::CountDistinct),
            (false, None) if function.is::<Median>() => Some(Self::Median),
            (false, Some(literal)) if function.is::<PercentileCont>() => {
                let ScalarValue::Float64(Some(percentile)) =
                    literal.cast_to(&DataType::Float64).ok()?
                else {
                    return None;
                };
                Some(Self::Percentile(if is_descending {
                    1.0 - percentile
                } else {
                    percentile
                }))
            }
            _ => None,
        }
    }

    /// The kind of index that answers it.
    pub(crate) fn kind(self) -> StatisticKind {
        match self {
            Self::Median | Self::Percentile(_) => StatisticKind::Ranks,
            Self::CountDistinct => StatisticKind::PreviousRows,
        }
    }

    /// Whether an index answers it for values of this type.
    pub(crate) fn is_known_for(self, data_type: &DataType) -> bool {
        let interpolates = !matches!(self, Self::Percentile(_)) || is_float(data_type);
        interpolates && self.kind().is_known_for(data_type)
    }
}

impl StatisticKind {
    /// Whether there is an index of values of this type: where they are equal, and between them, as DataFusion says.
    pub(crate) fn is_known_for(self, data_type: &DataType) -> bool {
        match self {
            Self::Ranks => is_float(data_type) || data_type.is_decimal(),
            Self::PreviousRows => {
                data_type.is_primitive() && *data_type != DataType::Float16
                    || data_type.is_string()
                    || data_type.is_binary()
            }
        }
    }
}

fn is_float(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Float32 | DataType::Float64)
}

/// Where a statistic is among the sorted values of a range.
struct Place {
    /// The numbers of two values, of which the statistic is made. No value has them if the range has none.
    lower: u32,
    upper: u32,
    /// How far it is from the lower to the upper value, between 0 and 1; `None` if it is the lower one.
    weight: Option<f64>,
}

impl Place {
    /// Of a statistic of this many values.
    fn of(statistic: OrderStatistic, rows: u32) -> Self {
        let at = |place| Self {
            lower: place,
            upper: place,
            weight: None,
        };
        let Some(last) = rows.checked_sub(1) else {
            return at(u32::MAX);
        };
        match statistic {
            OrderStatistic::Median if rows.is_multiple_of(2) => Self {
                lower: last / 2,
                upper: rows / 2,
                weight: Some(0.5),
            },
            OrderStatistic::Percentile(percentile) => {
                let index = percentile * f64::from(last);
                let floor = index.floor();
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "between 0 and `last`, as a percentile is between 0 and 1"
                )]
                let (lower, upper) = (floor as u32, index.ceil() as u32);
                // DataFusion's precision of the weight.
                let weight = ((index - floor) * PRECISION).trunc() / PRECISION;
                Self {
                    lower,
                    upper,
                    weight: (lower != upper).then_some(weight),
                }
            }
            _ => at(last / 2),
        }
    }
}

/// The steps into which DataFusion divides the way between two values.
const PRECISION: f64 = 1_000_000.0;

/// The mean of two values, as DataFusion's median computes it.
fn middle<T: ArrowNativeTypeOp>(lower: T, upper: T, _: f64) -> T {
    let two = T::usize_as(2);
    if let Ok(sum) = lower.add_checked(upper) {
        return sum.div_wrapping(two);
    }
    // The sum is beyond the type.
    let halves = lower
        .div_wrapping(two)
        .add_wrapping(upper.div_wrapping(two));
    let rests = lower
        .mod_wrapping(two)
        .add_wrapping(upper.mod_wrapping(two));
    halves.add_wrapping(rests.div_wrapping(two))
}

/// The value on the way from one to another, as DataFusion's `percentile_cont` computes it.
fn interpolated(lower: f64, upper: f64, weight: f64) -> f64 {
    lower + (upper - lower) * weight
}

/// What an index of order statistics has of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatisticKind {
    /// The rank of its value, for medians and percentiles.
    Ranks,
    /// The previous row with the same value, for numbers of distinct values.
    PreviousRows,
}

/// What answers statistics of one kind over ranges of the rows of a column.
#[derive(Debug)]
pub(crate) enum StatisticIndex {
    Ranks(Ranks),
    PreviousRows(WaveletMatrix),
}

/// The ranks of the values, NULL above all others.
#[derive(Debug)]
pub(crate) struct Ranks {
    matrix: WaveletMatrix,
    /// The value of each rank.
    distinct: ArrayRef,
    has_nulls: bool,
}

impl StatisticIndex {
    /// The index of this kind over these values, built on up to `threads` threads. What it takes is added
    /// to `memory`.
    ///
    /// # Errors
    /// If memory is short, or `check` fails between steps: the query was cancelled.
    pub(crate) fn build(
        kind: StatisticKind,
        values: &ArrayRef,
        threads: usize,
        memory: &MemoryReservation,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Self> {
        let rows = values.len();
        let working = memory.new_empty();
        // The keys twice, the order of the rows, their ranks, and the numbers that a matrix is built of, twice.
        working.try_grow((2 * size_of::<u64>() + 5 * size_of::<u32>()) * rows)?;
        let Ranked {
            mut ranks,
            distinct,
        } = {
            // Sorting can't be stopped.
            let never = || Ok(());
            let context = SortContext {
                memory: &memory.new_empty(),
                workers: Workers::new(threads, &never),
            };
            rank_values(values, context)?
        };
        check()?;
        let nulls = values
            .logical_nulls()
            .filter(|nulls| nulls.null_count() > 0);
        let set_nulls = |numbers: &mut [u32], number| {
            let nulls = nulls.iter().flat_map(|nulls| nulls.iter().zip(0..));
            for (_, row) in nulls.filter(|(is_valid, _)| !is_valid) {
                let row: usize = row;
                numbers[row] = number;
            }
        };
        let distinct_values = row_number(distinct.len())?;
        let stops = || check().is_err();
        let matrix = |numbers: &[u32], below: u32| {
            memory.try_grow(WaveletMatrix::bytes_for(rows, below))?;
            WaveletMatrix::build(numbers, below, threads, &stops).map_err(engine_error)
        };
        set_nulls(&mut ranks, distinct_values);
        if kind == StatisticKind::Ranks {
            memory.try_grow(distinct.get_array_memory_size())?;
            return Ok(Self::Ranks(Ranks {
                matrix: matrix(&ranks, distinct_values + 1)?,
                distinct,
                has_nulls: nulls.is_some(),
            }));
        }
        let mut previous = previous_rows(&ranks, distinct_values + 1);
        drop((ranks, distinct));
        check()?;
        // In no range.
        let rows = row_number(rows)?;
        set_nulls(&mut previous, rows);
        Ok(Self::PreviousRows(matrix(&previous, rows + 1)?))
    }

    /// Bytes of the index.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Ranks(ranks) => {
                ranks.matrix.memory_bytes() + ranks.distinct.get_array_memory_size()
            }
            Self::PreviousRows(matrix) => matrix.memory_bytes(),
        }
    }

    /// The statistic of each range.
    ///
    /// # Errors
    /// An internal error for a statistic of the other kind.
    pub(crate) fn answer(&self, statistic: OrderStatistic, ranges: &Ranges) -> Result<ArrayRef> {
        let spans = Spans::try_new(ranges)?;
        match (self, statistic) {
            (Self::PreviousRows(matrix), OrderStatistic::CountDistinct) => {
                spans.count_distinct(matrix)
            }
            (Self::Ranks(ranks), OrderStatistic::Median | OrderStatistic::Percentile(_)) => {
                spans.between(ranks, statistic)
            }
            _ => internal_err!("{statistic:?} of an index of another kind"),
        }
    }
}

/// Half-open ranges of rows.
struct Spans {
    starts: Vec<usize>,
    ends: Vec<usize>,
}

impl Spans {
    fn try_new(ranges: &Ranges) -> Result<Self> {
        let spans = ranges.iter().map(|range| {
            let rows = rows_between(range)?;
            Ok((rows.start as usize, rows.end as usize))
        });
        let spans: Vec<_> = spans.collect::<Result<_>>()?;
        let (starts, ends) = spans.into_iter().unzip();
        Ok(Self { starts, ends })
    }

    /// How many values of each range are not NULL.
    fn valid_rows(&self, ranks: &Ranks) -> Result<Vec<u32>> {
        let lengths = self.starts.iter().zip(&self.ends);
        let lengths = lengths.map(|(start, end)| row_number(end - start));
        let mut lengths = lengths.collect::<Result<Vec<_>>>()?;
        if ranks.has_nulls {
            let above = vec![row_number(ranks.distinct.len())?; lengths.len()];
            let Self { starts, ends } = self;
            let counted = ranks.matrix.count_below(starts, ends, &above, &mut lengths);
            counted.map_err(engine_error)?;
        }
        Ok(lengths)
    }

    fn count_distinct(&self, previous: &WaveletMatrix) -> Result<ArrayRef> {
        let firsts = self.starts.iter().map(|start| row_number(start + 1));
        let firsts = firsts.collect::<Result<Vec<_>>>()?;
        let mut counts = vec![0; firsts.len()];
        previous
            .count_below(&self.starts, &self.ends, &firsts, &mut counts)
            .map_err(engine_error)?;
        Ok(Arc::new(
            counts.into_iter().map(i64::from).collect::<Int64Array>(),
        ))
    }

    /// A statistic that is a value of each range, or between two of them.
    fn between(&self, ranks: &Ranks, statistic: OrderStatistic) -> Result<ArrayRef> {
        let rows = self.valid_rows(ranks)?;
        let places: Vec<Place> = rows
            .iter()
            .map(|rows| Place::of(statistic, *rows))
            .collect();
        let lower = self.nth(ranks, places.iter().map(|place| place.lower))?;
        let upper = self.nth(ranks, places.iter().map(|place| place.upper))?;
        let found = Found {
            places,
            lower,
            upper,
        };
        let values = &ranks.distinct;
        let is_median = statistic == OrderStatistic::Median;
        Ok(match values.data_type() {
            DataType::Float32 if is_median => found.values::<Float32Type>(values, middle),
            DataType::Float64 if is_median => found.values::<Float64Type>(values, middle),
            DataType::Float32 => found.values::<Float32Type>(values, |lower, upper, weight| {
                #[expect(clippy::cast_possible_truncation, reason = "as DataFusion rounds")]
                let value = interpolated(lower.into(), upper.into(), weight) as f32;
                value
            }),
            DataType::Float64 => found.values::<Float64Type>(values, interpolated),
            DataType::Decimal32(..) => found.values::<Decimal32Type>(values, middle),
            DataType::Decimal64(..) => found.values::<Decimal64Type>(values, middle),
            DataType::Decimal128(..) => found.values::<Decimal128Type>(values, middle),
            DataType::Decimal256(..) => found.values::<Decimal256Type>(values, middle),
            other => return internal_err!("{statistic:?} of a {other} is not known"),
        })
    }

    /// The rank of the row at each place of a range's sorted values.
    fn nth(&self, ranks: &Ranks, places: impl Iterator<Item = u32>) -> Result<Vec<u32>> {
        let places: Vec<u32> = places.collect();
        let mut found = vec![0; places.len()];
        let Self { starts, ends } = self;
        let searched = ranks.matrix.nth_smallest(starts, ends, &places, &mut found);
        searched.map_err(engine_error)?;
        Ok(found)
    }
}

/// The two values that each range's statistic is made of, as ranks.
struct Found {
    places: Vec<Place>,
    lower: Vec<u32>,
    upper: Vec<u32>,
}

impl Found {
    /// The statistics. `between` is that of two values and a weight.
    fn values<T: ArrowPrimitiveType>(
        &self,
        distinct: &ArrayRef,
        between: impl Fn(T::Native, T::Native, f64) -> T::Native,
    ) -> ArrayRef {
        let distinct = distinct.as_primitive::<T>();
        let ranks = self.lower.iter().zip(&self.upper).zip(&self.places);
        let values = ranks.map(|((lower, upper), place)| {
            if *lower == WaveletMatrix::NONE {
                return None;
            }
            let lower = distinct.value(*lower as usize);
            Some(match place.weight {
                None => lower,
                Some(weight) => between(lower, distinct.value(*upper as usize), weight),
            })
        });
        let values: PrimitiveArray<T> = values.collect();
        Arc::new(values.with_data_type(distinct.data_type().clone()))
    }
}
