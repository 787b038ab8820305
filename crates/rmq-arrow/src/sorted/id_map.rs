//! Consecutive ids of integer keys.

use std::collections::HashMap;
use std::hash::Hash;

use datafusion_common::hash_utils::RandomState;

use crate::sorted::id_table::{IdTable, NO_GROUP};

/// Ids of distinct keys of fixed width.
#[derive(Debug)]
pub struct IdMap<K> {
    ids: HashMap<K, u32, RandomState>,
    /// A direct-mapped cache of recent keys and their ids: with few distinct keys most look-ups hit it, which is faster
    /// than the table.
    recent: Vec<(K, u32)>,
    /// The bits of a hash below those of the slot in the cache.
    shift: u32,
    /// The number of look-ups before the cache was allocated.
    lookups: usize,
}

/// The entries of the cache at first, a power of two. It is allocated after this many look-ups.
const FIRST_RECENT: usize = 1 << 12;

/// The most entries, a power of two. The cache is used up to this many distinct keys.
const MAX_RECENT: usize = 1 << 14;

/// The entries for each key, so that few share one. A second key in each entry instead takes longer, as both are
/// compared each time.
const RECENT_A_KEY: usize = 64;

/// An integer key.
pub trait IntKey: Copy + Default + Hash + Eq + Send + Sync {
    /// Hashes the key to 64 bits.
    fn fold(self) -> u64;
}

impl IntKey for u64 {
    #[inline]
    fn fold(self) -> u64 {
        self
    }
}

impl IntKey for u128 {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "both halves count")]
    fn fold(self) -> u64 {
        self as u64 ^ ((self >> 64) as u64).rotate_left(23)
    }
}

impl<K> Default for IdMap<K> {
    fn default() -> Self {
        Self {
            ids: HashMap::default(),
            recent: vec![],
            shift: 0,
            lookups: 0,
        }
    }
}

impl<K: IntKey> IdMap<K> {
    /// Returns the id of a key, which is `next` for a new one, and caches it. Not inlined, so that a hit of the cache
    /// is short code.
    #[inline(never)]
    fn add_to_table(&mut self, key: K, next: u32) -> u32 {
        let id = *self.ids.entry(key).or_insert(next);
        let (keys, entries) = (self.ids.len(), self.recent.len());
        if keys > MAX_RECENT {
            self.recent = vec![];
        } else if entries == FIRST_RECENT && keys > FIRST_RECENT / 4 {
            self.fill_cache(MAX_RECENT);
        } else if let Some(recent) = self.recent.get_mut(slot(key, self.shift)) {
            *recent = (key, id);
        } else {
            self.lookups += 1;
            if self.lookups == FIRST_RECENT {
                self.fill_cache(FIRST_RECENT);
            }
        }
        id
    }

    /// A cache of this many entries, a power of two and not 1.
    fn fill_cache(&mut self, entries: usize) {
        self.recent = vec![(K::default(), NO_GROUP); entries];
        self.shift = u64::BITS - entries.ilog2();
        // Frequent keys come early, and are not displaced by those that came after them.
        let mut keys: Vec<(K, u32)> = self.entries().collect();
        keys.sort_unstable_by_key(|(_, id)| std::cmp::Reverse(*id));
        for (key, id) in keys {
            self.recent[slot(key, self.shift)] = (key, id);
        }
    }

    /// The keys and their ids, in no order.
    pub fn entries(&self) -> impl Iterator<Item = (K, u32)> {
        self.ids.iter().map(|(key, id)| (*key, *id))
    }
}

impl<K: IntKey> IdTable for IdMap<K> {
    type Key<'a>
        = K
    where
        K: 'a;

    fn len(&self) -> usize {
        self.ids.len()
    }

    fn bytes(&self) -> usize {
        // A hash table keeps at least an eighth of its slots free, and a control byte per slot.
        let table = self.ids.capacity() * (size_of::<(K, u32)>() + 1) * 8 / 7;
        table + size_of_val(self.recent.as_slice())
    }

    #[inline]
    fn hash(key: K) -> u64 {
        // Fibonacci hashing: the product with 2^64 divided by the golden ratio. Its upper bits depend on all of the
        // key.
        key.fold().wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    #[inline]
    fn cached(&self, key: K) -> Option<u32> {
        let (recent, id) = self.recent.get(slot(key, self.shift))?;
        (*recent == key && *id != NO_GROUP).then_some(*id)
    }

    #[inline]
    fn add_as(&mut self, key: K, next: u32) -> u32 {
        match self.cached(key) {
            Some(id) => id,
            None => self.add_to_table(key, next),
        }
    }

    #[inline]
    fn find(&self, key: K) -> u32 {
        let id = self.cached(key).or_else(|| self.ids.get(&key).copied());
        id.unwrap_or(NO_GROUP)
    }

    fn keys(&self) -> Vec<K> {
        let mut keys = vec![K::default(); self.len()];
        for (key, id) in self.entries() {
            keys[id as usize] = key;
        }
        keys
    }

    fn renumber(&mut self, ids: &[u32]) {
        for id in self.ids.values_mut() {
            *id = ids[*id as usize];
        }
        self.recent = vec![];
    }

    fn finish(&mut self) {
        self.recent = vec![];
        if self.ids.len() <= MAX_RECENT {
            let entries = (RECENT_A_KEY * self.ids.len()).next_power_of_two();
            self.fill_cache(entries.clamp(RECENT_A_KEY, MAX_RECENT));
        }
    }
}

/// The slot of a key in the cache.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the shift leaves few bits")]
fn slot<K: IntKey>(key: K, shift: u32) -> usize {
    (IdMap::<K>::hash(key) >> shift) as usize
}
