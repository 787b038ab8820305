//! The seam of range minima: engines build indexes, and indexes answer batches of queries.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::column::Column;
use crate::crossings::{Crossings, ListLimits, RangeEnd, RowList, check_inputs, check_length};
use crate::error::EngineError;
use crate::key::{Encoding, Key};
use crate::list_smallest::list_smallest;
use crate::outputs::{Answers, Outputs};
use crate::range_join::{RangeJoinIndex, RangeJoinInput};

/// The index of a column for range-minimum queries. Shared between threads; each answers its own batches.
pub trait RangeIndex<K: Key>: Send + Sync + Debug {
    /// Number of values in the column, NULLs included.
    fn len(&self) -> usize;

    /// Returns whether the column has no values.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how the values become keys: those of [`Answers::values`] are bits that it encodes.
    fn encoding(&self) -> Encoding<K>;

    /// Returns whether [`Answers::positions`] can be requested.
    fn has_positions(&self) -> bool;

    /// Bytes of the index alone: levels, tables, offsets and the bitmaps that skip NULLs.
    fn index_bytes(&self) -> usize;

    /// Bytes of main memory that this object owns: the index, and the copy of the column if there is one. A borrowed
    /// column is not counted, nor is GPU memory.
    fn memory_bytes(&self) -> usize;

    /// Bytes of GPU memory that this object owns, on each of its devices.
    fn device_bytes(&self) -> usize {
        0
    }

    /// Allocates outputs for `queries` ranges, in memory that this index writes fastest. Any other memory works, too.
    fn outputs(&self, queries: usize, values: bool, positions: bool) -> Outputs<K> {
        Outputs::allocated(queries, values, positions)
    }

