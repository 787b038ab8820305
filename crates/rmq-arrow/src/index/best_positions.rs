//! The positions of the best values of ranges, as lists: `range_smallest` and `range_largest`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, ListArray};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field};
use datafusion_common::{Result, exec_err, internal_err};

use crate::common::ranges::{Ranges, to_int64};
use rmq_engine::RowList;

/// Ranges, and how many positions of each are wanted.
#[derive(Debug)]
pub struct CountedRanges {
    /// The ranges.
    pub ranges: Ranges,
    /// 0 where the list is NULL.
    pub counts: Vec<usize>,
    /// Where a bound or the number is NULL, and so the list is.
    nulls: Option<NullBuffer>,
}

impl CountedRanges {
    /// Reads the bounds of ranges and the numbers, arrays of the same length, of a call of `function`.
    ///
    /// # Errors
    /// An execution error for a negative number; Arrow's, for arrays that can't be cast to Int64.
    pub fn try_new(
        function: &str,
        left: &ArrayRef,
        right: &ArrayRef,
        counts: &ArrayRef,
    ) -> Result<Self> {
        let of_bounds = NullBuffer::union(
            left.logical_nulls().as_ref(),
            right.logical_nulls().as_ref(),
        );
        let counts = to_int64(counts)?;
        let nulls = NullBuffer::union(of_bounds.as_ref(), counts.nulls());
        let mut numbers = Vec::with_capacity(counts.len());
        for (i, count) in counts.iter().enumerate() {
            let is_null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(i));
            numbers.push(match count {
                Some(negative) if negative < 0 => {
                    return exec_err!(
                        "{function}: k is {negative}, but a number of positions is 0 or more"
                    );
                }
                Some(count) if !is_null => usize::try_from(count).unwrap_or(usize::MAX),
                _ => 0,
            });
        }
        Ok(Self {
            ranges: Ranges::try_new(left, right)?,
            counts: numbers,
            nulls,
        })
    }

    /// The lists of the positions that were found, in the order of the ranges of all parts.
    ///
    /// # Errors
    /// An execution error for 2^31 positions or more.
    pub fn lists(parts: &[Self], found: &RowList) -> Result<ArrayRef> {
        let ends = found.ends.iter().map(|end| i32::try_from(*end).ok());
        let offsets: Option<Vec<i32>> = std::iter::once(Some(0)).chain(ends).collect();
        let Some(offsets) = offsets else {
            return exec_err!(
                "the lists of a batch have {} positions, but a batch has fewer than 2^31: a smaller k is possible, and a \
                 smaller datafusion.execution.batch_size",
                found.positions.len()
            );
        };
        let valid = parts.iter().flat_map(|part| {
            let nulls = part.nulls.as_ref();
            (0..part.counts.len()).map(move |i| nulls.is_none_or(|nulls| nulls.is_valid(i)))
        });
        let nulls: NullBuffer = valid.collect();
        let positions: ArrayRef = Arc::new(Int64Array::from(found.positions.clone()));
        let field = Arc::new(Field::new_list_field(DataType::Int64, true));
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        Ok(Arc::new(ListArray::try_new(
            field,
            offsets,
            positions,
            Some(nulls),
        )?))
    }
}

/// Reads the bounds of ranges and the numbers of positions, the last argument of a call of `function`.
///
/// # Errors
/// As [`CountedRanges::try_new`], and an internal error without that argument.
pub fn counted_ranges(
    function: &str,
    (left, right): (&ArrayRef, &ArrayRef),
    last: &[ArrayRef],
) -> Result<CountedRanges> {
    let [counts] = last else {
        return internal_err!("{function} has no number of positions");
    };
    CountedRanges::try_new(function, left, right, counts)
}
