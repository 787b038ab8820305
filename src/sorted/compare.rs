//! Which keys of a column compare so with a bound, as bits: 64 keys at a time, with the machine's vectors.

#![allow(unsafe_code, reason = "moves to the engine")]
#![allow(
    clippy::inline_always,
    reason = "one loop for each width, comparison and set of instructions"
)]

use arrow::buffer::{BooleanBuffer, Buffer};

use crate::sorted::sorted_rows::Comparison;
use rmq_engine::cpu::Simd;
use rmq_engine::{Column, Key};

/// Which keys of a column compare so with a bound, itself a key.
pub(crate) fn compared<K: Key>(
    keys: &Column<K>,
    comparison: Comparison,
    bound: K,
) -> BooleanBuffer {
    let words = match Simd::best() {
        // SAFETY: the machine has these instructions.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { words_avx512(keys, comparison, bound) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { words_avx2(keys, comparison, bound) },
        _ => words(keys, comparison, bound),
    };
    BooleanBuffer::new(Buffer::from_vec(words), 0, keys.len())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
fn words_avx512<K: Key>(keys: &Column<K>, comparison: Comparison, bound: K) -> Vec<u64> {
    words(keys, comparison, bound)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn words_avx2<K: Key>(keys: &Column<K>, comparison: Comparison, bound: K) -> Vec<u64> {
    words(keys, comparison, bound)
}

#[inline(always)]
fn words<K: Key>(keys: &Column<K>, comparison: Comparison, bound: K) -> Vec<u64> {
    let (bits, encoding) = (keys.bits(), keys.encoding());
    match comparison {
        Comparison::Above => packed(bits, |bits| encoding.encode(bits) > bound),
        Comparison::AtLeast => packed(bits, |bits| encoding.encode(bits) >= bound),
        Comparison::Below => packed(bits, |bits| encoding.encode(bits) < bound),
        Comparison::AtMost => packed(bits, |bits| encoding.encode(bits) <= bound),
    }
}

/// A bit for each value, in words of 64.
#[inline(always)]
fn packed<T: Copy>(values: &[T], holds: impl Fn(T) -> bool) -> Vec<u64> {
    let word = |values: &[T]| {
        let bits = values.iter().enumerate();
        bits.fold(0, |word, (i, value)| word | u64::from(holds(*value)) << i)
    };
    let (whole, rest) = values.as_chunks::<64>();
    let mut words = Vec::with_capacity(values.len().div_ceil(64));
    words.extend(whole.iter().map(|values| word(values)));
    if !rest.is_empty() {
        words.push(word(rest));
    }
    words
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use rmq_engine::Encoding;

    #[test]
    fn a_bit_says_how_a_key_compares() {
        for len in [0, 1, 63, 64, 65, 200] {
            let values: Vec<i32> = (0..len).map(|i| (i * 37) % 11 - 5).collect();
            let bits: Vec<u32> = values.iter().map(|v| v.cast_unsigned()).collect();
            let keys = Column::new(Arc::new(bits), Encoding::signed());
            for bound in [i32::MIN, -5, 0, 3, i32::MAX] {
                for comparison in [
                    Comparison::Above,
                    Comparison::AtLeast,
                    Comparison::Below,
                    Comparison::AtMost,
                ] {
                    let key = Encoding::<u32>::signed().encode(bound.cast_unsigned());
                    let found = compared(&keys, comparison, key);
                    assert_eq!(found.len(), values.len());
                    for (i, value) in values.iter().enumerate() {
                        let expected = comparison.holds(value, &bound);
                        assert_eq!(found.value(i), expected, "{value} {comparison:?} {bound}");
                    }
                }
            }
        }
    }
}
