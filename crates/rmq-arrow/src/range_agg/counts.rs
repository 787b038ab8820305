//! Counts of non-NULL values of ranges, as differences of prefix counts.

use arrow::array::{Array, ArrayRef, Int64Array};
use datafusion_common::Result;

use crate::common::errors::engine_error;
use crate::common::ranges::Ranges;
use crate::common::workers::{STEP, Workers};
use crate::range_agg::accumulate::accumulate;
use crate::sorted::permutation::RowPermutation;
use rmq_engine::cpu::HugePageBuf;

/// Prefix counts: the number of non-NULL values before each position.
#[derive(Debug)]
pub struct Counts(
    /// One count per position, and the total; `None` for a column without NULLs.
    Option<HugePageBuf<u32>>,
);

impl Counts {
    /// Counts the column `chunks`, of fewer than 2^32 rows, which are permuted by `permutation`.
    ///
    /// # Errors
    /// If the memory is not available or the query is cancelled.
    pub fn try_new(
        chunks: &[ArrayRef],
        permutation: &RowPermutation,
        workers: Workers,
    ) -> Result<Self> {
        if chunks.iter().all(|chunk| chunk.logical_null_count() == 0) {
            return Ok(Self(None));
        }
        let mut counts = HugePageBuf::zeroed(permutation.len() + 1).map_err(engine_error)?;
        let flags = |chunk: &ArrayRef| match chunk.logical_nulls() {
            Some(nulls) => nulls.iter().map(u8::from).collect(),
            None => vec![1; chunk.len()],
        };
        let flags = permutation.permute_flags(chunks, flags, workers)?;
        let steps = counts[1..].chunks_mut(STEP).zip(flags.chunks(STEP));
        workers.map(steps.collect(), |(counts, flags): (&mut [u32], &[u8])| {
            for (count, flag) in counts.iter_mut().zip(flags) {
                *count = u32::from(*flag);
            }
            Ok(())
        })?;
        accumulate(&mut counts, u32::wrapping_add, workers)?;
        Ok(Self(Some(counts)))
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, HugePageBuf::bytes)
    }

    /// Estimates the bytes that counting a column takes at its peak.
    pub fn estimate(chunks: &[ArrayRef], permutation: &RowPermutation) -> usize {
        if chunks.iter().all(|chunk| chunk.logical_null_count() == 0) {
            return 0;
        }
        // One byte for each row before and after it is moved.
        (permutation.len() + 1) * (size_of::<u32>() + 2)
    }

    /// The number of non-NULL values of a range within the column.
    pub fn count(&self, (left, right): (i64, i64)) -> i64 {
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
    pub fn first_null(&self, (left, right): (i64, i64)) -> Option<i64> {
        if left > right || self.count((left, right)) == right - left + 1 {
            return None;
        }
        // Binary search: up to the first NULL the counts grow by one per position.
        let (mut low, mut high) = (left, right);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.count((low, middle)) == middle + 1 - low {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(low)
    }

    /// Counts the non-NULL values of each range.
    pub fn answer(&self, ranges: &Ranges) -> Int64Array {
        ranges.iter().map(|range| self.count(range)).collect()
    }
}

/// Converts a position within the column, or its end, to an index.
#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "ranges within a column have no negative positions"
)]
pub fn to_index(position: i64) -> usize {
    position as usize
}
