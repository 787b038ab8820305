//! Order statistics of ranges of a column of keys.

use crate::column::Column;
use crate::cpu::wavelet_matrix::distinct::previous_rows;
use crate::cpu::wavelet_matrix::matrix::WaveletMatrix;
use crate::cpu::wavelet_matrix::ranked_rows::{RankedRows, clip, in_batches};
use crate::cpu::wavelet_matrix::ranks::{Keys, RankKey, RankedKeys};
use crate::crossings::check_length;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::key::{Encoding, Key};

/// Counts of values below a threshold, and n-th smallest values, of ranges of one column. NULLs are no values.
///
/// Ranges are `left[i]..=right[i]`, clipped to the rows; one whose left bound is above its right one is empty. Each
/// takes as many steps as the number of distinct values has bits.
///
/// ```
/// use std::sync::Arc;
///
/// use rmq_engine::cpu::KeyStatistics;
/// use rmq_engine::{Column, Encoding};
///
/// let column = Column::new(Arc::new(vec![30_u32, 10, 20, 10]), Encoding::unsigned());
/// let statistics = KeyStatistics::build(&column, 1, &|| false)?;
/// let (mut below, mut second, mut valid) = ([0; 2], [0; 2], [0]);
/// statistics.count_below(&[0, 2], &[3, 9], &[20, 20], &mut below)?;
/// statistics.nth_smallest(&[0, 3], &[3, 9], &[1, 1], &mut second, &mut valid)?;
/// assert_eq!((below, second[0], valid), ([2, 1], 10, [0b01]));
/// # Ok::<(), rmq_engine::EngineError>(())
/// ```
#[derive(Debug)]
pub struct KeyStatistics<K> {
    ranks: RankedRows,
    /// The key of each rank.
    distinct: Vec<K>,
    encoding: Encoding<K>,
    has_missing: bool,
}

impl<K: RankKey> KeyStatistics<K> {
    /// Builds the statistics on up to `threads` threads. While they are built, they take some four times the bytes of
    /// the column besides.
    ///
    /// # Errors
    /// [`EngineError::TooLong`] for 2^32 rows or more, [`EngineError::OutOfMemory`], [`EngineError::Thread`], and
    /// [`EngineError::Stopped`] once `stops` returns true, which is asked between steps on the calling thread.
    pub fn build(
        column: &Column<K>,
        threads: usize,
        stops: &dyn Fn() -> bool,
    ) -> Result<Self, EngineError> {
        Self::of_keys(column.into(), threads, stops)
    }

    pub(crate) fn of_keys(
        keys: Keys<'_, K>,
        threads: usize,
        stops: &dyn Fn() -> bool,
    ) -> Result<Self, EngineError> {
        check_rows(keys)?;
        let RankedKeys {
            ranks,
            distinct,
            has_missing,
        } = K::rank(keys, threads, stops)?;
        let ranks = WaveletMatrix::build(&ranks, distinct.len() as u32 + 1, threads, stops)?;
        Ok(Self {
            ranks: RankedRows::new(ranks),
            distinct,
            encoding: keys.encoding,
            has_missing,
        })
    }

    /// Has the devices of an engine answer, if it has any. The CPU answers small batches, and all once devices fail.
    ///
    /// # Errors
    /// Those of [`Engine::copy_ranks`].
    pub fn copy_to(&mut self, engine: &dyn Engine, threads: usize) -> Result<(), EngineError> {
        self.ranks.copy_to(engine, threads)
    }

    /// Bytes that it takes of each device's memory.
    #[must_use]
    pub fn device_bytes(&self) -> usize {
        self.ranks.device_bytes()
    }

