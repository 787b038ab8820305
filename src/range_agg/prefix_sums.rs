//! Counts and sums of ranges, as differences of counts and sums from the first row; sums of floats apart.

use crate::common::errors::engine_error;
use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, AsArray, Int64Array, PrimitiveArray};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType,
    Int64Type, IntervalDayTimeType, IntervalMonthDayNanoType, IntervalUnit, IntervalYearMonthType,
    TimeUnit, UInt64Type,
};
use datafusion::common::{Result, exec_err, internal_err};

use crate::common::ranges::Ranges;
use crate::range_agg::float_sums::FloatSums;
use crate::sorted::permutation::RowPermutation;
use rmq_engine::cpu::Numbers;

/// How many values before each row are not NULL.
#[derive(Debug)]
pub(crate) struct Counts(Option<Numbers<u32>>);

impl Counts {
    /// The counts of the column that `chunks` make up, of fewer than 2^32 rows that go to `places`.
    pub(crate) fn of(chunks: &[ArrayRef], places: &RowPermutation) -> Result<Self> {
        if chunks.iter().all(|chunk| chunk.logical_null_count() == 0) {
            return Ok(Self(None));
        }
        let mut counts = Numbers::zeroed(places.len() + 1).map_err(engine_error)?;
        let mut first = 0;
        for chunk in chunks {
            let nulls = chunk.logical_nulls();
            for (row, place) in places.of_rows(first, chunk.len()).enumerate() {
                if let Some(place) = place {
                    let valid = nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
                    counts[place + 1] = u32::from(valid);
                }
            }
            first += chunk.len();
        }
        let mut sum = 0_u32;
        for count in counts.iter_mut() {
            sum = sum.wrapping_add(*count);
            *count = sum;
        }
        Ok(Self(Some(counts)))
    }

    /// About how many bytes the counts of such a column take.
    pub(crate) fn estimate(chunks: &[ArrayRef], places: &RowPermutation) -> usize {
        if chunks.iter().all(|chunk| chunk.logical_null_count() == 0) {
            return 0;
        }
        (places.len() + 1) * size_of::<u32>()
    }

    /// How many values of a range within the column are not NULL.
    pub(crate) fn count(&self, (left, right): (i64, i64)) -> i64 {
        if left > right {
            return 0;
        }
        match &self.0 {
            None => right - left + 1,
            Some(counts) => i64::from(counts[index(right + 1)]) - i64::from(counts[index(left)]),
        }
    }

