//! Counts and sums of ranges, as differences of counts and sums from the first row.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, Int64Array, UInt64Array};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Decimal128Type, Int64Type, UInt64Type};
use datafusion::common::{Result, exec_err};

use super::places::Places;
use crate::engine::cpu::{Numbers, Plain};
use crate::functions::bounds::Ranges;

/// How many values before each row are not NULL.
#[derive(Debug)]
pub(crate) struct Counts(Option<Numbers<u32>>);

impl Counts {
    /// The counts of the column that `chunks` make up, of fewer than 2^32 rows that go to `places`.
    pub(crate) fn of(chunks: &[ArrayRef], places: &Places) -> Result<Self> {
        if chunks.iter().all(|chunk| chunk.logical_null_count() == 0) {
            return Ok(Self(None));
        }
        let mut counts = Numbers::zeroed(places.len() + 1)?;
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
        add_up(&mut counts, u32::wrapping_add);
        Ok(Self(Some(counts)))
    }

    /// About how many bytes the counts of such a column take.
    pub(crate) fn estimate(chunks: &[ArrayRef], places: &Places) -> usize {
        if chunks.iter().all(|chunk| chunk.logical_null_count() == 0) {
            return 0;
        }
        (places.len() + 1) * size_of::<u32>()
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
}

/// The sum of the values before each row, and how many there are. Sums wrap, as DataFusion's do, so that a difference is
/// right whenever the sum of the range fits.
#[derive(Debug)]
pub(crate) struct Sums {
    counts: Arc<Counts>,
    prefix: Prefix,
    data_type: DataType,
}

#[derive(Debug)]
enum Prefix {
    Signed(Numbers<i64>),
    Unsigned(Numbers<u64>),
    Decimal(Numbers<i128>),
}

impl Sums {
    /// Whether sums of values of this type are exact.
    pub(crate) fn supports(data_type: &DataType) -> bool {
        matches!(
            data_type,
            DataType::Int64 | DataType::UInt64 | DataType::Decimal128(..)
        )
    }

    /// The sums of the column that `chunks` make up, whose rows go to `places`.
    ///
    /// # Errors
    /// An execution error for a type that [`Self::supports`] does not name.
    pub(crate) fn of(
        chunks: &[ArrayRef],
        data_type: &DataType,
        counts: Arc<Counts>,
        places: &Places,
    ) -> Result<Self> {
        let prefix = match data_type {
            DataType::Int64 => {
                Prefix::Signed(prefix::<Int64Type>(chunks, places, i64::wrapping_add)?)
            }
            DataType::UInt64 => {
                Prefix::Unsigned(prefix::<UInt64Type>(chunks, places, u64::wrapping_add)?)
            }
            DataType::Decimal128(..) => Prefix::Decimal(prefix::<Decimal128Type>(
                chunks,
                places,
                i128::wrapping_add,
            )?),
            other => return exec_err!("a range join has no sums of {other}"),
        };
        Ok(Self {
            counts,
            prefix,
            data_type: data_type.clone(),
        })
    }

    /// About how many bytes the sums of such a column take, the counts not included.
    pub(crate) fn estimate(data_type: &DataType, places: &Places) -> usize {
        (places.len() + 1) * data_type.primitive_width().unwrap_or_default()
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
}

/// The sum of all values before each place, and of all.
fn prefix<T: ArrowPrimitiveType<Native: Plain>>(
    chunks: &[ArrayRef],
    places: &Places,
    add: impl Fn(T::Native, T::Native) -> T::Native,
) -> Result<Numbers<T::Native>> {
    let mut sums = Numbers::zeroed(places.len() + 1)?;
    let mut first = 0;
    for chunk in chunks {
        let values = chunk.as_primitive::<T>();
        places.put(first, values.values(), &mut sums[1..]);
        if let Some(nulls) = values.nulls().filter(|n| n.null_count() > 0) {
            for (row, place) in places.of_rows(first, chunk.len()).enumerate() {
                if let Some(place) = place.filter(|_| nulls.is_null(row)) {
                    sums[place + 1] = T::Native::default();
                }
            }
        }
        first += chunk.len();
    }
    add_up(&mut sums, add);
    Ok(sums)
}

/// Each number becomes the sum of those up to it.
fn add_up<T: Copy + Default>(numbers: &mut [T], add: impl Fn(T, T) -> T) {
    let mut sum = T::default();
    for number in numbers {
        sum = add(sum, *number);
        *number = sum;
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
