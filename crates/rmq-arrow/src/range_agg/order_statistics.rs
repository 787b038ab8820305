//! Order statistics of ranges of rows, as aggregates: medians, percentiles and numbers of distinct values, in time
//! logarithmic in the distinct values of the column, however long a range is.
//!
//! The statistics of the column ([`ColumnStatistics`]) count the values of a range, and find its n-th smallest. The
//! arithmetic between two values is that of DataFusion's functions, so that the answers are the same bits.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, Int64Array, PrimitiveArray};
use arrow::datatypes::{
    ArrowNativeTypeOp, DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    Float32Type, Float64Type,
};
use datafusion_common::{Result, internal_err};
use datafusion_execution::memory_pool::MemoryReservation;

use crate::common::ordered_type::key_layout;
use crate::common::range_function::IndexKind;
use crate::common::range_groups::RangeGroups;
use crate::common::ranges::Ranges;
use crate::index::column_statistics::ColumnStatistics;
use crate::index::quantile::{Place, interpolated};
use crate::index::sort_keys::Chunks;

/// A statistic of the values of a range that are not NULL.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OrderStatistic {
    /// The middle value, or what is between the two in the middle.
    Median,
    /// Between 0 and 1.
    Percentile(f64),
    /// The number of distinct values.
    CountDistinct,
}

impl OrderStatistic {
    /// The kind of index that answers it.
    pub fn kind(self) -> IndexKind {
        match self {
            Self::Median | Self::Percentile(_) => IndexKind::Ranks,
            Self::CountDistinct => IndexKind::DistinctCounts,
        }
    }

    /// Whether an index answers it for values of this type.
    pub fn is_known_for(self, data_type: &DataType) -> bool {
        match self {
            Self::Median => is_float(data_type) || data_type.is_decimal(),
            Self::Percentile(_) => is_float(data_type),
            Self::CountDistinct => is_known_for(self.kind(), data_type),
        }
    }
}

/// Whether there is an index of this kind of values of this type: where they are equal, and between them, as DataFusion
/// says.
pub fn is_known_for(kind: IndexKind, data_type: &DataType) -> bool {
    match kind {
        IndexKind::Ranks => key_layout(data_type).is_some(),
        IndexKind::DistinctCounts => {
            data_type.is_primitive() && *data_type != DataType::Float16
                || data_type.is_string()
                || data_type.is_binary()
        }
        IndexKind::Extremes(_) => false,
    }
}

fn is_float(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Float32 | DataType::Float64)
}

/// Where a statistic is among this many sorted values.
fn place_of(statistic: OrderStatistic, rows: u64) -> Place {
    let Some(last) = rows.checked_sub(1) else {
        return Place::at(u64::MAX);
    };
    match statistic {
        OrderStatistic::Median if rows.is_multiple_of(2) => Place {
            lower: last / 2,
            upper: rows / 2,
            weight: Some(0.5),
        },
        OrderStatistic::Percentile(percentile) => Place::of_quantile(percentile, last),
        _ => Place::at(last / 2),
    }
}

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

/// The statistics of this kind of these values, one array after another, built on up to `threads` threads. What they
/// take is added to `memory`.
///
/// # Errors
/// If memory is short, or `check` fails between steps: the query was cancelled.
pub fn build_statistics(
    kind: IndexKind,
    values: &[ArrayRef],
    threads: usize,
    memory: &MemoryReservation,
    check: &dyn Fn() -> Result<()>,
) -> Result<ColumnStatistics> {
    let Some(first) = values.first() else {
        return internal_err!("order statistics of a column without arrays");
    };
    let data_type = first.data_type().clone();
    let chunks = Chunks::borrowed(values.to_vec());
    let working = memory.new_empty();
    working.try_grow(ColumnStatistics::working_bytes(&chunks, &data_type))?;
    memory.try_grow(ColumnStatistics::estimate(&chunks, &data_type, kind))?;
    let stops = || check().is_err();
    let built = ColumnStatistics::build(&chunks, &data_type, kind, threads, &stops);
    check()?;
    let built = built?;
    memory.try_resize(built.bytes())?;
    Ok(built)
}

