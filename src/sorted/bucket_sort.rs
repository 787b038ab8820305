//! A stable samplesort in steps, between which it can be cancelled.
//!
//! 1. Splitters are the quantiles of a sample of the items.
//! 2. Each item is moved to the bucket between two splitters, or to the bucket of the items equal to a splitter, in
//!    input order.
//! 3. Each bucket between splitters is sorted. The other buckets contain equal items.
//!
//! For n items this takes O(n log n) comparisons, and 2 bytes per item beside the output. (Sanders and Winkel, *Super
//! Scalar Sample Sort*, ESA 2004.)

use std::cmp::Ordering;
use std::hint::select_unpredictable;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::workers::{STEP, Workers};

/// The maximum number of buckets between splitters.
const BUCKETS: usize = 512;

/// Sampled items per bucket.
const OVERSAMPLING: usize = 16;

/// The memory reservation of long-running work, and its threads.
#[derive(Clone, Copy)]
pub(crate) struct SortContext<'a> {
    pub(crate) memory: &'a MemoryReservation,
    pub(crate) workers: Workers<'a>,
}

/// Fills `sorted`, whose capacity is already reserved, with the items in sorted order; equal items stay in input order.
///
/// # Errors
/// If the query is cancelled, or memory is not available.
pub(crate) fn sort_in_steps<T: Copy>(
    items: impl ExactSizeIterator<Item = T> + Clone,
    sorted: &mut Vec<T>,
    compare: impl Fn(&T, &T) -> Ordering,
    context: SortContext,
) -> Result<()> {
    let len = items.len();
    sorted.clear();
    sorted.extend(items.clone());
    context.workers.check()?;
    if len <= 2 * STEP {
        sorted.sort_by(compare);
        return Ok(());
    }
    let buckets = (len / STEP).next_power_of_two().min(BUCKETS);
    let splitters = splitters(buckets, len, |i| sorted[i], &compare);
    let bucket_memory = context.memory.new_empty();
    bucket_memory.try_grow(len * size_of::<u16>())?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "there are fewer than 2 * BUCKETS"
    )]
    let number = |bucket: usize| bucket as u16;
    let mut buckets: Vec<u16> = Vec::with_capacity(len);
    // The first position of each bucket.
    let mut starts = vec![0_usize; 2 * splitters.len() + 2];
    for step in sorted.chunks(STEP) {
        context.workers.check()?;
        for item in step {
            let bucket = bucket(item, &splitters, &compare);
            starts[bucket + 1] += 1;
            buckets.push(number(bucket));
        }
    }
    for bucket in 1..starts.len() {
        starts[bucket] += starts[bucket - 1];
    }
    let mut next = starts.clone();
    let mut items = items;
    for step in buckets.chunks(STEP) {
        context.workers.check()?;
        for (bucket, item) in step.iter().zip(items.by_ref()) {
            let position = &mut next[usize::from(*bucket)];
            sorted[*position] = item;
            *position += 1;
        }
    }
    // Every second bucket contains equal items.
    for ends in starts.windows(2).step_by(2) {
        context.workers.check()?;
        sorted[ends[0]..ends[1]].sort_by(&compare);
    }
    Ok(())
}

/// Chooses distinct items, in order, that split `len` items into at most this many buckets, about equally.
pub(crate) fn splitters<T: Copy>(
    buckets: usize,
    len: usize,
    item: impl Fn(usize) -> T,
    compare: &impl Fn(&T, &T) -> Ordering,
) -> Vec<T> {
    // Pseudo-random positions: a fixed stride could coincide with a period of the data.
    let mut state = 0_u64;
    let mut sample: Vec<T> = (0..buckets * OVERSAMPLING)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let position = (u128::from(state) * len as u128) >> 64;
            item(usize::try_from(position).unwrap_or_default())
        })
        .collect();
    sample.sort_by(compare);
    let mut splitters: Vec<T> = sample
        .into_iter()
        .skip(OVERSAMPLING)
        .step_by(OVERSAMPLING)
        .collect();
    splitters.dedup_by(|next, before| compare(next, before).is_eq());
    splitters
}

