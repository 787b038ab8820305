//! Tables of consecutive ids of distinct keys, and the merge of the tables of several threads.

use std::sync::atomic::{AtomicU64, Ordering};

use datafusion_common::Result;

use crate::common::workers::Workers;

/// The group of a row without a group: one with a NULL key, or with keys that no added row has.
pub const NO_GROUP: u32 = u32::MAX;

/// A table of distinct keys and their ids.
pub trait IdTable: Default + Send + Sync {
    /// A key, borrowed from a column or from a table.
    type Key<'a>: Copy + Send + Sync
    where
        Self: 'a;

    /// Number of keys.
    fn len(&self) -> usize;

    /// Estimates the bytes that the table takes.
    fn bytes(&self) -> usize;

    /// Hashes a key. The upper bits depend on all of it.
    fn hash(key: Self::Key<'_>) -> u64;

    /// Returns the id of a key; a new key gets the id `next`.
    fn add_as(&mut self, key: Self::Key<'_>, next: u32) -> u32;

    /// Returns the id of a key; a new key gets the next id.
    #[inline]
    fn add(&mut self, key: Self::Key<'_>) -> u32 {
        let next = number(self.len());
        self.add_as(key, next)
    }

    /// Returns the id of a key if it is in the cache, in a constant time.
    fn cached(&self, key: Self::Key<'_>) -> Option<u32>;

    /// Returns the id of a key, [`NO_GROUP`] if it was never added.
    fn find(&self, key: Self::Key<'_>) -> u32;

    /// The keys by their ids, which are consecutive.
    fn keys(&self) -> Vec<Self::Key<'_>>;

    /// Replaces each id by that at its index.
    fn renumber(&mut self, ids: &[u32]);

    /// Prepares for look-ups. No key is added after this.
    fn finish(&mut self);
}

/// A table, or several among which keys are distributed by their hash.
#[derive(Debug)]
pub struct Shards<T>(Vec<T>);

impl<T: Default> Default for Shards<T> {
    fn default() -> Self {
        Self(vec![T::default()])
    }
}

impl<T: IdTable> Shards<T> {
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.0.iter().map(T::len).sum()
    }

    /// Estimates the bytes that the tables take.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(T::bytes).sum()
    }

    /// The only table, to which keys can be added. Merged tables have several.
    pub fn only(&mut self) -> &mut T {
        &mut self.0[0]
    }

    /// Returns the id of a key if it is in the cache of the only table.
    #[inline]
    pub fn cached(&self, key: T::Key<'_>) -> Option<u32> {
        match self.0.as_slice() {
            [only] => only.cached(key),
            _ => None,
        }
    }

    /// Returns the id of a key, [`NO_GROUP`] if it was never added.
    #[inline]
    pub fn find(&self, key: T::Key<'_>) -> u32 {
        match self.0.as_slice() {
            [only] => only.find(key),
            shards => shards[shard::<T>(key, shards.len())].find(key),
        }
    }

    /// The keys of the only table by their ids.
    pub fn keys(&self) -> Vec<T::Key<'_>> {
        self.0.first().map(T::keys).unwrap_or_default()
    }
}

/// The shard of a key among a power of two of them.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the shift leaves few bits")]
fn shard<T: IdTable>(key: T::Key<'_>, shards: usize) -> usize {
    (T::hash(key).rotate_left(shards.trailing_zeros()) as usize) & (shards - 1)
}

/// Converts a row, a position or a number of keys: there are fewer than 2^32.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a build side has fewer than 2^32 rows"
)]
pub fn number(keys: usize) -> u32 {
    keys as u32
}

/// Keys of all parts above which they are merged by several threads.
const MIN_SHARDED: usize = 1 << 17;

