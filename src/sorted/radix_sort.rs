//! A stable parallel radix sort of keys within groups.
//!
//! 1. Groups that ascend already are found and left alone.
//! 2. Small groups are dealt to threads, each of which sorts its groups by itself, least significant digit first.
//! 3. A large group is divided by all threads into buckets by the most significant digit: each thread counts the digits of its part of the
//!    rows, then moves them to where the rows of the parts before end. The buckets, which fit a core's cache, are then small groups.
//!
//! For n keys that differ in b bits this takes O(n b), and a copy of the keys and two row numbers per key beside them.

use std::ops::Range;

use datafusion::common::Result;

use crate::common::errors::engine_error;
use crate::common::workers::{STEP, Workers};
use crate::sorted::bucket_sort::SortContext;
use crate::sorted::id_table::number;
use rmq_engine::Encoding;
use rmq_engine::cpu::{HugePageBuf, SearchKey, SharedSlots, SlotValue};

/// Groups with more rows are sorted by all threads together.
const LARGE: usize = 1 << 18;

/// The digits of a bucket's keys have at most this many bits, so that their counts stay in the first-level cache.
const DIGIT_BITS: u32 = 11;

/// The digit that divides a large group has at most this many bits, so that the ends of its buckets stay in the second-level cache.
const BUCKET_BITS: u32 = 12;

/// The rows of a bucket that the digit is chosen for, as a power of two.
const BUCKET_ROWS: u32 = 15;

/// Groups of fewer rows are sorted by comparisons.
const MIN_RADIX: usize = 1024;

/// A key of which digits can be extracted.
pub(crate) trait RadixKey: SearchKey + SlotValue {
    /// The number of bits up to the highest one that is set.
    fn bit_length(self) -> u32;

    /// The bits from `shift` on, cut to the width of `usize`.
    fn bits_from(self, shift: u32) -> usize;

    /// The bits in which two keys differ.
    fn difference(self, other: Self) -> Self;

    /// `self - least`, for a key that is not below `least`.
    fn above(self, least: Self) -> Self;
}

macro_rules! radix_key {
    ($($key:ty),*) => {$(
        impl RadixKey for $key {
            #[inline]
            fn bit_length(self) -> u32 {
                <$key>::BITS - self.leading_zeros()
            }

            #[inline]
            #[allow(clippy::cast_possible_truncation, reason = "cut on purpose")]
            fn bits_from(self, shift: u32) -> usize {
                (self >> shift) as usize
            }

            #[inline]
            fn difference(self, other: Self) -> Self {
                self ^ other
            }

            #[inline]
            fn above(self, least: Self) -> Self {
                self.wrapping_sub(least)
            }
        }
    )*};
}

radix_key!(u32, u64, u128);

