//! Restores the order of the batches of a sorted table.
//!
//! A scan in several partitions returns the batches of a sorted table in any order. The first and the last key of each
//! batch tell the original order; with the batches in that order no row has to be moved.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt64Array};
use arrow::compute::{cast, interleave, take};
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use datafusion::common::Result;

use rmq_arrow::common::ordered_type::value_type;

/// Orders the batches by the first of `keys`, each a range of columns, by which no two of them overlap. Without such a
/// key the batches stay in their order. Also returns whether any moved. Empty batches are dropped; rows within a batch
/// are not looked at.
pub(crate) fn restore_order(
    mut batches: Vec<RecordBatch>,
    keys: &[Range<usize>],
) -> Result<(Vec<RecordBatch>, bool)> {
    batches.retain(|batch| batch.num_rows() > 0);
    if batches.len() < 2 {
        return Ok((batches, false));
    }
    for columns in keys {
        if let Some(order) = non_overlapping_order(&batches, columns.clone())? {
            let moved = !order.is_sorted();
            let ordered = order.into_iter().map(|batch| batches[batch].clone());
            return Ok((ordered.collect(), moved));
        }
    }
    Ok((batches, false))
}

/// The order of batches by their first rows, if in that order each batch ends before the next begins.
fn non_overlapping_order(
    batches: &[RecordBatch],
    columns: Range<usize>,
) -> Result<Option<Vec<usize>>> {
    let ends = columns.map(|column| {
        let arrays = batches.iter().map(|batch| batch.column(column));
        let arrays = arrays.map(|array| match array.data_type() {
            // Keys of dictionaries may be too narrow for the values of all batches.
            coded @ DataType::Dictionary(..) => {
                let ends = UInt64Array::from(vec![0, array.len() as u64 - 1]);
                cast(&take(array, &ends, None)?, &value_type(coded))
            }
            _ => Ok(Arc::clone(array)),
        });
        let arrays: Vec<ArrayRef> = arrays.collect::<Result<_, _>>()?;
        let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
        let ends = arrays.iter().enumerate();
        let ends = ends.flat_map(|(i, array)| [(i, 0), (i, array.len() - 1)]);
        Ok(interleave(&arrays, &ends.collect::<Vec<_>>())?)
    });
    let ends: Vec<ArrayRef> = ends.collect::<Result<_>>()?;
    let fields = ends.iter().map(|e| SortField::new(e.data_type().clone()));
    let ends = RowConverter::new(fields.collect())?.convert_columns(&ends)?;
    let (first, last) = (|batch| ends.row(2 * batch), |batch| ends.row(2 * batch + 1));
    let mut order: Vec<usize> = (0..batches.len()).collect();
    order.sort_by_key(|batch| first(*batch));
    let mut pairs = order.windows(2);
    let apart = pairs.all(|pair| last(pair[0]) <= first(pair[1]))
        && order.iter().all(|batch| first(*batch) <= last(*batch));
    Ok(apart.then_some(order))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};

    use super::*;

    fn batch(rows: &[(&str, i64)]) -> RecordBatch {
        let names: StringArray = rows.iter().map(|(name, _)| Some(*name)).collect();
        let times: Int64Array = rows.iter().map(|(_, time)| Some(*time)).collect();
        RecordBatch::try_from_iter([
            ("0", Arc::new(names) as ArrayRef),
            ("1", Arc::new(times) as ArrayRef),
        ])
        .unwrap()
    }

    fn check(batches: &[&[(&str, i64)]], expected: &[usize]) {
        let batches: Vec<RecordBatch> = batches.iter().map(|rows| batch(rows)).collect();
        let expected: Vec<_> = expected.iter().map(|i| batches[*i].clone()).collect();
        // By time alone, then by name and time.
        let moves = expected != batches;
        let found = restore_order(batches, &[1..2, 0..2]).unwrap();
        assert_eq!(found, (expected, moves));
    }

    #[test]
    fn batches_are_ordered_by_time_or_by_name_and_time_or_not_at_all() {
        check(&[], &[]);
        check(&[&[("b", 1), ("a", 0)]], &[0]);
        let by_time: [&[_]; 3] = [&[("a", 5), ("b", 9)], &[("b", 1)], &[("a", 1), ("a", 4)]];
        check(&by_time, &[1, 2, 0]);
        let by_name: [&[_]; 3] = [
            &[("b", 4), ("c", 1)],
            &[("a", 3), ("b", 2)],
            &[("c", 1), ("c", 9)],
        ];
        check(&by_name, &[1, 0, 2]);
        let overlapping: [&[_]; 2] = [&[("b", 4), ("b", 6)], &[("a", 1), ("c", 5)]];
        check(&overlapping, &[0, 1]);
        let falling: [&[_]; 2] = [&[("b", 4), ("a", 3)], &[("a", 1), ("a", 2)]];
        check(&falling, &[0, 1]);
    }
}
