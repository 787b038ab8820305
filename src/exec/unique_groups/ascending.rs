//! Finds columns without duplicate values: columns that ascend in each batch, and in which no two batches overlap.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{ArrowNativeType, DataType};

/// The columns that have no duplicate value in the batches added so far. Batches come in any order and from any
/// partition.
#[derive(Debug)]
pub(crate) struct AscendingColumns(Mutex<Vec<Candidate>>);

#[derive(Debug)]
struct Candidate {
    /// The column's index in a batch.
    column: usize,
    /// The first and the last value of each batch. No two overlap.
    batches: BTreeMap<i128, i128>,
}

impl AscendingColumns {
    pub(crate) fn new(columns: &[usize]) -> Self {
        let candidates = columns.iter().map(|column| Candidate {
            column: *column,
            batches: BTreeMap::new(),
        });
        Self(Mutex::new(candidates.collect()))
    }

    /// Adds a batch, which must have rows. Returns whether a column without duplicates remains.
    pub(crate) fn add(&self, batch: &RecordBatch) -> bool {
        let columns: Vec<usize> = self.candidates().iter().map(|c| c.column).collect();
        // Without the lock, because this reads all values.
        let bounds: Vec<_> = columns
            .into_iter()
            .map(|column| (column, first_and_last(batch, column)))
            .collect();
        let mut candidates = self.candidates();
        candidates.retain_mut(|candidate| {
            let bounds = bounds
                .iter()
                .find(|(column, _)| *column == candidate.column);
            bounds
                .and_then(|(_, bounds)| *bounds)
                .is_some_and(|bounds| candidate.add(bounds))
        });
        !candidates.is_empty()
    }

    /// A column without duplicates in the batches added, if there is one.
    pub(crate) fn column(&self) -> Option<usize> {
        self.candidates().first().map(|c| c.column)
    }

    fn candidates(&self) -> MutexGuard<'_, Vec<Candidate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Candidate {
    /// Adds a batch. Returns false if its values overlap those of another batch.
    fn add(&mut self, (first, last): (i128, i128)) -> bool {
        let before = self.batches.range(..=last).next_back();
        let apart = before.is_none_or(|(_, end)| *end < first);
        if apart {
            self.batches.insert(first, last);
        }
        apart
    }
}

/// Whether columns of this type can be candidates: integers and times.
pub(crate) fn can_ascend(data_type: &DataType) -> bool {
    data_type.is_integer()
        || (data_type.is_temporal() && !matches!(data_type, DataType::Interval(_)))
}

/// The first and the last value of a strictly ascending column without NULLs; none for any other column.
pub(crate) fn first_and_last(batch: &RecordBatch, column: usize) -> Option<(i128, i128)> {
    use DataType as T;
    let column = batch.columns().get(column)?;
    if column.null_count() > 0 {
        return None;
    }
    match column.data_type() {
        T::Int8 => first_and_last_of::<i8>(column),
        T::Int16 => first_and_last_of::<i16>(column),
        T::Int32 | T::Date32 | T::Time32(_) => first_and_last_of::<i32>(column),
        T::Int64 | T::Date64 | T::Time64(_) | T::Timestamp(..) | T::Duration(_) => {
            first_and_last_of::<i64>(column)
        }
        T::UInt8 => first_and_last_of::<u8>(column),
        T::UInt16 => first_and_last_of::<u16>(column),
        T::UInt32 => first_and_last_of::<u32>(column),
        T::UInt64 => first_and_last_of::<u64>(column),
        _ => None,
    }
}

fn first_and_last_of<T: ArrowNativeType + Ord + Into<i128>>(
    column: &dyn Array,
) -> Option<(i128, i128)> {
    let data = column.to_data();
    let values = &data.buffer::<T>(0)[..data.len()];
    let (first, last) = (values.first()?, values.last()?);
    // Counts all pairs: an early exit would prevent vectorization.
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
    fn ascending_disjoint_batches_have_no_duplicates() {
        let ascending = AscendingColumns::new(&[0]);
        for values in [&[5, 6, 9][..], &[i64::MIN, 4], &[i64::MAX], &[10, 11]] {
            assert!(ascending.add(&integers(values)));
        }
        assert_eq!(ascending.column(), Some(0));
    }

    #[test]
    fn overlapping_batches_may_have_duplicates() {
        for second in [&[9, 10][..], &[1, 5], &[6, 7], &[1, 20], &[5, 6, 9], &[9]] {
            let ascending = AscendingColumns::new(&[0]);
            assert!(ascending.add(&integers(&[30, 40])) && ascending.add(&integers(&[5, 6, 9])));
            assert!(!ascending.add(&integers(second)), "{second:?}");
            assert_eq!(ascending.column(), None);
        }
    }

    #[test]
    fn equal_values_descents_and_nulls_are_rejected() {
        for values in [&[1, 1][..], &[2, 1], &[1, 2, 3, 3], &[1, 2, 9, 4, 10]] {
            assert!(
                !AscendingColumns::new(&[0]).add(&integers(values)),
                "{values:?}"
            );
        }
        let null = batch(vec![Arc::new(Int64Array::from(vec![Some(1), None]))]);
        assert!(!AscendingColumns::new(&[0]).add(&null));
    }

    #[test]
    fn a_column_remains_until_a_batch_contradicts() {
        let two = |a: &[u64], b: &[i64]| {
            batch(vec![
                Arc::new(UInt64Array::from(a.to_vec())),
                Arc::new(TimestampNanosecondArray::from(b.to_vec())),
            ])
        };
        let ascending = AscendingColumns::new(&[0, 1]);
        assert!(ascending.add(&two(&[u64::MAX - 1, u64::MAX], &[-5, 3])));
        assert_eq!(ascending.column(), Some(0));
        // Only the values of the slice count.
        assert!(ascending.add(&two(&[9, 7, 8, 1], &[9, 7, 8, 1]).slice(1, 2)));
        assert!(ascending.add(&two(&[7], &[4])));
        assert_eq!(ascending.column(), Some(1));
        assert!(!ascending.add(&two(&[0], &[7])));
    }
}