/// Sorts keys, given as the bits of a column, within each group; `starts` has the first position of each group, and the end of the last.
/// Returns the position that each key moves to, or `None` if all groups ascend already. Memory is reserved with the context and stays
/// reserved.
///
/// # Errors
/// The context's errors: memory is exhausted, or the work is cancelled.
pub(crate) fn sort_groups<K: RadixKey>(
    keys: &mut [K],
    encoding: Encoding<K>,
    starts: &[usize],
    context: SortContext,
) -> Result<Option<HugePageBuf<u32>>> {
    let SortContext { memory, workers } = context;
    let unsorted = unsorted_groups(keys, encoding, starts, workers)?;
    if unsorted.is_empty() {
        return Ok(None);
    }
    let rows = keys.len();
    memory.try_grow(rows * size_of::<u32>())?;
    let mut moves = HugePageBuf::zeroed(rows).map_err(engine_error)?;
    let large = |group: &usize| starts[group + 1] - starts[*group] > LARGE;
    {
        // Consecutive groups of about a step, and each large one by itself.
        let mut tasks = vec![];
        let (mut rest_keys, mut rest_moves) = (&mut *keys, &mut moves[..]);
        let (mut first, groups) = (0, starts.len() - 1);
        while first < groups {
            let mut end = first + 1;
            while end < groups && starts[end + 1] - starts[first] <= LARGE {
                end += 1;
            }
            let len = starts[end] - starts[first];
            let (task_keys, after) = std::mem::take(&mut rest_keys).split_at_mut(len);
            rest_keys = after;
            let (task_moves, after) = std::mem::take(&mut rest_moves).split_at_mut(len);
            rest_moves = after;
            tasks.push((first..end, task_keys, task_moves));
            first = end;
        }
        workers.map(
            tasks,
            |(groups, keys, moves): (Range<usize>, &mut [K], &mut [u32])| {
                let base = starts[groups.start];
                let mut scratch = Scratch::default();
                for group in groups {
                    let range = starts[group] - base..starts[group + 1] - base;
                    let to = &mut moves[range.clone()];
                    let is_unsorted = unsorted.binary_search(&group).is_ok();
                    if is_unsorted && large(&group) {
                        continue;
                    }
                    if is_unsorted {
                        scratch.sort_group(&mut keys[range], encoding, to, starts[group]);
                    } else {
                        for (to, position) in to.iter_mut().zip(starts[group]..) {
                            *to = number(position);
                        }
                    }
                }
                Ok(())
            },
        )?;
    }
    for group in unsorted.iter().filter(|group| large(group)) {
        let range = starts[*group]..starts[group + 1];
        sort_large(
            &mut keys[range.clone()],
            encoding,
            &mut moves[range.clone()],
            range.start,
            context,
        )?;
    }
    Ok(Some(moves))
}

/// The groups, in order, of which the keys do not ascend.
pub(crate) fn unsorted_groups<K: RadixKey>(
    keys: &[K],
    encoding: Encoding<K>,
    starts: &[usize],
    workers: Workers,
) -> Result<Vec<usize>> {
    let steps = (0..keys.len()).step_by(4 * STEP).collect();
    let unsorted = workers.map(steps, |from: usize| {
        let end = keys.len().min(from + 4 * STEP);
        let mut unsorted = vec![];
        let mut group = starts.partition_point(|start| *start <= from) - 1;
        let mut position = from;
        while position < end {
            let stop = starts[group + 1];
            // The next key, too, if it is of the same group.
            if !K::is_sorted(&keys[position..stop.min(end + 1)], encoding) {
                unsorted.push(group);
            }
            position = stop;
            group += 1;
        }
        Ok(unsorted)
    })?;
    let mut unsorted: Vec<usize> = unsorted.into_iter().flatten().collect();
    unsorted.dedup();
    Ok(unsorted)
}

/// Sorts one group with all threads. `moves` gets the position, from `first` on, that each key moves to.
fn sort_large<K: RadixKey>(
    keys: &mut [K],
    encoding: Encoding<K>,
    moves: &mut [u32],
    first: usize,
    context: SortContext,
) -> Result<()> {
    let SortContext { memory, workers } = context;
    let len = keys.len();
    let scratch_memory = memory.new_empty();
    scratch_memory.try_grow(len * (size_of::<K>() + size_of::<u32>()))?;
    let mut order = HugePageBuf::zeroed(len).map_err(engine_error)?;
    let mut scratch_keys = HugePageBuf::zeroed(len).map_err(engine_error)?;
    let steps = keys
        .chunks_mut(STEP)
        .zip(order.chunks_mut(STEP))
        .enumerate();
    workers.map(steps.collect(), |(step, (keys, order))| {
        for (i, (key, row)) in keys.iter_mut().zip(order.iter_mut()).enumerate() {
            *key = encoding.encode(*key);
            *row = number(step * STEP + i);
        }
        Ok(())
    })?;
    let pairs = Pairs {
        keys: &mut *keys,
        rows: &mut order,
    };
    let scratch = Pairs {
        keys: &mut scratch_keys,
        rows: &mut *moves,
    };
    sort_by_buckets(pairs, scratch, workers)?;
    drop(scratch_keys);
    let slots = SharedSlots::new(moves);
    let steps = keys.chunks_mut(STEP).zip(order.chunks(STEP)).enumerate();
    workers.map(steps.collect(), |(step, (keys, order))| {
        for (i, (key, row)) in keys.iter_mut().zip(order).enumerate() {
            *key = encoding.decode(*key);
            slots.store(*row as usize, number(first + step * STEP + i));
        }
        Ok(())
    })?;
    Ok(())
}

