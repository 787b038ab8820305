//! The positions of the rows whose ORDER BY expression is between two bounds: what `range_frame_min(value, low, high)`
//! hands to the index of a partition.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, make_comparator};
use arrow::compute::SortOptions;
use datafusion_common::{Result, internal_datafusion_err};

/// The first and the last position of the keys from `low` to `high`, both inclusive, for each row. The keys are sorted,
/// up or down, and NULLs are together at one end. A NULL bound has no keys: its positions are NULL. Where there are no
/// keys between the bounds, the first position is after the last.
///
/// # Errors
/// Arrow's, for types that are not compared.
pub fn key_positions(
    keys: &ArrayRef,
    low: &ArrayRef,
    high: &ArrayRef,
) -> Result<(ArrayRef, ArrayRef)> {
    let with_low = make_comparator(keys, low, SortOptions::default())?;
    let with_high = make_comparator(keys, high, SortOptions::default())?;
    let nulls = keys.null_count();
    let first = if nulls > 0 && keys.is_null(0) {
        nulls
    } else {
        0
    };
    let end = first + keys.len() - nulls;
    let ascends = first == end || {
        let order = make_comparator(keys, keys, SortOptions::default())?;
        order(first, end - 1).is_le()
    };
    let (mut left, mut right) = (vec![], vec![]);
    for row in 0..keys.len() {
        if low.is_null(row) || high.is_null(row) {
            left.push(None);
            right.push(None);
            continue;
        }
        let (from, to) = if ascends {
            (
                partition_point(first, end, |key| with_low(key, row).is_lt()),
                partition_point(first, end, |key| with_high(key, row).is_le()),
            )
        } else {
            (
                partition_point(first, end, |key| with_high(key, row).is_gt()),
                partition_point(first, end, |key| with_low(key, row).is_ge()),
            )
        };
        left.push(Some(position(from)?));
        right.push(Some(position(to)? - 1));
    }
    Ok((
        Arc::new(Int64Array::from(left)),
        Arc::new(Int64Array::from(right)),
    ))
}

/// The first of the integers from `first` to `end` for which a condition does not hold; it holds for all before it.
fn partition_point(first: usize, end: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (first, end);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

fn position(row: usize) -> Result<i64> {
    i64::try_from(row).map_err(|_| internal_datafusion_err!("row {row} is beyond 2^63"))
}
