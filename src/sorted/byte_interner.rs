//! Consecutive ids of byte strings.

use std::collections::HashMap;

use datafusion::common::hash_utils::RandomState;

use crate::sorted::id_map::{IdMap, NO_GROUP, number};

/// Consecutive ids of distinct byte strings.
#[derive(Debug, Default)]
pub(crate) struct ByteInterner {
    short: IdMap<u128>,
    long: HashMap<Box<[u8]>, u32, RandomState>,
    long_bytes: usize,
}

/// A byte string. Up to 15 bytes are packed into an integer, with their number in the topmost byte.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ByteKey<'a> {
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
    pub(crate) fn from_buffer(buffer: &'a [u8], start: usize, len: usize) -> Self {
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

impl ByteInterner {
    pub(crate) fn len(&self) -> usize {
        self.short.len() + self.long.len()
    }

    /// Estimates the bytes that the interner takes.
    pub(crate) fn bytes(&self) -> usize {
        let long = self.long.capacity() * (size_of::<(Box<[u8]>, u32)>() + 1) * 8 / 7;
        self.short.bytes() + long + self.long_bytes
    }

    /// Returns the id of a byte string; a new one gets the next id.
    #[inline]
    pub(crate) fn add(&mut self, key: ByteKey) -> u32 {
        let next = number(self.len());
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

    /// Returns the id of a byte string, [`NO_GROUP`] if it was never added.
    #[inline]
    pub(crate) fn find(&self, key: ByteKey) -> u32 {
        match key {
            ByteKey::Short(key) => self.short.find(&key),
            ByteKey::Long(key) => self.long.get(key).copied().unwrap_or(NO_GROUP),
        }
    }
}