/// Keys, and the rows that they are of.
struct Pairs<'a, K> {
    keys: &'a mut [K],
    rows: &'a mut [u32],
}

impl<K> Pairs<'_, K> {
    fn len(&self) -> usize {
        self.keys.len()
    }

    /// The first `len` pairs, and the others.
    fn split_at(self, len: usize) -> (Self, Self) {
        let (keys, other_keys) = self.keys.split_at_mut(len);
        let (rows, other_rows) = self.rows.split_at_mut(len);
        let others = Pairs {
            keys: other_keys,
            rows: other_rows,
        };
        (Pairs { keys, rows }, others)
    }
}

/// The digit that divides keys into buckets: some bits of their distance from the least key.
#[derive(Clone, Copy)]
struct LeadingDigit<K> {
    least: K,
    shift: u32,
    bits: u32,
}

impl<K: RadixKey> LeadingDigit<K> {
    /// The digit that divides these keys into small buckets, if they are evenly distributed; `None` if all keys are equal.
    fn of(keys: &[K], workers: Workers) -> Result<Option<Self>> {
        let extremes = workers.map(workers.ranges(keys.len(), 1), |range| {
            let keys = keys[range].iter();
            Ok(keys.fold((K::MAX, K::ZERO), |(least, most), key| {
                (least.min(*key), most.max(*key))
            }))
        })?;
        let least = extremes.iter().map(|(least, _)| *least).min();
        let most = extremes.iter().map(|(_, most)| *most).max();
        let (Some(least), Some(most)) = (least, most) else {
            return Ok(None);
        };
        if least >= most {
            return Ok(None);
        }
        let all_bits = most.above(least).bit_length();
        let bits = keys.len().ilog2().saturating_sub(BUCKET_ROWS);
        let bits = bits.clamp(1, BUCKET_BITS).min(all_bits);
        let shift = all_bits - bits;
        Ok(Some(Self { least, shift, bits }))
    }

    #[inline]
    fn bucket(&self, key: K) -> usize {
        key.above(self.least).bits_from(self.shift)
    }
}

/// Moves pairs to their buckets, stably. Returns the end of each bucket.
fn move_to_buckets<K: RadixKey>(
    from: &Pairs<K>,
    to: &mut Pairs<K>,
    digit: LeadingDigit<K>,
    workers: Workers,
) -> Result<Vec<usize>> {
    let (keys, rows) = (&*from.keys, &*from.rows);
    let ranges = workers.ranges(keys.len(), 1);
    let mut counts = workers.map(ranges.clone(), |range| {
        let mut counts = vec![0_u32; 1 << digit.bits];
        for keys in keys[range].chunks(STEP) {
            workers.check()?;
            for key in keys {
                counts[digit.bucket(*key)] += 1;
            }
        }
        Ok(counts)
    })?;
    // From counts to the first position of each bucket's rows of each part.
    let mut ends = vec![];
    let mut next = 0;
    for bucket in 0..1 << digit.bits {
        for counts in &mut counts {
            let count = counts[bucket];
            counts[bucket] = next;
            next += count;
        }
        ends.push(next as usize);
    }
    let (to_keys, to_rows) = (SharedSlots::new(to.keys), SharedSlots::new(to.rows));
    let parts = ranges.into_iter().zip(counts).collect();
    workers.map(parts, |(range, mut next): (Range<usize>, Vec<u32>)| {
        let steps = keys[range.clone()].chunks(STEP);
        for (keys, rows) in steps.zip(rows[range].chunks(STEP)) {
            workers.check()?;
            for (key, row) in keys.iter().zip(rows) {
                let next = &mut next[digit.bucket(*key)];
                to_keys.store(*next as usize, *key);
                to_rows.store(*next as usize, *row);
                *next += 1;
            }
        }
        Ok(())
    })?;
    Ok(ends)
}

