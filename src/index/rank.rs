//! Values that are wider than a key, such as strings, as ranks among the distinct ones.

use arrow::array::{Array, ArrayRef, UInt32Array, make_comparator};
use arrow::compute::{SortOptions, cast, sort_to_indices, take};
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};

/// Each value's rank, and the distinct values in ascending order. Where a value is NULL its rank is 0.
#[derive(Debug)]
pub(crate) struct Ranked {
    pub(crate) ranks: Vec<u32>,
    pub(crate) distinct: ArrayRef,
}

/// Ranks `values` by their type's order.
///
/// # Errors
/// An execution error for 2^32 values or more, which Arrow does not sort.
pub(crate) fn rank(values: &ArrayRef) -> Result<Ranked> {
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

/// `take` on a view array keeps the buffers of the whole column alive; these go with the column.
fn compact(distinct: ArrayRef) -> Result<ArrayRef> {
    let plain = match distinct.data_type() {
        DataType::Utf8View => DataType::LargeUtf8,
        DataType::BinaryView => DataType::LargeBinary,
        _ => return Ok(distinct),
    };
    Ok(cast(&cast(&distinct, &plain)?, distinct.data_type())?)
}
