//! Ranks of keys among the distinct ones, by a sort on all threads.
//!
//! Rows are divided into buckets by keys, whose bounds a sample tells, as a bucket is sorted within the caches and by
//! any thread (a sample sort). The buckets follow one another in the order of their keys, so the ranks of each begin
//! where those of the one before end.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::column::{Column, Validity};
use crate::cpu::threads::in_parallel;
use crate::error::EngineError;
use crate::key::{Encoding, Key};

/// Rows of a bucket: with keys of 64 bits, a megabyte.
const ROWS_PER_BUCKET: usize = 1 << 16;

/// The most buckets, whose numbers have 8 bits.
const MAX_BUCKETS: usize = 256;

/// Keys of the sample for each bucket.
const SAMPLED: usize = 32;

/// Rows per thread below which a further thread does not make the sort faster.
const MIN_PER_THREAD: usize = 1 << 16;

/// The keys of a column's rows.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'a, K> {
    pub(crate) bits: &'a [K],
    pub(crate) encoding: Encoding<K>,
    pub(crate) validity: Option<&'a Validity>,
}

impl<K: Key> Keys<'_, K> {
    fn key(&self, row: usize) -> K {
        self.encoding.encode(self.bits[row])
    }

    fn has_value(&self, row: usize) -> bool {
        self.validity.is_none_or(|validity| validity.is_valid(row))
    }
}

impl<'a, K: Key> From<&'a Column<K>> for Keys<'a, K> {
    fn from(column: &'a Column<K>) -> Self {
        Self {
            bits: column.bits(),
            encoding: column.encoding(),
            validity: column.validity(),
        }
    }
}

/// A key whose rows can be ranked: `u32`, `u64` or `u128`.
pub trait RankKey: Key {
    /// Ranks fewer than 2^32 rows, on up to `threads` threads.
    #[doc(hidden)]
    fn rank(
        keys: Keys<'_, Self>,
        threads: usize,
        stops: &dyn Fn() -> bool,
    ) -> Result<RankedKeys<Self>, EngineError>;
}

/// Compiles the sort in this crate, which is optimized in each profile.
macro_rules! rank_key {
    ($($key:ty)*) => {$(
        impl RankKey for $key {
            fn rank(
                keys: Keys<'_, Self>,
                threads: usize,
                stops: &dyn Fn() -> bool,
            ) -> Result<RankedKeys<Self>, EngineError> {
                rank_keys(keys, threads, stops)
            }
        }
    )*};
}

rank_key!(u32 u64 u128);

/// The rank of each row of a column.
#[derive(Debug)]
pub struct RankedKeys<K> {
    /// The rank of each row; that of a row without a value is the number of distinct keys.
    pub(super) ranks: Vec<u32>,
    /// The distinct keys in ascending order.
    pub(super) distinct: Vec<K>,
    pub(super) has_missing: bool,
}