/// Sorts many pairs with all threads; `scratch` is as long.
fn sort_by_buckets<K: RadixKey>(
    pairs: Pairs<K>,
    mut scratch: Pairs<K>,
    workers: Workers,
) -> Result<()> {
    let Some(digit) = LeadingDigit::of(pairs.keys, workers)? else {
        return Ok(());
    };
    let ends = move_to_buckets(&pairs, &mut scratch, digit, workers)?;
    // Buckets that are small, several per task, and others.
    let (mut small, mut large) = (vec![], vec![]);
    let (mut rest, mut rest_scratch) = (pairs, scratch);
    let (mut done, mut buckets) = (0, vec![]);
    for (i, end) in ends.iter().enumerate() {
        let len = end - done;
        buckets.push(len);
        if let Some(next) = ends.get(i + 1)
            && next - done <= 1 << BUCKET_ROWS
        {
            continue;
        }
        let (to, after) = rest.split_at(len);
        let (from, after_scratch) = rest_scratch.split_at(len);
        (rest, rest_scratch) = (after, after_scratch);
        let buckets = std::mem::take(&mut buckets);
        if len > LARGE && digit.shift > 0 {
            large.push((to, from));
        } else {
            small.push((to, from, buckets));
        }
        done = *end;
    }
    workers.map(
        small,
        |(to, from, ends): (Pairs<K>, Pairs<K>, Vec<usize>)| {
            let mut start = 0;
            for end in ends {
                let range = start..end;
                start = end;
                let from = Pairs {
                    keys: &mut from.keys[range.clone()],
                    rows: &mut from.rows[range.clone()],
                };
                let to = Pairs {
                    keys: &mut to.keys[range.clone()],
                    rows: &mut to.rows[range],
                };
                sort_digits(from, to);
            }
            Ok(())
        },
    )?;
    // Most keys may have the same leading digit.
    for (to, from) in large {
        let Pairs { keys, rows } = to;
        let steps = keys.chunks_mut(STEP).zip(rows.chunks_mut(STEP));
        let steps = steps.zip(from.keys.chunks(STEP).zip(from.rows.chunks(STEP)));
        workers.map(steps.collect(), |((keys, rows), (from_keys, from_rows))| {
            keys.copy_from_slice(from_keys);
            rows.copy_from_slice(from_rows);
            Ok(())
        })?;
        sort_by_buckets(Pairs { keys, rows }, from, workers)?;
    }
    Ok(())
}

/// Sorts the pairs of `from` into `to`, least significant digit first.
fn sort_digits<K: RadixKey>(from: Pairs<K>, to: Pairs<K>) {
    let Some(first) = from.keys.first().copied() else {
        return;
    };
    let mut bits = K::ZERO;
    for key in from.keys.iter() {
        bits = bits.max(key.difference(first));
    }
    let bits = bits.bit_length();
    if from.len() < MIN_RADIX || bits > 6 * DIGIT_BITS {
        let mut pairs: Vec<(K, u32)> = from
            .keys
            .iter()
            .copied()
            .zip(from.rows.iter().copied())
            .collect();
        pairs.sort_by_key(|(key, _)| *key);
        for ((key, row), pair) in to.keys.iter_mut().zip(to.rows.iter_mut()).zip(pairs) {
            (*key, *row) = pair;
        }
        return;
    }
    let passes = bits.div_ceil(DIGIT_BITS).max(1);
    let digit_bits = bits.div_ceil(passes);
    let mask = (1 << digit_bits) - 1;
    let (mut from, mut to) = (from, to);
    for pass in 0..passes {
        let shift = pass * digit_bits;
        let mut next = [0_u32; 1 << DIGIT_BITS];
        for key in from.keys.iter() {
            next[key.bits_from(shift) & mask] += 1;
        }
        let mut sum = 0;
        for next in &mut next[..=mask] {
            sum += std::mem::replace(next, sum);
        }
        for (key, row) in from.keys.iter().zip(from.rows.iter()) {
            let next = &mut next[key.bits_from(shift) & mask];
            to.keys[*next as usize] = *key;
            to.rows[*next as usize] = *row;
            *next += 1;
        }
        std::mem::swap(&mut from, &mut to);
    }
    // After an even number of passes the pairs are where they were.
    if passes.is_multiple_of(2) {
        to.keys.copy_from_slice(from.keys);
        to.rows.copy_from_slice(from.rows);
    }
}

