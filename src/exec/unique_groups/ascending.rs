//! Columns that have no value twice, as told by batches in which they ascend.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{ArrowNativeType, DataType};

/// Columns that may have no value twice. Batches come in any order, and from any partition.
#[derive(Debug)]
pub(crate) struct Ascending(Mutex<Vec<Candidate>>);

#[derive(Debug)]
struct Candidate {
    /// Where the column stands in a batch.
    place: usize,
    /// The first and the last value of each batch. No two overlap.
    batches: BTreeMap<i128, i128>,
}

impl Ascending {
    pub(crate) fn new(places: &[usize]) -> Self {
        let candidates = places.iter().map(|place| Candidate {
            place: *place,
            batches: BTreeMap::new(),
        });
        Self(Mutex::new(candidates.collect()))
    }

    /// Adds a batch that has rows. Whether a column is left of which no value is known to be there twice.
    pub(crate) fn add(&self, batch: &RecordBatch) -> bool {
        let places: Vec<usize> = self.candidates().iter().map(|c| c.place).collect();
        let ends = places.into_iter().map(|place| (place, ends(batch, place)));
        // Without the lock: this looks at all values.
        let ends: Vec<_> = ends.collect();
        let mut candidates = self.candidates();
        candidates.retain_mut(|candidate| {
            let ends = ends.iter().find(|(place, _)| *place == candidate.place);
            ends.and_then(|(_, ends)| *ends)
                .is_some_and(|ends| candidate.add(ends))
        });
        !candidates.is_empty()
    }

    /// A column that has no value twice in the batches added, if there is one.
    pub(crate) fn place(&self) -> Option<usize> {
        self.candidates().first().map(|c| c.place)
    }

    fn candidates(&self) -> MutexGuard<'_, Vec<Candidate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Candidate {
    /// Adds a batch, unless its values lie among those of another.
    fn add(&mut self, (first, last): (i128, i128)) -> bool {
        let before = self.batches.range(..=last).next_back();
        let apart = before.is_none_or(|(_, end)| *end < first);
        if apart {
            self.batches.insert(first, last);
        }
        apart
    }
}

/// Whether columns of this type are looked at.
pub(crate) fn can_ascend(data_type: &DataType) -> bool {
    data_type.is_integer()
        || (data_type.is_temporal() && !matches!(data_type, DataType::Interval(_)))
}

/// The first and the last value of a column that ascends, without equal ones and NULLs.
pub(crate) fn ends(batch: &RecordBatch, place: usize) -> Option<(i128, i128)> {
    use DataType as T;
    let column = batch.columns().get(place)?;
    if column.null_count() > 0 {
        return None;
    }
    match column.data_type() {
        T::Int8 => ends_of::<i8>(column),
        T::Int16 => ends_of::<i16>(column),
        T::Int32 | T::Date32 | T::Time32(_) => ends_of::<i32>(column),
        T::Int64 | T::Date64 | T::Time64(_) | T::Timestamp(..) | T::Duration(_) => {
            ends_of::<i64>(column)
        }
        T::UInt8 => ends_of::<u8>(column),
        T::UInt16 => ends_of::<u16>(column),
        T::UInt32 => ends_of::<u32>(column),
        T::UInt64 => ends_of::<u64>(column),
        _ => None,
    }
}

fn ends_of<T: ArrowNativeType + Ord + Into<i128>>(column: &dyn Array) -> Option<(i128, i128)> {
    let data = column.to_data();
    let values = &data.buffer::<T>(0)[..data.len()];
    let (first, last) = (values.first()?, values.last()?);
    // Without an early end, which keeps the compiler from comparing several at a time.
    let pairs = values.iter().zip(&values[1..]);
    let falls = pairs.filter(|(a, b)| a >= b).count();
    (falls == 0).then(|| ((*first).into(), (*last).into()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, TimestampNanosecondArray, UInt64Array};

    use super::*;

    fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
        let columns = columns.into_iter().enumerate();
        let columns = columns.map(|(i, c)| (i.to_string(), c, true));
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    fn integers(values: &[i64]) -> RecordBatch {
        batch(vec![Arc::new(Int64Array::from(values.to_vec()))])
    }

    #[test]
    fn batches_that_ascend_and_lie_apart_have_no_value_twice() {
        let ascending = Ascending::new(&[0]);
        for values in [&[5, 6, 9][..], &[i64::MIN, 4], &[i64::MAX], &[10, 11]] {
            assert!(ascending.add(&integers(values)));
        }
        assert_eq!(ascending.place(), Some(0));
    }

    #[test]
    fn batches_that_overlap_may_have_a_value_twice() {
        for second in [&[9, 10][..], &[1, 5], &[6, 7], &[1, 20], &[5, 6, 9], &[9]] {
            let ascending = Ascending::new(&[0]);
            assert!(ascending.add(&integers(&[30, 40])) && ascending.add(&integers(&[5, 6, 9])));
            assert!(!ascending.add(&integers(second)), "{second:?}");
            assert_eq!(ascending.place(), None);
        }
    }

    #[test]
    fn equal_values_descents_and_nulls_are_told() {
        for values in [&[1, 1][..], &[2, 1], &[1, 2, 3, 3], &[1, 2, 9, 4, 10]] {
            assert!(!Ascending::new(&[0]).add(&integers(values)), "{values:?}");
        }
        let null = batch(vec![Arc::new(Int64Array::from(vec![Some(1), None]))]);
        assert!(!Ascending::new(&[0]).add(&null));
    }

    #[test]
    fn a_column_stays_until_a_batch_speaks_against_it() {
        let two = |a: &[u64], b: &[i64]| {
            batch(vec![
                Arc::new(UInt64Array::from(a.to_vec())),
                Arc::new(TimestampNanosecondArray::from(b.to_vec())),
            ])
        };
        let ascending = Ascending::new(&[0, 1]);
        assert!(ascending.add(&two(&[u64::MAX - 1, u64::MAX], &[-5, 3])));
        assert_eq!(ascending.place(), Some(0));
        // Slices have the values that they show.
        assert!(ascending.add(&two(&[9, 7, 8, 1], &[9, 7, 8, 1]).slice(1, 2)));
        assert!(ascending.add(&two(&[7], &[4])));
        assert_eq!(ascending.place(), Some(1));
        assert!(!ascending.add(&two(&[0], &[7])));
    }
}
