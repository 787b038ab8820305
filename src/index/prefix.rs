//! Counts and sums of ranges, as differences of counts and sums from the first row.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, AsArray, Int64Array, PrimitiveArray};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType,
    Int64Type, IntervalDayTimeType, IntervalMonthDayNanoType, IntervalUnit, IntervalYearMonthType,
    TimeUnit, UInt64Type,
};
use datafusion::common::{Result, exec_err};

use crate::functions::bounds::Ranges;

/// How many values before each row are not NULL.
#[derive(Debug)]
pub(crate) struct Counts(Option<Vec<u32>>);

impl Counts {
    /// The counts of a column of fewer than 2^32 rows.
    pub(crate) fn of(values: &ArrayRef) -> Self {
        let nulls = values.logical_nulls().filter(|n| n.null_count() > 0);
        Self(nulls.map(|nulls| {
            let counts = nulls.iter().scan(0, |count, valid| {
                *count += u32::from(valid);
                Some(*count)
            });
            std::iter::once(0).chain(counts).collect()
        }))
    }

    /// How many values of a range within the column are not NULL.
    fn count(&self, (left, right): (i64, i64)) -> i64 {
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

    pub(crate) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |c| size_of_val(c.as_slice()))
    }
}

/// The sum of the values before each row, and how many there are. Sums wrap, as DataFusion's do, each part of an interval by
/// itself, so that a difference is what DataFusion's sum of the range is.
#[derive(Debug)]
pub(crate) struct Sums {
    counts: Counts,
    prefix: Box<dyn Differences>,
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
    /// Whether sums of values of this type are exact.
    pub(crate) fn supports(data_type: &DataType) -> bool {
        macro_rules! yes {
            ($type:ty) => {
                true
            };
        }
        with_exact_type!(data_type, yes, false)
    }

    /// The sums of a column.
    ///
    /// # Errors
    /// An execution error for a type that [`Self::supports`] does not name.
    pub(crate) fn of(values: &ArrayRef) -> Result<Self> {
        macro_rules! prefix {
            ($type:ty) => {
                Box::new(Prefix::of(values.as_primitive::<$type>()))
            };
        }
        let other = values.data_type();
        let prefix: Box<dyn Differences> = with_exact_type!(
            other,
            prefix,
            return exec_err!("a range join has no sums of {other}")
        );
        Ok(Self {
            counts: Counts::of(values),
            prefix,
        })
    }

    /// The sums of many ranges within the column, NULL where a range holds no value.
    pub(crate) fn answer(&self, ranges: &Ranges) -> ArrayRef {
        self.prefix.differences(ranges, &self.counts)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.prefix.bytes() + self.counts.bytes()
    }
}

/// Sums of one type of values.
trait Differences: Debug + Send + Sync {
    /// What each range adds to the sums, NULL where it holds no value.
    fn differences(&self, ranges: &Ranges, counts: &Counts) -> ArrayRef;

    fn bytes(&self) -> usize;
}

/// The sum of all values before each row, and of all.
#[derive(Debug)]
struct Prefix<T: ArrowPrimitiveType> {
    sums: Vec<T::Native>,
    data_type: DataType,
}

impl<T: ArrowPrimitiveType> Prefix<T> {
    fn of(values: &PrimitiveArray<T>) -> Self {
        let mut sum = T::Native::ZERO;
        let mut sums = Vec::with_capacity(values.len() + 1);
        sums.push(sum);
        for (i, value) in values.values().iter().enumerate() {
            if values.is_valid(i) {
                sum = sum.add_wrapping(*value);
            }
            sums.push(sum);
        }
        Self {
            sums,
            data_type: values.data_type().clone(),
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

    fn bytes(&self) -> usize {
        size_of_val(self.sums.as_slice())
    }
}

/// A position within the column, or its end.
#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "ranges within a column have no negative positions"
)]
fn index(position: i64) -> usize {
    position as usize
}
