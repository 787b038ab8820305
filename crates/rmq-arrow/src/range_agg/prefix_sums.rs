//! Sums of ranges, as differences of prefix sums; those of floats are delegated to [`FloatSums`].

use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, AsArray, PrimitiveArray};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType,
    Int64Type, IntervalDayTimeType, IntervalMonthDayNanoType, IntervalUnit, IntervalYearMonthType,
    TimeUnit, UInt64Type,
};
use datafusion_common::{Result, exec_err, internal_err};

use crate::common::ranges::Ranges;
use crate::common::workers::Workers;
use crate::range_agg::accumulate::{accumulate, copy_values};
use crate::range_agg::counts::{Counts, to_index};
use crate::range_agg::float_sums::FloatSums;

/// The sums of ranges of a column.
#[derive(Debug)]
pub struct Sums {
    counts: Arc<Counts>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Prefix sums. They wrap on overflow as DataFusion's sums do, each field of an interval by itself, so that a
    /// difference equals DataFusion's sum of the range.
    Exact(Box<dyn Differences>),
    /// Differences of float sums would lose digits.
    Floats(FloatSums),
}

/// Expands `$helper!(T)` with Arrow's type of `$data_type`, if sums of that type are exact.
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
    /// Whether values of this type can be summed.
    pub fn supports(data_type: &DataType) -> bool {
        macro_rules! yes {
            ($type:ty) => {
                true
            };
        }
        with_exact_type!(data_type, yes, Self::is_rounded(data_type))
    }

    /// Whether sums of values of this type are rounded, and so have rounding errors.
    pub fn is_rounded(data_type: &DataType) -> bool {
        data_type == &DataType::Float64
    }

    /// Builds the sums of a column, given as arrays that follow one another, with each row at its position.
    ///
    /// # Errors
    /// An execution error for a type that [`Self::supports`] rejects; if the query is cancelled.
    pub fn try_new(
        arrays: &[ArrayRef],
        data_type: &DataType,
        counts: Arc<Counts>,
        workers: Workers,
    ) -> Result<Self> {
        macro_rules! prefix {
            ($type:ty) => {
                Box::new(PrefixSums::<$type>::new(arrays, data_type, workers)?)
            };
        }
        if Self::is_rounded(data_type) {
            let kind = Kind::Floats(FloatSums::new(arrays, workers)?);
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

    /// Estimates the bytes that the sums of a column take, the counts not included.
    ///
    /// # Errors
    /// If the query is cancelled, and an execution error for a type without sums.
    pub fn estimate(arrays: &[ArrayRef], data_type: &DataType, workers: Workers) -> Result<usize> {
        if Self::is_rounded(data_type) {
            return FloatSums::estimate(arrays, workers);
        }
        let rows: usize = arrays.iter().map(Array::len).sum();
        match data_type.primitive_width() {
            Some(width) => Ok((rows + 1) * width),
            None => exec_err!("a range join has no sums of {data_type}"),
        }
    }

    /// Whether the sums refer to the memory of the column that they were built of.
    pub fn borrows_column(&self) -> bool {
        matches!(&self.kind, Kind::Floats(sums) if sums.borrows_column())
    }

    /// Adds two partial exact sums of the same ranges; NULL where both are NULL.
    ///
    /// # Errors
    /// An execution error for types whose sums are not exact.
    pub fn add(some: &ArrayRef, others: &ArrayRef) -> Result<ArrayRef> {
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

    /// Computes the sums of ranges within the column, NULL where a range has no value.
    pub fn answer(&self, ranges: &Ranges) -> ArrayRef {
        match &self.kind {
            Kind::Exact(prefix) => prefix.differences(ranges, &self.counts),
            Kind::Floats(sums) => sums.sums(ranges, &self.counts),
        }
    }

    /// Computes the rounding errors of the sums of ranges.
    ///
    /// # Errors
    /// An internal error for types whose sums are exact.
    pub fn sums_low(&self, ranges: &Ranges) -> Result<ArrayRef> {
        match &self.kind {
            Kind::Exact(_) => internal_err!("exact sums have no rest"),
            Kind::Floats(sums) => Ok(sums.sums_low(ranges, &self.counts)),
        }
    }
}

/// Prefix sums of values of any type.
trait Differences: Debug + Send + Sync {
    /// Computes the sums of ranges, NULL where a range has no value.
    fn differences(&self, ranges: &Ranges, counts: &Counts) -> ArrayRef;
}

/// The sum of all values before each position, and the total.
#[derive(Debug)]
struct PrefixSums<T: ArrowPrimitiveType> {
    sums: Vec<T::Native>,
    data_type: DataType,
}

impl<T: ArrowPrimitiveType> PrefixSums<T> {
    fn new(arrays: &[ArrayRef], data_type: &DataType, workers: Workers) -> Result<Self> {
        let rows: usize = arrays.iter().map(Array::len).sum();
        let mut sums = vec![T::Native::ZERO; rows + 1];
        copy_values::<T>(arrays, T::Native::ZERO, &mut sums[1..], workers)?;
        accumulate(&mut sums, T::Native::add_wrapping, workers)?;
        Ok(Self {
            sums,
            data_type: data_type.clone(),
        })
    }
}

impl<T: ArrowPrimitiveType + Debug> Differences for PrefixSums<T> {
    fn differences(&self, ranges: &Ranges, counts: &Counts) -> ArrayRef {
        let sums = ranges.iter().map(|(left, right)| {
            let has_values = counts.count((left, right)) > 0;
            has_values
                .then(|| self.sums[to_index(right + 1)].sub_wrapping(self.sums[to_index(left)]))
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
