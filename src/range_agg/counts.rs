//! Counts of non-NULL values of ranges, as differences of prefix counts.

use arrow::array::{Array, ArrayRef, Int64Array};
use arrow::buffer::NullBuffer;
use datafusion::common::Result;

use crate::common::errors::engine_error;
use crate::common::ranges::Ranges;
use crate::common::workers::Workers;
use crate::range_agg::accumulate::accumulate;
use crate::sorted::permutation::{RowPermutation, steps};
use rmq_engine::cpu::{HugePageBuf, SharedSlots};

/// Prefix counts: the number of non-NULL values before each position.
#[derive(Debug)]
pub(crate) struct Counts(
    /// One count per position, and the total; `None` for a column without NULLs.
    Option<HugePageBuf<u32>>,
);

impl Counts {
    /// Counts the column `chunks`, of fewer than 2^32 rows, which are permuted by `permutation`.
    ///
    /// # Errors
    /// If the memory is not available or the query is cancelled.
    pub(crate) fn of(
        chunks: &[ArrayRef],
        permutation: &RowPermutation,
        workers: Workers,
    ) -> Result<Self> {
        if chunks.iter().all(|chunk| chunk.logical_null_count() == 0) {
            return Ok(Self(None));
        }
        let mut counts = HugePageBuf::zeroed(permutation.len() + 1).map_err(engine_error)?;
        let slots = SharedSlots::new(&mut counts);
        let nulls: Vec<Option<NullBuffer>> = workers.map(
            chunks.iter().collect(),
            |c: &ArrayRef| Ok(c.logical_nulls()),
        )?;
        let steps = steps(chunks.iter().map(Array::len));
        workers.map(steps, |(chunk, rows, first)| {
            let nulls = nulls[chunk].as_ref();
            for (row, position) in rows.clone().zip(permutation.of_rows(first, rows.len())) {
                if let Some(position) = position {
                    let valid = nulls.is_none_or(|nulls| nulls.is_valid(row));
                    slots.store(position + 1, u32::from(valid));
                }
            }
            Ok(())
        })?;
        accumulate(&mut counts, u32::wrapping_add, workers)?;
        Ok(Self(Some(counts)))
    }

    /// Estimates the bytes that the counts of a column take.
    pub(crate) fn estimate(chunks: &[ArrayRef], permutation: &RowPermutation) -> usize {
        if chunks.iter().all(|chunk| chunk.logical_null_count() == 0) {
            return 0;
        }
        (permutation.len() + 1) * size_of::<u32>()
    }

    /// The number of non-NULL values of a range within the column.
    pub(crate) fn count(&self, (left, right): (i64, i64)) -> i64 {
        if left > right {
            return 0;
        }
        match &self.0 {
            None => right - left + 1,
            Some(counts) => {
                i64::from(counts[to_index(right + 1)]) - i64::from(counts[to_index(left)])
            }
        }
    }

    /// The first position with a NULL in a range within the column.
    pub(crate) fn first_null(&self, (left, right): (i64, i64)) -> Option<i64> {
        let counts = self.0.as_ref()?;
        if left > right || self.count((left, right)) == right - left + 1 {
            return None;
        }
        // Binary search: up to the first NULL the counts grow by one per position.
        let (mut low, mut high) = (to_index(left), to_index(right));
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

    /// Counts the non-NULL values of each range.
    pub(crate) fn answer(&self, ranges: &Ranges) -> Int64Array {
        ranges.iter().map(|range| self.count(range)).collect()
    }
}

/// Converts a position within the column, or its end, to an index.
#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "ranges within a column have no negative positions"
)]
pub(crate) fn to_index(position: i64) -> usize {
    position as usize
}