/// The memory in which a thread sorts small groups.
struct Scratch<K> {
    keys: [Vec<K>; 2],
    rows: [Vec<u32>; 2],
}

impl<K> Default for Scratch<K> {
    fn default() -> Self {
        Self {
            keys: [vec![], vec![]],
            rows: [vec![], vec![]],
        }
    }
}

impl<K: RadixKey> Scratch<K> {
    /// Sorts the keys of a group. `moves` gets the position, from `first` on, that each key moves to.
    fn sort_group(
        &mut self,
        keys: &mut [K],
        encoding: Encoding<K>,
        moves: &mut [u32],
        first: usize,
    ) {
        let len = keys.len();
        let [from_keys, to_keys] = &mut self.keys;
        let [from_rows, to_rows] = &mut self.rows;
        from_keys.clear();
        from_keys.extend(keys.iter().map(|bits| encoding.encode(*bits)));
        from_rows.clear();
        from_rows.extend(0..number(len));
        to_keys.resize(len.max(to_keys.len()), K::ZERO);
        to_rows.resize(len.max(to_rows.len()), 0);
        let from = Pairs {
            keys: from_keys,
            rows: from_rows,
        };
        let to = Pairs {
            keys: &mut to_keys[..len],
            rows: &mut to_rows[..len],
        };
        sort_digits(from, to);
        let sorted = to_keys.iter().zip(to_rows.iter()).zip(first..);
        for (bits, ((key, row), position)) in keys.iter_mut().zip(sorted) {
            *bits = encoding.decode(*key);
            moves[*row as usize] = number(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use datafusion::common::exec_err;
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};

    use super::*;

    /// Makes the key of a row, given its number.
    type KeyOf = fn(&mut fastrand::Rng, u64) -> u64;

    /// Sorts groups of these lengths, and compares with a stable sort.
    fn check<K: RadixKey>(
        bits: &[K],
        encoding: Encoding<K>,
        lengths: &[usize],
        threads: usize,
        name: &str,
    ) {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 30));
        let memory = MemoryConsumer::new("test").register(&pool);
        let context = SortContext {
            memory: &memory,
            workers: Workers::new(threads, &|| Ok(())),
        };
        let mut starts = vec![0];
        for len in lengths {
            starts.push(starts[starts.len() - 1] + len);
        }
        let mut expected: Vec<(K, u32)> = bits.iter().copied().zip(0..).collect();
        for ends in starts.windows(2) {
            expected[ends[0]..ends[1]].sort_by_key(|(bits, _)| encoding.encode(*bits));
        }
        let mut sorted = bits.to_vec();
        let moves = sort_groups(&mut sorted, encoding, &starts, context).unwrap();
        let name = format!("{name}, {lengths:?}, {threads} threads");
        assert!(
            sorted.iter().eq(expected.iter().map(|(bits, _)| bits)),
            "{name}"
        );
        let stays = expected
            .iter()
            .zip(0..)
            .all(|((_, row), position)| *row == position);
        assert!(moves.is_some() || stays, "{name}");
        for ((_, row), position) in expected.iter().zip(0..) {
            let to = moves.as_ref().map_or(*row, |moves| moves[*row as usize]);
            assert_eq!(to, position, "{name}");
        }
    }