    /// The first position of a range within the column whose value is NULL.
    pub(crate) fn first_null(&self, (left, right): (i64, i64)) -> Option<i64> {
        let counts = self.0.as_ref()?;
        if left > right || self.count((left, right)) == right - left + 1 {
            return None;
        }
        // The counts grow by one a position up to the first NULL.
        let (mut low, mut high) = (index(left), index(right));
        while low < high {
            let middle = low + (high - low) / 2;
            if (counts[middle + 1] - counts[low]) as usize == middle + 1 - low {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        i64::try_from(low).ok()
    }

    /// The counts of many ranges.
    pub(crate) fn answer(&self, ranges: &Ranges) -> Int64Array {
        ranges.iter().map(|range| self.count(range)).collect()
    }
}

/// The sums of the values of ranges, and how many there are.
#[derive(Debug)]
pub(crate) struct Sums {
    counts: Arc<Counts>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// The sum of the values before each row. Sums wrap, as DataFusion's do, each part of an interval by itself, so that a
    /// difference is what DataFusion's sum of the range is.
    Exact(Box<dyn Differences>),
    /// Their differences would lose digits.
    Floats(FloatSums),
}

/// Runs `$helper!(T)` with Arrow's type of the values of `$data_type`, if their sums are exact.
macro_rules! with_exact_type {
    ($data_type:expr, $helper:ident, $otherwise:expr) => {
        match $data_type {
            DataType::Int64 => $helper!(Int64Type),
            DataType::UInt64 => $helper!(UInt64Type),
            DataType::Decimal32(..) => $helper!(Decimal32Type),
            DataType::Decimal64(..) => $helper!(Decimal64Type),
            DataType::Decimal128(..) => $helper!(Decimal128Type),
            DataType::Decimal256(..) => $helper!(Decimal256Type),
            DataType::Duration(TimeUnit::Second) => $helper!(DurationSecondType),
            DataType::Duration(TimeUnit::Millisecond) => $helper!(DurationMillisecondType),
            DataType::Duration(TimeUnit::Microsecond) => $helper!(DurationMicrosecondType),
            DataType::Duration(TimeUnit::Nanosecond) => $helper!(DurationNanosecondType),
            DataType::Interval(IntervalUnit::YearMonth) => $helper!(IntervalYearMonthType),
            DataType::Interval(IntervalUnit::DayTime) => $helper!(IntervalDayTimeType),
            DataType::Interval(IntervalUnit::MonthDayNano) => $helper!(IntervalMonthDayNanoType),
            _ => $otherwise,
        }
    };
}

impl Sums {
    /// Whether there are sums of values of this type.
    pub(crate) fn supports(data_type: &DataType) -> bool {
        macro_rules! yes {
            ($type:ty) => {
                true
            };
        }
        with_exact_type!(data_type, yes, Self::are_rounded(data_type))
    }

    /// Whether sums of values of this type are rounded, and so have a rest.
    pub(crate) fn are_rounded(data_type: &DataType) -> bool {
        data_type == &DataType::Float64
    }

    /// The sums of the column that `chunks` make up, whose rows go to `places`.
    ///
    /// # Errors
    /// An execution error for a type that [`Self::supports`] does not name.
    pub(crate) fn of(
        chunks: &[ArrayRef],
        data_type: &DataType,
        counts: Arc<Counts>,
        places: &RowPermutation,
    ) -> Result<Self> {
        macro_rules! prefix {
            ($type:ty) => {
                Box::new(Prefix::<$type>::of(chunks, data_type, places))
            };
        }
        if Self::are_rounded(data_type) {
            let kind = Kind::Floats(FloatSums::of(chunks, places));
            return Ok(Self { counts, kind });
        }
        let prefix: Box<dyn Differences> = with_exact_type!(
            data_type,
            prefix,
            return exec_err!("a range join has no sums of {data_type}")
        );
        let kind = Kind::Exact(prefix);
        Ok(Self { counts, kind })
    }

    /// About how many bytes the sums of such a column take, the counts not included.
    pub(crate) fn estimate(
        chunks: &[ArrayRef],
        data_type: &DataType,
        places: &RowPermutation,
    ) -> usize {
        if Self::are_rounded(data_type) {
            return FloatSums::estimate(chunks, places);
        }
        (places.len() + 1) * data_type.primitive_width().unwrap_or_default()
    }

    /// Whether they look at the memory of the column that they were given.
    pub(crate) fn borrow_column(&self) -> bool {
        matches!(&self.kind, Kind::Floats(sums) if sums.borrows_column())
    }

    /// Exact sums of two parts of the same ranges as one, NULL where there is neither.
    ///
    /// # Errors
    /// An execution error for other types.
    pub(crate) fn add(some: &ArrayRef, others: &ArrayRef) -> Result<ArrayRef> {
        macro_rules! add {
            ($type:ty) => {
                add_arrays::<$type>(some, others)
            };
        }
        let data_type = some.data_type();
        Ok(with_exact_type!(
            data_type,
            add,
            return exec_err!("a range join has no sums of {data_type}")
        ))
    }

    /// The sums of many ranges within the column, NULL where a range holds no value.
    pub(crate) fn answer(&self, ranges: &Ranges) -> ArrayRef {
        match &self.kind {
            Kind::Exact(prefix) => prefix.differences(ranges, &self.counts),
            Kind::Floats(sums) => sums.sums(ranges, &self.counts),
        }
    }

    /// What each of these lost when it was rounded.
    ///
    /// # Errors
    /// An internal one where [`Self::are_rounded`] says no.
    pub(crate) fn rests(&self, ranges: &Ranges) -> Result<ArrayRef> {
        match &self.kind {
            Kind::Exact(_) => internal_err!("exact sums have no rest"),
            Kind::Floats(sums) => Ok(sums.rests(ranges, &self.counts)),
        }
    }
}

/// Sums of one type of values.
trait Differences: Debug + Send + Sync {
    /// What each range adds to the sums, NULL where it holds no value.
    fn differences(&self, ranges: &Ranges, counts: &Counts) -> ArrayRef;
}

/// The sum of all values before each place, and of all.
#[derive(Debug)]
struct Prefix<T: ArrowPrimitiveType> {
    sums: Vec<T::Native>,
    data_type: DataType,
}

impl<T: ArrowPrimitiveType> Prefix<T> {
    fn of(chunks: &[ArrayRef], data_type: &DataType, places: &RowPermutation) -> Self {
        let mut sums = vec![T::Native::ZERO; places.len() + 1];
        let mut first = 0;
        for chunk in chunks {
            let values = chunk.as_primitive::<T>();
            places.put(first, values.values(), &mut sums[1..]);
            if let Some(nulls) = values.nulls().filter(|n| n.null_count() > 0) {
                for (row, place) in places.of_rows(first, chunk.len()).enumerate() {
                    if let Some(place) = place.filter(|_| nulls.is_null(row)) {
                        sums[place + 1] = T::Native::ZERO;
                    }
                }
            }
            first += chunk.len();
        }
        let mut sum = T::Native::ZERO;
        for number in &mut sums {
            sum = sum.add_wrapping(*number);
            *number = sum;
        }
        Self {
            sums,
            data_type: data_type.clone(),
        }
    }
}

impl<T: ArrowPrimitiveType + Debug> Differences for Prefix<T> {
    fn differences(&self, ranges: &Ranges, counts: &Counts) -> ArrayRef {
        let sums = ranges.iter().map(|(left, right)| {
            let found = counts.count((left, right)) > 0;
            found.then(|| self.sums[index(right + 1)].sub_wrapping(self.sums[index(left)]))
        });
        let sums = sums.collect::<PrimitiveArray<T>>();
        Arc::new(sums.with_data_type(self.data_type.clone()))
    }
}

fn add_arrays<T: ArrowPrimitiveType>(some: &ArrayRef, others: &ArrayRef) -> ArrayRef {
    let (some, others) = (some.as_primitive::<T>(), others.as_primitive::<T>());
    let sums = some.iter().zip(others).map(|sums| match sums {
        (Some(a), Some(b)) => Some(a.add_wrapping(b)),
        (a, b) => a.or(b),
    });
    let sums = sums.collect::<PrimitiveArray<T>>();
    Arc::new(sums.with_data_type(some.data_type().clone()))
}

/// A position within the column, or its end.
#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "ranges within a column have no negative positions"
)]
pub(crate) fn index(position: i64) -> usize {
    position as usize
}
