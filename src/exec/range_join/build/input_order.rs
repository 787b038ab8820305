//! Batches of sorted rows put back in order.
//!
//! A scan in several partitions gives the batches of a sorted table in any order. Where each batch begins and ends tells the order that
//! they had; then nothing needs to be sorted.

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::{cast, concat};
use arrow::row::{RowConverter, SortField};
use datafusion::common::Result;

use crate::common::ordered_type::value_type;

/// The same batches but for empty ones, in the order of the first of `keys` by which none of them overlaps another. Each of `keys` names columns.
/// Rows within the batches are not looked at.
pub(crate) fn in_order(
    mut batches: Vec<RecordBatch>,
    keys: &[std::ops::Range<usize>],
) -> Result<Vec<RecordBatch>> {
    batches.retain(|batch| batch.num_rows() > 0);
    if batches.len() < 2 {
        return Ok(batches);
    }
    for columns in keys {
        if let Some(order) = order(&batches, columns.clone())? {
            let mut places = vec![0; order.len()];
            for (place, batch) in order.into_iter().enumerate() {
                places[batch] = place;
            }
            let mut moved: Vec<_> = places.into_iter().zip(batches).collect();
            moved.sort_by_key(|(place, _)| *place);
            batches = moved.into_iter().map(|(_, batch)| batch).collect();
            return Ok(batches);
        }
    }
    Ok(batches)
}

/// The order of batches by their first rows, if in it each ends before the next begins.
fn order(batches: &[RecordBatch], columns: std::ops::Range<usize>) -> Result<Option<Vec<usize>>> {
    let ends = columns.map(|column| {
        let ends = batches.iter().flat_map(|batch| {
            let column = batch.column(column);
            // Not as dictionaries, whose keys may not suffice for the values of all.
            let plain = value_type(column.data_type());
            [0, column.len() - 1].map(|row| cast(&column.slice(row, 1), &plain))
        });
        let ends: Vec<ArrayRef> = ends.collect::<Result<_, _>>()?;
        let ends: Vec<&dyn Array> = ends.iter().map(AsRef::as_ref).collect();
        Ok(concat(&ends)?)
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
        let found = in_order(batches, &[1..2, 0..2]).unwrap();
        assert_eq!(found, expected);
    }

    #[test]
    fn batches_are_ordered_by_time_or_by_name_and_time_or_stay() {
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