    /// Number of rows, NULLs included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranks.matrix.len()
    }

    /// Returns whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranks.matrix.is_empty()
    }

    /// Bytes of the index, which does not refer to the column.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.ranks.matrix.memory_bytes() + self.distinct.capacity() * size_of::<K>()
    }

    /// Writes the number of values of each range to `counts`.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] if slices differ in length.
    pub fn count(
        &self,
        left: &[i64],
        right: &[i64],
        counts: &mut [i64],
    ) -> Result<(), EngineError> {
        if self.has_missing {
            let all = self.distinct.len() as u32;
            return self.count_ranks(left, right, counts, |_| all);
        }
        let rows = self.len();
        check_length("the slice for answers", left.len(), counts.len())?;
        in_batches(rows, left, right, |first, starts, ends| {
            let ranges = starts.iter().zip(ends);
            for (count, (start, end)) in counts[first..].iter_mut().zip(ranges) {
                // Fewer than 2^32.
                *count = end.saturating_sub(*start) as i64;
            }
            Ok(())
        })
    }

    /// Writes how many values of each range are below `thresholds[i]`, given as stored bits, to `counts[i]`.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn count_below(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        counts: &mut [i64],
    ) -> Result<(), EngineError> {
        check_length("the slice of thresholds", left.len(), thresholds.len())?;
        self.count_ranks(left, right, counts, |i| {
            let threshold = self.encoding.encode(thresholds[i]);
            self.distinct.partition_point(|key| *key < threshold) as u32
        })
    }

    /// Writes how many values of each range have a key that is at most `keys[i]` to `counts[i]`. Keys are those of the
    /// column's encoding.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn count_at_most(
        &self,
        left: &[i64],
        right: &[i64],
        keys: &[K],
        counts: &mut [i64],
    ) -> Result<(), EngineError> {
        check_length("the slice of keys", left.len(), keys.len())?;
        self.count_ranks(left, right, counts, |i| {
            self.distinct.partition_point(|key| *key <= keys[i]) as u32
        })
    }

    /// Counts the values of each range whose rank is below that of the range with this number.
    fn count_ranks(
        &self,
        left: &[i64],
        right: &[i64],
        counts: &mut [i64],
        rank: impl Fn(usize) -> u32,
    ) -> Result<(), EngineError> {
        self.ranks.count_below(left, right, |i, _| rank(i), counts)
    }

    /// Writes the stored bits of the value of each range that has `smaller[i]` values before it, if the values are
    /// sorted, to `values[i]`: 0 for the smallest. Sets bit `i` of `valid` where there is such a value, and clears it
    /// where there is none.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn nth_smallest(
        &self,
        left: &[i64],
        right: &[i64],
        smaller: &[i64],
        values: &mut [K],
        valid: &mut [u64],
    ) -> Result<(), EngineError> {
        check_length("the slice of ranks", left.len(), smaller.len())?;
        check_length("the slice for answers", left.len(), values.len())?;
        check_length("the bitmap", left.len().div_ceil(64), valid.len())?;
        valid.fill(0);
        // No range has as many rows as the greatest of these.
        let target = |i: usize| u32::try_from(smaller[i]).unwrap_or(u32::MAX);
        self.ranks.nth_smallest(left, right, target, |i, rank| {
            self.write_key(rank, i, values, valid);
        })
    }

    /// As [`Self::nth_smallest`], of the values of several ranges together: those with the numbers
    /// `firsts[i]..firsts[i + 1]`. A row that is in several of them counts as often.
    ///
    /// # Errors
    /// As [`Self::count`]. [`EngineError::Invalid`] if `firsts` does not ascend from 0 to the number of ranges.
    pub fn nth_smallest_of_groups(
        &self,
        firsts: &[usize],
        left: &[i64],
        right: &[i64],
        smaller: &[u64],
        values: &mut [K],
        valid: &mut [u64],
    ) -> Result<(), EngineError> {
        check_length("the slice for answers", smaller.len(), values.len())?;
        check_length("the bitmap", smaller.len().div_ceil(64), valid.len())?;
        check_length("the slice of right bounds", left.len(), right.len())?;
        valid.fill(0);
        let rows = self.len();
        let starts: Vec<usize> = left.iter().map(|left| clip(*left, rows)).collect();
        let ends = right
            .iter()
            .map(|right| clip(right.saturating_add(1), rows));
        let ends: Vec<usize> = ends.collect();
        let mut ranks = vec![0; smaller.len()];
        let matrix = &self.ranks.matrix;
        matrix.nth_smallest_of_groups(firsts, &starts, &ends, smaller, &mut ranks)?;
        for (i, rank) in ranks.iter().enumerate() {
            self.write_key(*rank, i, values, valid);
        }
        Ok(())
    }

    /// Writes the value of a rank as that of query `i`, unless no value has it: NULLs have the rank above all.
    fn write_key(&self, rank: u32, i: usize, values: &mut [K], valid: &mut [u64]) {
        if let Some(key) = self.distinct.get(rank as usize) {
            values[i] = self.encoding.decode(*key);
            valid[i / 64] |= 1 << (i % 64);
        }
    }
}