impl OrderStatistic {
    /// The statistic of each range, by the statistics of the column of [`Self::kind`].
    ///
    /// # Errors
    /// An internal error for statistics of the other kind.
    pub fn of_ranges(self, column: &ColumnStatistics, ranges: &Ranges) -> Result<ArrayRef> {
        if self == Self::CountDistinct {
            let counts = column.count_distinct(ranges)?;
            return Ok(Arc::new(Int64Array::from(counts)));
        }
        let rows = column.count(ranges)?;
        let rows = rows.into_iter().map(i64::unsigned_abs);
        self.between(rows, |places| column.at_places(ranges, places))
    }

    /// The statistic of the rows of each group of ranges, where a row that is in several of them counts as often. Of
    /// groups that don't have one range each, numbers of distinct values are not known.
    ///
    /// # Errors
    /// As [`Self::of_ranges`]; an internal one for numbers of distinct values of several ranges.
    pub fn of_groups(self, column: &ColumnStatistics, groups: &RangeGroups) -> Result<ArrayRef> {
        if groups.are_single() {
            return self.of_ranges(column, &groups.ranges());
        }
        if self == Self::CountDistinct {
            return internal_err!("distinct values of several ranges are not counted by an index");
        }
        let rows = column.count(&groups.ranges())?;
        let rows = groups.firsts().windows(2).map(|group| {
            let rows = rows[group[0]..group[1]].iter();
            rows.map(|rows| rows.unsigned_abs()).sum()
        });
        self.between(rows, |places| {
            let value = |place: fn(&Place) -> u64| {
                let smaller: Vec<u64> = places.iter().map(place).collect();
                column.nth_smallest_of_groups(groups, &smaller)
            };
            Ok([value(|place| place.lower)?, value(|place| place.upper)?])
        })
    }

    /// The statistic of these numbers of values, by what finds the lower and the upper values at places among them.
    fn between(
        self,
        rows: impl Iterator<Item = u64>,
        at_places: impl Fn(&[Place]) -> Result<[ArrayRef; 2]>,
    ) -> Result<ArrayRef> {
        let places: Vec<Place> = rows.map(|rows| place_of(self, rows)).collect();
        let [lower, upper] = at_places(&places)?;
        let found = Found {
            places,
            lower,
            upper,
        };
        let is_median = self == Self::Median;
        Ok(match found.lower.data_type() {
            DataType::Float32 if is_median => found.values::<Float32Type>(middle),
            DataType::Float64 if is_median => found.values::<Float64Type>(middle),
            DataType::Float32 => found.values::<Float32Type>(|lower, upper, weight| {
                #[expect(clippy::cast_possible_truncation, reason = "as DataFusion rounds")]
                let value = interpolated(lower.into(), upper.into(), weight) as f32;
                value
            }),
            DataType::Float64 => found.values::<Float64Type>(interpolated),
            DataType::Decimal32(..) => found.values::<Decimal32Type>(middle),
            DataType::Decimal64(..) => found.values::<Decimal64Type>(middle),
            DataType::Decimal128(..) => found.values::<Decimal128Type>(middle),
            DataType::Decimal256(..) => found.values::<Decimal256Type>(middle),
            other => return internal_err!("{self:?} of a {other} is not known"),
        })
    }
}

/// The two values that each range's statistic is made of; NULL where it has none.
struct Found {
    places: Vec<Place>,
    lower: ArrayRef,
    upper: ArrayRef,
}

impl Found {
    /// The statistics. `between` is that of two values and a weight.
    fn values<T: ArrowPrimitiveType>(
        &self,
        between: impl Fn(T::Native, T::Native, f64) -> T::Native,
    ) -> ArrayRef {
        let (lower, upper) = (
            self.lower.as_primitive::<T>(),
            self.upper.as_primitive::<T>(),
        );
        let pairs = lower.iter().zip(upper.values()).zip(&self.places);
        let values = pairs.map(|((lower, upper), place)| {
            let lower = lower?;
            Some(match place.weight {
                None => lower,
                Some(weight) => between(lower, *upper, weight),
            })
        });
        let values: PrimitiveArray<T> = values.collect();
        Arc::new(values.with_data_type(lower.data_type().clone()))
    }
}
