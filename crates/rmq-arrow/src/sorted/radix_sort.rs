//! A stable radix sort of few keys, least significant digit first.

use crate::sorted::id_table::number;
use rmq_engine::Encoding;
use rmq_engine::cpu::SearchKey;

/// Digits have at most this many bits, so that their counts stay in the first-level cache.
const DIGIT_BITS: u32 = 11;

/// Fewer keys are sorted by comparisons.
const MIN_RADIX: usize = 1024;

/// A key with digits.
pub trait RadixKey: SearchKey {
    /// The number of bits up to the highest one that is set.
    fn bit_length(self) -> u32;

    /// The bits from `shift` on, cut to the width of `usize`.
    fn bits_from(self, shift: u32) -> usize;

    /// The bits in which two keys differ.
    fn difference(self, other: Self) -> Self;

    /// This key less one that is not greater.
    fn minus(self, other: Self) -> Self;
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
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
        }
    )*};
}

radix_key!(u32, u64, u128);

/// Keys, and the rows that they are of.
struct Pairs<'a, K> {
    keys: &'a mut [K],
    rows: &'a mut [u32],
}

impl<K> Pairs<'_, K> {
    fn len(&self) -> usize {
        self.keys.len()
    }
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

/// The memory in which a thread sorts.
pub struct Scratch<K> {
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
    /// Sorts keys, given as the bits of a column. Returns where each was before.
    pub fn sort(&mut self, keys: &mut [K], encoding: Encoding<K>) -> &[u32] {
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
        for (bits, key) in keys.iter_mut().zip(to_keys.iter()) {
            *bits = encoding.decode(*key);
        }
        &to_rows[..len]
    }
}