/// Numbers of distinct values of ranges of one column. NULLs are no values.
///
/// Values are distinct if their bits are: of floats -0.0 and 0.0, and NaNs of different bits. Ranges are those of
/// [`KeyStatistics`], and an answer takes as many steps as the number of rows has bits.
///
/// ```
/// use std::sync::Arc;
///
/// use rmq_engine::cpu::DistinctCounts;
/// use rmq_engine::{Column, Encoding};
///
/// let column = Column::new(Arc::new(vec![30_u32, 10, 20, 10]), Encoding::unsigned());
/// let statistics = DistinctCounts::build(&column, 1, &|| false)?;
/// let mut distinct = [0; 3];
/// statistics.count(&[0, 1, 4], &[3, 1, 9], &mut distinct)?;
/// assert_eq!(distinct, [3, 1, 0]);
/// # Ok::<(), rmq_engine::EngineError>(())
/// ```
#[derive(Debug)]
pub struct DistinctCounts {
    previous: RankedRows,
}

impl DistinctCounts {
    /// Builds the counts on up to `threads` threads. While they are built, they take some four times the bytes of the
    /// column besides.
    ///
    /// # Errors
    /// As [`KeyStatistics::build`].
    pub fn build<K: RankKey>(
        column: &Column<K>,
        threads: usize,
        stops: &dyn Fn() -> bool,
    ) -> Result<Self, EngineError> {
        Self::of_keys(Keys::from(column), threads, stops)
    }

    pub(crate) fn of_keys<K: RankKey>(
        keys: Keys<'_, K>,
        threads: usize,
        stops: &dyn Fn() -> bool,
    ) -> Result<Self, EngineError> {
        let rows = check_rows(keys)?;
        let RankedKeys {
            ranks, distinct, ..
        } = K::rank(keys, threads, stops)?;
        let none = distinct.len() as u32;
        let mut previous = previous_rows(&ranks, none + 1);
        for (previous, rank) in previous.iter_mut().zip(&ranks) {
            if *rank == none {
                // In no range.
                *previous = rows;
            }
        }
        drop((ranks, distinct));
        let previous = WaveletMatrix::build(&previous, rows.saturating_add(1), threads, stops)?;
        Ok(Self {
            previous: RankedRows::new(previous),
        })
    }

    /// As [`KeyStatistics::copy_to`].
    ///
    /// # Errors
    /// Those of [`Engine::copy_ranks`].
    pub fn copy_to(&mut self, engine: &dyn Engine, threads: usize) -> Result<(), EngineError> {
        self.previous.copy_to(engine, threads)
    }

    /// Bytes that it takes of each device's memory.
    #[must_use]
    pub fn device_bytes(&self) -> usize {
        self.previous.device_bytes()
    }

    /// Number of rows, NULLs included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.previous.matrix.len()
    }

    /// Returns whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.previous.matrix.is_empty()
    }

    /// Bytes of the index, which does not refer to the column.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.previous.matrix.memory_bytes()
    }

    /// Writes how many distinct values each range has to `counts`.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] if slices differ in length.
    pub fn count(
        &self,
        left: &[i64],
        right: &[i64],
        counts: &mut [i64],
    ) -> Result<(), EngineError> {
        // At most the number of rows, which is below 2^32, and then the range is empty.
        let first = |_, start: usize| (start as u32).saturating_add(1);
        self.previous.count_below(left, right, first, counts)
    }
}

