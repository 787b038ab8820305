//! Consecutive ids of byte strings.

use std::collections::HashMap;

use datafusion_common::hash_utils::RandomState;

use crate::sorted::id_map::{IdMap, IntKey};
use crate::sorted::id_table::{IdTable, NO_GROUP};

/// Consecutive ids of distinct byte strings.
#[derive(Debug, Default)]
pub struct ByteInterner {
    short: IdMap<u128>,
    long: HashMap<Box<[u8]>, u32, RandomState>,
    long_bytes: usize,
}

/// A byte string. Up to 15 bytes are packed into an integer, with their number in the topmost byte.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ByteKey<'a> {
    Short(u128),
    Long(&'a [u8]),
}

/// A mask of the lowest `n` bytes for each `n`: a look-up is faster than a shift of 128 bits.
const LOW_BYTES: [u128; 16] = {
    let mut masks = [0; 16];
    let mut len = 1;
    while len < 16 {
        masks[len] = masks[len - 1] << 8 | 0xFF;
        len += 1;
    }
    masks
};

impl<'a> ByteKey<'a> {
    /// The `len` bytes of a buffer from `start` on.
    #[inline]
    pub fn from_buffer(buffer: &'a [u8], start: usize, len: usize) -> Self {
        if len > 15 {
            return Self::Long(&buffer[start..start + len]);
        }
        let wide = match buffer.get(start..start + 16).map(<[u8; 16]>::try_from) {
            Some(Ok(wide)) => wide,
            _ => {
                let mut wide = [0; 16];
                wide[..len].copy_from_slice(&buffer[start..start + len]);
                wide
            }
        };
        Self::Short(u128::from_le_bytes(wide) & LOW_BYTES[len] | (len as u128) << 120)
    }
}

impl IdTable for ByteInterner {
    type Key<'a> = ByteKey<'a>;

    fn len(&self) -> usize {
        self.short.len() + self.long.len()
    }

    fn bytes(&self) -> usize {
        let long = self.long.capacity() * (size_of::<(Box<[u8]>, u32)>() + 1) * 8 / 7;
        self.short.bytes() + long + self.long_bytes
    }

    #[inline]
    fn hash(key: ByteKey) -> u64 {
        match key {
            ByteKey::Short(key) => IdMap::<u128>::hash(key),
            ByteKey::Long(key) => IdMap::<u64>::hash(fold(key)),
        }
    }

    #[inline]
    fn cached(&self, key: ByteKey) -> Option<u32> {
        match key {
            ByteKey::Short(key) => self.short.cached(key),
            ByteKey::Long(_) => None,
        }
    }

    #[inline]
    fn add_as(&mut self, key: ByteKey, next: u32) -> u32 {
        match key {
            ByteKey::Short(key) => self.short.add_as(key, next),
            ByteKey::Long(key) => match self.long.get(key) {
                Some(id) => *id,
                None => {
                    self.long.insert(key.into(), next);
                    self.long_bytes += key.len();
                    next
                }
            },
        }
    }

    #[inline]
    fn find(&self, key: ByteKey) -> u32 {
        match key {
            ByteKey::Short(key) => self.short.find(key),
            ByteKey::Long(key) => self.long.get(key).copied().unwrap_or(NO_GROUP),
        }
    }

    fn keys(&self) -> Vec<ByteKey<'_>> {
        let mut keys = vec![ByteKey::Short(0); self.len()];
        for (key, id) in self.short.entries() {
            keys[id as usize] = ByteKey::Short(key);
        }
        for (key, id) in &self.long {
            keys[*id as usize] = ByteKey::Long(key);
        }
        keys
    }

    fn renumber(&mut self, ids: &[u32]) {
        self.short.renumber(ids);
        for id in self.long.values_mut() {
            *id = ids[*id as usize];
        }
    }

    fn finish(&mut self) {
        self.short.finish();
    }
}

/// Combines the bytes of a string to 64 bits.
fn fold(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(16).map(|bytes| {
        let mut word = [0; 16];
        word[..bytes.len()].copy_from_slice(bytes);
        u128::from_le_bytes(word)
    });
    words.fold(0, |hash: u64, word| {
        (hash.rotate_left(5) ^ word.fold()).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}