    /// Answers one batch on the calling thread.
    ///
    /// `left` and `right` are inclusive positions, one of each per query. They are clipped to `[0, len)`; a range with
    /// `left > right` is empty. Batches of some thousand queries are fastest, because the engine interleaves queries to
    /// hide the latency of memory.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] if slices differ in length, [`EngineError::NoPositions`] if positions are requested of
    /// an index built without them; errors of devices.
    fn answer(&self, left: &[i64], right: &[i64], out: Answers<'_, K>) -> Result<(), EngineError>;

    /// Answers one batch whose bounds are in several pairs of slices `(left, right)`, as if these were concatenated. An
    /// engine that copies bounds anyway gathers them without a further copy.
    ///
    /// # Errors
    /// As [`RangeIndex::answer`].
    fn answer_gathered(
        &self,
        parts: &[(&[i64], &[i64])],
        out: Answers<'_, K>,
    ) -> Result<(), EngineError> {
        if let [(left, right)] = parts {
            return self.answer(left, right, out);
        }
        let (left, right): (Vec<_>, Vec<_>) = parts.iter().copied().unzip();
        self.answer(&left.concat(), &right.concat(), out)
    }

    /// Finds the first or the last row of each range whose key is at most a threshold, in time logarithmic in the
    /// column.
    ///
    /// Bounds are those of [`RangeIndex::answer`], and `thresholds` has one key per query
    /// ([`Encoding::encode`](crate::Encoding::encode) of stored bits). In an index of maxima these rows are the ones
    /// whose value is at least the threshold's. A row that is NULL never qualifies, at [`Key::MAX`] every other row
    /// does. Positions need not have been built.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] if slices differ in length; errors of devices.
    fn crossings(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        end: RangeEnd,
        out: Crossings<'_>,
    ) -> Result<(), EngineError>;

    /// Lists the rows of each range whose key is at most a threshold, as [`RangeIndex::crossings`] finds the first of
    /// them. Replaces the contents of `out`.
    ///
    /// Stops at the limits: memory and time are bounded by the number of ranges and `limits.total`, and a further call
    /// continues. This implementation makes one search per row; the CPU's descends the levels once per range.
    ///
    /// # Errors
    /// As [`RangeIndex::crossings`].
    fn list_at_most(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        limits: ListLimits,
        out: &mut RowList,
    ) -> Result<(), EngineError> {
        check_inputs(left, right, thresholds.len())?;
        out.clear();
        for ((left, right), threshold) in left.iter().zip(right).zip(thresholds) {
            let first = out.positions.len();
            let mut rows = out.begin_range(limits);
            if rows.has_room() {
                for_each_at_most(self, *left, *right, *threshold, |at| rows.add(at))?;
            }
            if !out.end_range(first, limits) {
                break;
            }
        }
        Ok(())
    }

    /// Lists the rows with the smallest keys of each range, the smallest first, the leftmost first among equals: at
    /// most `counts[i]` rows of range `i`, fewer where it has fewer that are not NULL. Replaces the contents of `out`.
    ///
    /// Bounds are those of [`RangeIndex::answer`]. In an index of maxima these are the rows with the greatest values.
    /// `k` rows take at most `2k - 1` range minima, however long the range is.
    ///
    /// # Errors
    /// As [`RangeIndex::answer`]; the index needs positions. [`EngineError::Stopped`] soon after `stop` is set.
    fn list_smallest(
        &self,
        left: &[i64],
        right: &[i64],
        counts: &[usize],
        stop: &AtomicBool,
        out: &mut RowList,
    ) -> Result<(), EngineError> {
        let answer = |left: &[i64], right: &[i64]| {
            if stop.load(Ordering::Relaxed) {
                return Err(EngineError::Stopped);
            }
            let mut outputs = self.outputs(left.len(), true, true);
            self.answer(left, right, outputs.answers())?;
            Ok(outputs)
        };
        let column = (self.len(), self.encoding());
        list_smallest(column, &answer, left, right, counts, out)
    }

    /// Counts the rows of each range whose key is at most a threshold, the rows that [`RangeIndex::list_at_most`] would
    /// list.
    ///
    /// # Errors
    /// As [`RangeIndex::crossings`].
    fn count_at_most(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        counts: &mut [i64],
    ) -> Result<(), EngineError> {
        check_inputs(left, right, thresholds.len())?;
        check_length("the slice for counts", left.len(), counts.len())?;
        let bounds = left.iter().zip(right).zip(thresholds);
        for (((left, right), threshold), count) in bounds.zip(counts) {
            *count = 0;
            for_each_at_most(self, *left, *right, *threshold, |_| {
                *count += 1;
                true
            })?;
        }
        Ok(())
    }
}

/// Calls `visit` with each row of a range whose key is at most a threshold, by one search per row, until it returns
/// false.
fn for_each_at_most<K: Key, I: RangeIndex<K> + ?Sized>(
    index: &I,
    left: i64,
    right: i64,
    threshold: K,
    mut visit: impl FnMut(i64) -> bool,
) -> Result<(), EngineError> {
    let mut left = left;
    while left <= right {
        let (mut positions, mut valid) = ([0], [0]);
        let out = Crossings {
            positions: &mut positions,
            valid: &mut valid,
        };
        index.crossings(&[left], &[right], &[threshold], RangeEnd::First, out)?;
        if valid[0] == 0 || !visit(positions[0]) {
            break;
        }
        left = positions[0] + 1;
    }
    Ok(())
}

/// How an index is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuildOptions {
    /// Whether [`Answers::positions`] can be requested: about 0.04 bytes more per value.
    pub positions: bool,
    /// The most threads that build, the calling one included. Small columns are built on one.
    pub threads: usize,
}

impl Default for BuildOptions {
    /// With positions, on one thread.
    fn default() -> Self {
        Self {
            positions: true,
            threads: 1,
        }
    }
}

/// The size of a column, to reserve memory for its index before it is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnSize {
    /// Number of values.
    pub rows: usize,
    /// Bytes per key: 4, 8 or 16.
    pub key_bytes: usize,
    /// Whether there may be NULLs.
    pub nulls: bool,
}

/// Builds indexes on one kind of hardware.
pub trait Engine: Send + Sync + Debug {
    /// Returns a short name, such as `cpu`.
    fn name(&self) -> &'static str;

