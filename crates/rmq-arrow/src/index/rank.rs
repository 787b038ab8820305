//! Ranks of values that are wider than a key, such as strings, among the distinct values.

use arrow::array::{Array, ArrayRef, UInt32Array, make_comparator};
use arrow::compute::{SortOptions, cast, sort_to_indices, take};
use arrow::datatypes::DataType;
use datafusion_common::{Result, exec_err};

/// The rank of each value, 0 for NULL, and the distinct values in ascending order.
#[derive(Debug)]
pub struct Ranked {
    /// One for each value.
    pub ranks: Vec<u32>,
    /// The value of rank 1, of rank 2 and so on.
    pub distinct: ArrayRef,
}

/// Ranks `values` in the order of their type.
///
/// # Errors
/// An execution error for 2^32 values or more, which Arrow can't sort.
pub fn rank(values: &ArrayRef) -> Result<Ranked> {
    if u32::try_from(values.len()).is_err() {
        return exec_err!(
            "a column of {} has {} values; range queries rank at most {} of them",
            values.data_type(),
            values.len(),
            u32::MAX
        );
    }
    let options = SortOptions {
        descending: false,
        nulls_first: false,
    };
    let order = sort_to_indices(values, Some(options), None)?;
    let order = &order.values()[..values.len() - values.null_count()];
    let compare = make_comparator(values, values, options)?;
    let mut ranks = vec![0; values.len()];
    let mut firsts: Vec<u32> = vec![];
    let mut rank = 0;
    for (i, &row) in order.iter().enumerate() {
        let before = order[i.saturating_sub(1)];
        if i == 0 || compare(before as usize, row as usize).is_ne() {
            rank += u32::from(i > 0);
            firsts.push(row);
        }
        ranks[row as usize] = rank;
    }
    let distinct = take(values, &UInt32Array::from(firsts), None)?;
    Ok(Ranked {
        ranks,
        distinct: compact(distinct)?,
    })
}

/// Copies views to buffers of their own: `take` on a view array keeps the buffers of the whole column alive.
fn compact(distinct: ArrayRef) -> Result<ArrayRef> {
    let plain = match distinct.data_type() {
        DataType::Utf8View => DataType::LargeUtf8,
        DataType::BinaryView => DataType::LargeBinary,
        _ => return Ok(distinct),
    };
    Ok(cast(&cast(&distinct, &plain)?, distinct.data_type())?)
}
