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
    /// The number of look-ups before the cache was allocated.
    lookups: usize,
}

/// The entries of the cache, a power of two. It is allocated after this many look-ups, and used up to this many
/// distinct keys.
const RECENT: usize = 1 << 12;

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
        if self.ids.len() > RECENT {
            self.recent = vec![];
        } else if let Some(recent) = self.recent.get_mut(slot(key)) {
            *recent = (key, id);
        } else {
            self.lookups += 1;
            if self.lookups == RECENT {
                self.recent = vec![(K::default(), NO_GROUP); RECENT];
            }
        }
        id
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
        let (recent, id) = self.recent.get(slot(key))?;
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
        if self.ids.len() <= RECENT {
            let mut recent = vec![(K::default(), NO_GROUP); RECENT];
            for (key, id) in self.entries() {
                recent[slot(key)] = (key, id);
            }
            self.recent = recent;
        }
    }
}

/// The slot of a key in the cache.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the shift leaves few bits")]
fn slot<K: IntKey>(key: K) -> usize {
    (IdMap::<K>::hash(key) >> (64 - RECENT.ilog2())) as usize
}