    /// Builds an index over 32-bit keys.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`], [`EngineError::Thread`], [`EngineError::TooLong`], [`EngineError::ColumnMoved`];
    /// errors of devices.
    fn build_u32(
        &self,
        column: Column<u32>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u32>>, EngineError>;

    /// Builds an index over 64-bit keys.
    ///
    /// # Errors
    /// As [`Engine::build_u32`].
    fn build_u64(
        &self,
        column: Column<u64>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u64>>, EngineError>;

    /// Builds an index over 128-bit keys.
    ///
    /// # Errors
    /// As [`Engine::build_u32`].
    fn build_u128(
        &self,
        column: Column<u128>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u128>>, EngineError>;

    /// Sorts and indexes the build side of a range join, with up to `threads` threads that copy it; `None` if the
    /// engine leaves that to its caller, as by default.
    ///
    /// # Errors
    /// [`EngineError::TooLong`] from 2^32 - 1 rows or groups on; [`EngineError::Lengths`], [`EngineError::Invalid`] and
    /// [`EngineError::Validity`] if parts of the input do not fit each other; [`EngineError::Stopped`]; errors of
    /// devices.
    fn build_range_join(
        &self,
        input: &RangeJoinInput<'_>,
        threads: usize,
    ) -> Result<Option<Arc<dyn RangeJoinIndex>>, EngineError> {
        let _ = (input, threads);
        Ok(None)
    }

    /// Returns an upper bound of the bytes of GPU memory that [`Self::build_range_join`] takes at a time on each
    /// device. Less stays in use: [`RangeJoinIndex::device_bytes`].
    fn range_join_bytes(&self, input: &RangeJoinInput<'_>) -> usize {
        let _ = input;
        0
    }

    /// Copies a wavelet matrix to where the engine answers, with up to `threads` threads; `None` if the CPU answers, as
    /// by default.
    ///
    /// # Errors
    /// Those of devices.
    fn copy_ranks(
        &self,
        levels: RankLevels<'_>,
        threads: usize,
    ) -> Result<Option<Arc<dyn RankIndex>>, EngineError> {
        let _ = (levels, threads);
        Ok(None)
    }

    /// Returns an upper bound of [`RangeIndex::memory_bytes`] for a column of this size.
    fn memory_bytes(&self, size: ColumnSize, options: &BuildOptions) -> usize;
}

/// The levels of a [`WaveletMatrix`](crate::cpu::WaveletMatrix), that of the highest bit of ranks first. The rows of
/// each further one are those of the level before, first those whose bit was 0 there.
#[derive(Debug, Clone, Copy)]
pub struct RankLevels<'a> {
    /// The number of rows.
    pub rows: usize,
    /// As many of each level, one for each 192 rows and one more if these fill it. The first word has the ones of all
    /// blocks before in 32 bits, and then in a byte for each of the others the ones of the block before that word. The
    /// others have the bits of rows.
    pub blocks: &'a [[u64; 4]],
    /// The number of rows of each level whose bit is 0.
    pub zeros: &'a [u32],
}

/// A copy of a wavelet matrix on devices. Ranges are `left[i]..=right[i]`, clipped to the rows; one whose left bound is
/// above its right one is empty.
pub trait RankIndex: Send + Sync + Debug {
    /// Writes how many rows of each range have a rank below `ranks[i]` to `counts[i]`.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] if slices differ in length; those of devices.
    fn count_below(
        &self,
        left: &[i64],
        right: &[i64],
        ranks: &[u32],
        counts: &mut [u32],
    ) -> Result<(), EngineError>;

    /// Writes the rank of each range's row that has `smaller[i]` rows before it, if the range's rows are sorted by
    /// rank, to `ranks[i]`; [`u32::MAX`] if the range has too few rows.
    ///
    /// # Errors
    /// As [`Self::count_below`].
    fn nth_smallest(
        &self,
        left: &[i64],
        right: &[i64],
        smaller: &[u32],
        ranks: &mut [u32],
    ) -> Result<(), EngineError>;

    /// Returns the bytes that it takes of each device's memory.
    fn device_bytes(&self) -> usize;
}