fn rank_keys<K: Key>(
    keys: Keys<'_, K>,
    threads: usize,
    stops: &dyn Fn() -> bool,
) -> Result<RankedKeys<K>, EngineError> {
    let check = || {
        if stops() {
            Err(EngineError::Stopped)
        } else {
            Ok(())
        }
    };
    let rows = keys.bits.len();
    let threads = threads.min(rows / MIN_PER_THREAD).max(1);
    check()?;
    let mut sorted: Vec<(K, u32)> = memory(rows)?;
    let ends = fill_buckets(keys, threads, &mut sorted)?;
    sorted.truncate(ends.last().copied().unwrap_or(0));
    check()?;
    let mut buckets: Vec<&mut [(K, u32)]> = vec![];
    let (mut rest, mut start) = (sorted.as_mut_slice(), 0);
    for end in ends {
        let (bucket, after) = rest.split_at_mut(end - start);
        buckets.push(bucket);
        (rest, start) = (after, end);
    }
    let queue = Mutex::new(buckets.iter_mut().enumerate());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let counted = in_parallel(0..threads, |_| {
        let mut counted = vec![];
        while let Some((number, bucket)) = next() {
            bucket.sort_unstable_by_key(|(key, _)| *key);
            counted.push((number, bucket.chunk_by(|a, b| a.0 == b.0).count()));
        }
        counted
    })?;
    check()?;
    let mut firsts = vec![0; buckets.len() + 1];
    for (number, distinct) in counted.into_iter().flatten() {
        firsts[number + 1] = distinct;
    }
    for number in 0..buckets.len() {
        firsts[number + 1] += firsts[number];
    }
    let mut distinct: Vec<K> = memory(firsts[buckets.len()])?;
    let none = distinct.len() as u32;
    let mut ranks: Vec<AtomicU32> = vec![];
    reserve(&mut ranks, rows)?;
    ranks.resize_with(rows, || AtomicU32::new(none));
    let mut work = vec![];
    let mut rest = distinct.as_mut_slice();
    for (bucket, ends) in buckets.iter().zip(firsts.windows(2)) {
        let (keys, after) = rest.split_at_mut(ends[1] - ends[0]);
        work.push((bucket, ends[0], keys));
        rest = after;
    }
    let queue = Mutex::new(work.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    in_parallel(0..threads, |_| {
        while let Some((bucket, first, keys)) = next() {
            let equal = bucket.chunk_by(|a, b| a.0 == b.0);
            for ((rows, rank), key) in equal.zip(first as u32..).zip(keys) {
                *key = rows[0].0;
                for (_, row) in rows {
                    // Rows are anywhere, so threads write between each other.
                    ranks[*row as usize].store(rank, Ordering::Relaxed);
                }
            }
        }
    })?;
    Ok(RankedKeys {
        has_missing: sorted.len() < rows,
        ranks: ranks.into_iter().map(AtomicU32::into_inner).collect(),
        distinct,
    })
}

/// Writes the rows that have a value with their keys to `sorted`, bucket by bucket. Returns where each bucket ends.
fn fill_buckets<K: Key>(
    keys: Keys<'_, K>,
    threads: usize,
    sorted: &mut [(K, u32)],
) -> Result<Vec<usize>, EngineError> {
    let bounds = bounds(keys);
    let rows = keys.bits.len();
    let share = rows.div_ceil(threads).max(1);
    let parts = || {
        let firsts = (0..rows).step_by(share);
        firsts.map(|first| first..(first + share).min(rows))
    };
    let numbered = in_parallel(parts(), |rows| {
        let mut counts = vec![0; bounds.len() + 1];
        let bucket = |row| {
            let key = keys.key(row);
            let bucket = bounds.partition_point(|bound| *bound <= key);
            counts[bucket] += usize::from(keys.has_value(row));
            // At most `MAX_BUCKETS`.
            bucket as u8
        };
        let numbers: Vec<u8> = rows.map(bucket).collect();
        (numbers, counts)
    })?;
    // The rows of a bucket that one part has follow those of the parts before it.
    let mut outputs: Vec<Vec<std::slice::IterMut<(K, u32)>>> = vec![];
    outputs.resize_with(numbered.len(), Vec::new);
    let (mut rest, mut end, mut ends) = (sorted, 0, vec![]);
    for bucket in 0..=bounds.len() {
        for ((_, counts), outputs) in numbered.iter().zip(&mut outputs) {
            let (output, after) = rest.split_at_mut(counts[bucket]);
            outputs.push(output.iter_mut());
            rest = after;
            end += counts[bucket];
        }
        ends.push(end);
    }
    let work = parts().zip(&numbered).zip(outputs);
    in_parallel(work, |((rows, (numbers, _)), mut outputs)| {
        for (row, bucket) in rows.zip(numbers) {
            if keys.has_value(row)
                && let Some(output) = outputs[usize::from(*bucket)].next()
            {
                *output = (keys.key(row), row as u32);
            }
        }
    })?;
    Ok(ends)
}

/// The least key of each bucket but the first.
fn bounds<K: Key>(keys: Keys<'_, K>) -> Vec<K> {
    let rows = keys.bits.len();
    let buckets = (rows / ROWS_PER_BUCKET).clamp(1, MAX_BUCKETS);
    let sampled = if buckets == 1 { 0 } else { SAMPLED * buckets };
    // Spread by multiples of the golden ratio, as rows at regular distances may have a pattern in common.
    let spread = |i: u64| u128::from(i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let row = |i: usize| ((spread(i as u64) * rows as u128) >> 64) as usize;
    let mut sample: Vec<K> = (0..sampled).map(|i| keys.key(row(i))).collect();
    sample.sort_unstable();
    let mut bounds: Vec<K> = sample.into_iter().step_by(SAMPLED).skip(1).collect();
    bounds.dedup();
    bounds
}

/// This many items of the default value.
fn memory<T: Clone + Default>(len: usize) -> Result<Vec<T>, EngineError> {
    let mut items = vec![];
    reserve(&mut items, len)?;
    items.resize(len, T::default());
    Ok(items)
}

fn reserve<T>(items: &mut Vec<T>, len: usize) -> Result<(), EngineError> {
    items
        .try_reserve_exact(len)
        .map_err(|_| EngineError::OutOfMemory {
            bytes: len.saturating_mul(size_of::<T>()),
        })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fastrand::Rng;

    use super::*;
    use crate::column::Validity;
    use crate::key::Encoding;

    #[test]
    fn ranks_are_those_of_sorted_values() {
        let mut rng = Rng::with_seed(4);
        for case in 0..40 {
            let rows = [0, 1, 2, rng.usize(..1000), 200_000 + rng.usize(..100_000)][case % 5];
            let values = [1, 2, 1000, u64::MAX][rng.usize(..4)];
            let bits: Vec<u64> = (0..rows).map(|_| rng.u64(..values)).collect();
            let valid: Vec<u8> = (0..=rows.div_ceil(8)).map(|_| rng.u8(..)).collect();
            let with_missing = rng.bool();
            let encoding = [Encoding::unsigned(), Encoding::float()][rng.usize(..2)];
            let validity = Validity::new(Arc::new(valid), 3);
            let mut column = Column::new(Arc::new(bits.clone()), encoding);
            if with_missing {
                column = column.with_validity(validity.clone()).expect("length");
            }
            let key = |row: usize| {
                let has_value = !with_missing || validity.is_valid(row);
                has_value.then(|| encoding.encode(bits[row]))
            };
            let mut distinct: Vec<u64> = (0..rows).filter_map(key).collect();
            let has_missing = distinct.len() < rows;
            distinct.sort_unstable();
            distinct.dedup();
            let rank = |row| match key(row) {
                Some(key) => distinct.partition_point(|known| *known < key) as u32,
                None => distinct.len() as u32,
            };
            let ranks: Vec<u32> = (0..rows).map(rank).collect();
            for threads in [1, 3] {
                let found = rank_keys(Keys::from(&column), threads, &|| false).expect("memory");
                let what = format!("{rows} rows below {values}, {threads} threads");
                assert!(found.ranks == ranks, "{what}");
                assert!(found.distinct == distinct, "{what}");
                assert_eq!(found.has_missing, has_missing, "{what}");
            }
        }
    }
}