    #[test]
    fn groups_are_sorted_as_by_a_stable_sort() {
        let random = &mut fastrand::Rng::with_seed(88_172_645_463_325_252);
        // Different keys, few, one that most have, backwards, ascending with exceptions, within a small range, some far away.
        let kinds: [(&str, KeyOf); 7] = [
            ("different", |random, _| random.u64(..)),
            ("few", |random, _| random.u64(..5)),
            ("one", |random, _| {
                if random.u64(..4) > 0 {
                    7
                } else {
                    random.u64(..1 << 40)
                }
            }),
            ("backwards", |_, i| u64::MAX / 2 - i),
            (
                "ascending",
                |random, i| if random.u64(..9999) == 0 { 0 } else { i },
            ),
            ("near", |random, _| (1 << 60) + random.u64(..1 << 25)),
            ("some far", |random, i| {
                random.u64(..1 << (20 + i % 100 / 99 * 40))
            }),
        ];
        let many_groups = vec![17; 5000];
        let lengths: [&[usize]; 6] = [
            &[0, 1, 2, 0, 700],
            &[5000, 0, 3, 30_000, 1100],
            &[LARGE + 1],
            &[10, 3 * LARGE, 0, 20, LARGE + 7, 2000],
            &[0],
            &many_groups,
        ];
        for (name, key) in kinds {
            for lengths in lengths {
                let rows: usize = lengths.iter().sum();
                let keys: Vec<u64> = (0..rows as u64).map(|i| key(random, i)).collect();
                for threads in [1, 3] {
                    check(&keys, Encoding::signed(), lengths, threads, name);
                }
                let wide: Vec<u128> = keys.iter().map(|key| u128::from(*key) << 50).collect();
                check(&wide, Encoding::unsigned(), lengths, 2, name);
                #[expect(clippy::cast_possible_truncation, reason = "cut on purpose")]
                let narrow: Vec<u32> = keys.iter().map(|key| *key as u32).collect();
                check(&narrow, Encoding::float(), lengths, 2, name);
            }
        }
    }

    #[test]
    fn a_sort_ends_when_it_is_cancelled_or_memory_is_exhausted() {
        let random = &mut fastrand::Rng::with_seed(88_172_645_463_325_252);
        let rows = 4 * LARGE;
        let keys: Vec<u64> = (0..rows).map(|_| random.u64(..)).collect();
        let sort = |bytes: usize, threads: usize, check: &(dyn Fn() -> Result<()> + Sync)| {
            let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(bytes));
            let memory = MemoryConsumer::new("test").register(&pool);
            let context = SortContext {
                memory: &memory,
                workers: Workers::new(threads, check),
            };
            let starts = [0, rows];
            sort_groups(&mut keys.clone(), Encoding::unsigned(), &starts, context).map(|_| ())
        };
        for bytes in [0, rows * 4, rows * 15] {
            assert!(sort(bytes, 2, &|| Ok(())).is_err(), "{bytes} bytes");
        }
        let checks = AtomicUsize::new(0);
        let count = || {
            checks.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        sort(usize::MAX, 1, &count).unwrap();
        let all = checks.load(Ordering::Relaxed);
        assert!(all > 3 * rows / STEP, "{all} checks");
        for last in [1, all / 3, all / 2, all - 1] {
            checks.store(0, Ordering::Relaxed);
            let end_early = || match checks.fetch_add(1, Ordering::Relaxed) {
                before if before >= last => exec_err!("the query was cancelled"),
                _ => Ok(()),
            };
            assert!(
                sort(usize::MAX, 1, &end_early).is_err(),
                "after {last} of {all}"
            );
            assert_eq!(checks.load(Ordering::Relaxed), last + 1);
        }
    }
}