/// Merges the distinct keys of consecutive parts of the rows, each in order of first occurrence. Returns a table of all
/// keys, with ids in order of first occurrence, and the id of each part's keys.
///
/// # Errors
/// If the query is cancelled.
pub fn merge<T: IdTable>(
    parts: &[Vec<T::Key<'_>>],
    workers: Workers,
) -> Result<(Shards<T>, Vec<Vec<u32>>)> {
    let keys: usize = parts.iter().map(Vec::len).sum();
    if keys < MIN_SHARDED || workers.parts(keys) == 1 {
        let mut table = T::default();
        let ids = parts.iter().map(|keys| {
            workers.check()?;
            Ok(keys.iter().map(|key| table.add(*key)).collect())
        });
        let ids = ids.collect::<Result<_>>()?;
        table.finish();
        return Ok((Shards(vec![table]), ids));
    }
    merge_sharded(parts, workers)
}

/// Merges many keys: each thread adds those of a shard to a table of its own. The number of a key is then that of its
/// first occurrence among the first occurrences of all keys.
fn merge_sharded<T: IdTable>(
    parts: &[Vec<T::Key<'_>>],
    workers: Workers,
) -> Result<(Shards<T>, Vec<Vec<u32>>)> {
    let shards = workers.threads().next_power_of_two();
    // The first occurrence of each part's keys, as part and index.
    let firsts = parts.iter().map(|keys| {
        let mut firsts = Vec::new();
        firsts.resize_with(keys.len(), AtomicU64::default);
        firsts
    });
    let firsts: Vec<Vec<AtomicU64>> = firsts.collect();
    let fill_shard = |number_of_shard| {
        let mut table = T::default();
        let mut first_of_keys: Vec<u64> = vec![];
        for (part, keys) in parts.iter().enumerate() {
            workers.check()?;
            for (index, key) in keys.iter().enumerate() {
                if shard::<T>(*key, shards) != number_of_shard {
                    continue;
                }
                let id = table.add(*key) as usize;
                if id == first_of_keys.len() {
                    first_of_keys.push((part as u64) << 32 | index as u64);
                }
                firsts[part][index].store(first_of_keys[id], Ordering::Relaxed);
            }
        }
        Ok((table, first_of_keys))
    };
    let tables = workers.map((0..shards).collect(), fill_shard)?;
    // The ids of the keys that occur first in a part follow those of the parts before.
    let is_first = |part: usize, index: usize, first: &AtomicU64| {
        first.load(Ordering::Relaxed) == (part as u64) << 32 | index as u64
    };
    let counts = workers.map((0..parts.len()).collect(), |part| {
        let firsts = firsts[part].iter().enumerate();
        Ok(firsts
            .filter(|(index, first)| is_first(part, *index, first))
            .count())
    })?;
    let mut starts: Vec<usize> = vec![0];
    for count in counts {
        starts.push(starts[starts.len() - 1] + count);
    }
    let ids_of_firsts = workers.map((0..parts.len()).collect(), |part| {
        let mut next = number(starts[part]);
        let ids = firsts[part].iter().enumerate().map(|(index, first)| {
            if !is_first(part, index, first) {
                return NO_GROUP;
            }
            next += 1;
            next - 1
        });
        Ok(ids.collect::<Vec<u32>>())
    })?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a part and an index of 32 bits"
    )]
    let id_of = |first: u64| ids_of_firsts[(first >> 32) as usize][first as u32 as usize];
    let ids = workers.map((0..parts.len()).collect(), |part| {
        let firsts = firsts[part].iter();
        Ok(firsts
            .map(|first| id_of(first.load(Ordering::Relaxed)))
            .collect())
    })?;
    let tables = workers.map(tables, |(mut table, first_of_keys): (T, Vec<u64>)| {
        let ids: Vec<u32> = first_of_keys.into_iter().map(id_of).collect();
        table.renumber(&ids);
        table.finish();
        Ok(table)
    })?;
    Ok((Shards(tables), ids))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sorted::id_map::IdMap;

    #[test]
    fn merged_ids_are_in_order_of_first_occurrence() {
        let random = &mut fastrand::Rng::with_seed(7_046_029_254_386_353_131);
        for (distinct, per_part) in [(10, 40), (1 << 20, 200_000), (1 << 40, 150_000)] {
            let mut parts = vec![];
            for _ in 0..5 {
                let mut table = IdMap::<u64>::default();
                for _ in 0..per_part {
                    table.add(random.u64(..distinct));
                }
                parts.push(table.keys());
            }
            let mut expected = IdMap::<u64>::default();
            let expected_ids: Vec<Vec<u32>> = parts
                .iter()
                .map(|keys| keys.iter().map(|key| expected.add(*key)).collect())
                .collect();
            for threads in [1, 3, 8] {
                let workers = Workers::new(threads, &|| Ok(()));
                let (table, ids) = merge::<IdMap<u64>>(&parts, workers).expect("no error");
                let sharded = threads > 1 && per_part > 1000;
                assert_eq!(
                    table.0.len() > 1,
                    sharded,
                    "{distinct} keys, {threads} threads"
                );
                assert_eq!(ids, expected_ids, "{distinct} keys, {threads} threads");
                assert_eq!(table.len(), expected.len());
                for key in parts.iter().flatten() {
                    assert_eq!(table.find(*key), expected.find(*key));
                }
                assert_eq!(table.find(u64::MAX), NO_GROUP);
            }
        }
    }
}
