//! Counts and sums of ranges, as differences of counts and sums from the first row.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, Int64Array, UInt64Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Decimal128Type, Int64Type, UInt64Type};
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

/// The sum of the values before each row, and how many there are. Sums wrap, as DataFusion's do, so that a difference is
/// right whenever the sum of the range fits.
#[derive(Debug)]
pub(crate) struct Sums {
    counts: Counts,
    prefix: Prefix,
    data_type: DataType,
}

#[derive(Debug)]
enum Prefix {
    Signed(Vec<i64>),
    Unsigned(Vec<u64>),
    Decimal(Vec<i128>),
}

impl Sums {
    /// Whether sums of values of this type are exact.
    pub(crate) fn supports(data_type: &DataType) -> bool {
        matches!(
            data_type,
            DataType::Int64 | DataType::UInt64 | DataType::Decimal128(..)
        )
    }

    /// The sums of a column.
    ///
    /// # Errors
    /// An execution error for a type that [`Self::supports`] does not name.
    pub(crate) fn of(values: &ArrayRef) -> Result<Self> {
        let nulls = values.nulls();
        let sums = match values.data_type() {
            DataType::Int64 => {
                let values = values.as_primitive::<Int64Type>().values();
                Prefix::Signed(prefix(values, nulls, i64::wrapping_add))
            }
            DataType::UInt64 => {
                let values = values.as_primitive::<UInt64Type>().values();
                Prefix::Unsigned(prefix(values, nulls, u64::wrapping_add))
            }
            DataType::Decimal128(..) => {
                let values = values.as_primitive::<Decimal128Type>().values();
                Prefix::Decimal(prefix(values, nulls, i128::wrapping_add))
            }
            other => return exec_err!("a range join has no sums of {other}"),
        };
        Ok(Self {
            counts: Counts::of(values),
            prefix: sums,
            data_type: values.data_type().clone(),
        })
    }

    /// The sums of many ranges within the column, NULL where a range holds no value.
    pub(crate) fn answer(&self, ranges: &Ranges) -> ArrayRef {
        let ends = || {
            ranges.iter().map(|range| {
                let found = self.counts.count(range) > 0;
                found.then(|| (index(range.0), index(range.1 + 1)))
            })
        };
        match &self.prefix {
            Prefix::Signed(sums) => {
                let sums = ends().map(|ends| ends.map(|(l, r)| sums[r].wrapping_sub(sums[l])));
                Arc::new(sums.collect::<Int64Array>())
            }
            Prefix::Unsigned(sums) => {
                let sums = ends().map(|ends| ends.map(|(l, r)| sums[r].wrapping_sub(sums[l])));
                Arc::new(sums.collect::<UInt64Array>())
            }
            Prefix::Decimal(sums) => {
                let sums = ends().map(|ends| ends.map(|(l, r)| sums[r].wrapping_sub(sums[l])));
                let sums = sums.collect::<Decimal128Array>();
                Arc::new(sums.with_data_type(self.data_type.clone()))
            }
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let sums = match &self.prefix {
            Prefix::Signed(sums) => size_of_val(sums.as_slice()),
            Prefix::Unsigned(sums) => size_of_val(sums.as_slice()),
            Prefix::Decimal(sums) => size_of_val(sums.as_slice()),
        };
        sums + self.counts.bytes()
    }
}

/// The sum of all values before each row, and of all.
fn prefix<T: Copy + Default>(
    values: &[T],
    nulls: Option<&NullBuffer>,
    add: impl Fn(T, T) -> T,
) -> Vec<T> {
    let mut sum = T::default();
    let mut sums = Vec::with_capacity(values.len() + 1);
    sums.push(sum);
    for (i, value) in values.iter().enumerate() {
        if nulls.is_none_or(|nulls| nulls.is_valid(i)) {
            sum = add(sum, *value);
        }
        sums.push(sum);
    }
    sums
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