/// The number of rows of a column, which has fewer than 2^32.
fn check_rows<K: Key>(keys: Keys<'_, K>) -> Result<u32, EngineError> {
    let rows = keys.bits.len();
    u32::try_from(rows).map_err(|_| EngineError::TooLong { rows })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fastrand::Rng;

    use super::*;
    use crate::column::Validity;

    #[test]
    fn answers_are_those_of_sorted_values() {
        let mut rng = Rng::with_seed(5);
        for case in 0..200 {
            let rows = [0, 1, 2, rng.usize(..300), rng.usize(..3000)][case % 5];
            let bits: Vec<u32> = (0..rows).map(|_| rng.u32(..50).wrapping_sub(25)).collect();
            let valid: Vec<u8> = (0..=rows.div_ceil(8)).map(|_| rng.u8(..)).collect();
            let mut column = Column::new(Arc::new(bits), Encoding::signed());
            if rng.bool() {
                let validity = Validity::new(Arc::new(valid), 5);
                column = column.with_validity(validity).expect("length");
            }
            let threads = rng.usize(1..4);
            let statistics = KeyStatistics::build(&column, threads, &|| false).expect("memory");
            let distinct = DistinctCounts::build(&column, threads, &|| false).expect("memory");
            let queries = rng.usize(..2500);
            let mut bound = |_| match rng.u32(..20) {
                0 => i64::MIN,
                1 => i64::MAX,
                _ => rng.i64(-3..rows as i64 + 3),
            };
            let left: Vec<i64> = (0..queries).map(&mut bound).collect();
            let right: Vec<i64> = (0..queries).map(&mut bound).collect();
            let thresholds: Vec<u32> = left
                .iter()
                .map(|_| rng.u32(..60).wrapping_sub(30))
                .collect();
            let smaller: Vec<i64> = left.iter().map(|_| rng.i64(-1..40)).collect();
            let (mut counts, mut below) = (vec![7; queries], vec![7; queries]);
            let mut of_distinct = vec![7; queries];
            let (mut nth, mut valid) = (vec![7; queries], vec![7; queries.div_ceil(64)]);
            statistics
                .count(&left, &right, &mut counts)
                .expect("lengths");
            statistics
                .count_below(&left, &right, &thresholds, &mut below)
                .expect("lengths");
            statistics
                .nth_smallest(&left, &right, &smaller, &mut nth, &mut valid)
                .expect("lengths");
            let keys: Vec<u32> = thresholds
                .iter()
                .map(|bits| column.encoding().encode(*bits))
                .collect();
            let mut at_most = vec![7; queries];
            statistics
                .count_at_most(&left, &right, &keys, &mut at_most)
                .expect("lengths");
            distinct
                .count(&left, &right, &mut of_distinct)
                .expect("lengths");
            for i in 0..queries {
                let has_value = |row: &usize| column.validity().is_none_or(|v| v.is_valid(*row));
                let within = |row: &usize| (left[i]..=right[i]).contains(&(*row as i64));
                let rows = (0..rows).filter(within).filter(has_value);
                let mut values: Vec<i32> =
                    rows.map(|row| column.bits()[row].cast_signed()).collect();
                values.sort_unstable();
                let what = format!(
                    "{} to {} of {rows:?}",
                    left[i],
                    right[i],
                    rows = column.len()
                );
                assert_eq!(counts[i], values.len() as i64, "{what}");
                let threshold = thresholds[i].cast_signed();
                let expected = values.iter().filter(|value| **value < threshold).count();
                assert_eq!(below[i], expected as i64, "{what}");
                let expected = values.iter().filter(|value| **value <= threshold).count();
                assert_eq!(at_most[i], expected as i64, "{what}");
                let found = (valid[i / 64] >> (i % 64) & 1 == 1).then_some(nth[i].cast_signed());
                let expected = usize::try_from(smaller[i])
                    .ok()
                    .and_then(|n| values.get(n).copied());
                assert_eq!(found, expected, "{what}, {}", smaller[i]);
                values.dedup();
                assert_eq!(of_distinct[i], values.len() as i64, "{what}");
            }
        }
    }

    #[test]
    fn a_build_stops_and_slices_of_other_lengths_are_errors() {
        let column = Column::new(Arc::new(vec![1_u64, 2]), Encoding::unsigned());
        let stopped = KeyStatistics::build(&column, 1, &|| true).err();
        assert_eq!(stopped, Some(EngineError::Stopped));
        let stopped = DistinctCounts::build(&column, 1, &|| true).err();
        assert_eq!(stopped, Some(EngineError::Stopped));
        let statistics = KeyStatistics::build(&column, 1, &|| false).expect("memory");
        assert!(statistics.count(&[0], &[], &mut [0]).is_err());
        assert!(statistics.count(&[0], &[1], &mut []).is_err());
        assert!(statistics.count_below(&[0], &[1], &[], &mut [0]).is_err());
        let nth = |smaller: &[i64], values: &mut [u64], valid: &mut [u64]| {
            statistics.nth_smallest(&[0], &[1], smaller, values, valid)
        };
        assert!(nth(&[], &mut [0], &mut [0]).is_err());
        assert!(nth(&[0], &mut [], &mut [0]).is_err());
        assert!(nth(&[0], &mut [0], &mut []).is_err());
    }
}