/// The bucket of an item: twice the number of smaller splitters, plus one if it equals the next splitter.
#[inline]
fn bucket<T>(item: &T, splitters: &[T], compare: &impl Fn(&T, &T) -> Ordering) -> usize {
    let (mut first, mut len) = (0, splitters.len());
    while len > 0 {
        let half = len.div_ceil(2);
        let is_before = compare(&splitters[first + half - 1], item).is_lt();
        // A branch would be mispredicted half of the time.
        first = select_unpredictable(is_before, first + half, first);
        len -= half;
    }
    let equals = splitters
        .get(first)
        .is_some_and(|next| compare(next, item).is_eq());
    2 * first + usize::from(equals)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use datafusion::common::exec_err;
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};

    use super::*;

    #[test]
    fn items_are_sorted_as_by_a_stable_sort() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 30));
        let memory = MemoryConsumer::new("test").register(&pool);
        let context = SortContext {
            memory: &memory,
            workers: Workers::new(1, &|| Ok(())),
        };
        let random = &mut fastrand::Rng::with_seed(88_172_645_463_325_252);
        // Different keys, few keys, one key that most have, sorted, backwards, steps of 256, one far away.
        let kinds: [fn(&mut fastrand::Rng, u64) -> u64; 8] = [
            |random, _| random.u64(..u64::MAX),
            |random, _| random.u64(..5),
            |random, _| {
                if random.u64(..4) > 0 {
                    7
                } else {
                    random.u64(..1 << 40)
                }
            },
            |_, i| i,
            |_, i| u64::MAX - i,
            |_, i| i % 256,
            |random, i| {
                if i == 999 {
                    u64::MAX
                } else {
                    random.u64(..1 << 20)
                }
            },
            |_, _| 3,
        ];
        for (kind, key) in kinds.iter().enumerate() {
            for len in [0, 1, 1000, 2 * STEP, 2 * STEP + 1, 12 * STEP + 77] {
                let keys: Vec<u64> = (0..len as u64).map(|i| key(random, i)).collect();
                let items = keys.iter().copied().zip(0_u32..);
                let mut expected: Vec<(u64, u32)> = items.clone().collect();
                expected.sort_by_key(|(key, _)| *key);
                let items = keys
                    .iter()
                    .enumerate()
                    .map(|(i, key)| (*key, u32::try_from(i).unwrap()));
                let mut sorted = vec![];
                sort_in_steps(items, &mut sorted, |a, b| a.0.cmp(&b.0), context).unwrap();
                assert!(sorted == expected, "keys of kind {kind}, {len} rows");
            }
        }
        assert_eq!(pool.reserved(), 0);
    }

    #[test]
    fn buckets_are_about_as_large_as_a_step() {
        let random = &mut fastrand::Rng::with_seed(88_172_645_463_325_252);
        // Most keys are close to each other, as times of day beside a few of another year.
        let keys = (0..40 * STEP).map(|i| random.u64(..1 << 30) << (i % 3 * 16));
        let keys: Vec<u64> = keys.collect();
        let splitters = splitters(64, keys.len(), |i| keys[i], &Ord::cmp);
        let mut counts = vec![0; 2 * splitters.len() + 1];
        for key in &keys {
            counts[bucket(key, &splitters, &Ord::cmp)] += 1;
        }
        assert!(counts.iter().all(|count| *count < 3 * STEP), "{counts:?}");
    }

    #[test]
    fn a_sort_ends_soon_after_it_is_cancelled() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 30));
        let memory = MemoryConsumer::new("test").register(&pool);
        let random = &mut fastrand::Rng::with_seed(88_172_645_463_325_252);
        let keys: Vec<u64> = (0..20 * STEP).map(|_| random.u64(..u64::MAX)).collect();
        let checks = AtomicUsize::new(0);
        let count = || {
            checks.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let sort = |check: &(dyn Fn() -> Result<()> + Sync)| {
            let context = SortContext {
                memory: &memory,
                workers: Workers::new(1, check),
            };
            sort_in_steps(keys.iter().copied(), &mut vec![], Ord::cmp, context)
        };
        sort(&count).unwrap();
        let all = checks.load(Ordering::Relaxed);
        assert!(all > 3 * 20, "{all} checks");
        for last in [1, all / 3, all / 2, all - 1] {
            checks.store(0, Ordering::Relaxed);
            let end_early = || {
                count()?;
                if checks.load(Ordering::Relaxed) > last {
                    exec_err!("the query was cancelled")
                } else {
                    Ok(())
                }
            };
            sort(&end_early).unwrap_err();
            assert_eq!(checks.load(Ordering::Relaxed), last + 1);
        }
        assert_eq!(pool.reserved(), 0);
    }
}
