//! Compares the keys of a column with one bound, 64 keys per word.

use crate::column::Column;
use crate::comparison::Comparison;
use crate::cpu::simd::dispatch::{SupportedSimd, multiversion};
use crate::key::Key;

/// Returns a bitmap, least significant bit first, of the keys that compare so with `bound`, itself a key. Bits past the
/// last key are 0.
pub(crate) fn compare<K: Key>(keys: &Column<K>, comparison: Comparison, bound: K) -> Vec<u64> {
    let mut words = Vec::with_capacity(keys.len().div_ceil(64));
    compare_vectorized(SupportedSimd::best(), keys, comparison, bound, &mut words);
    words
}

multiversion! {
    fn compare_vectorized[K: Key](keys: &Column<K>, comparison: Comparison, bound: K, words: &mut Vec<u64>) {
        compare_inlined(keys, comparison, bound, words);
    }
}

#[inline(always)]
fn compare_inlined<K: Key>(
    keys: &Column<K>,
    comparison: Comparison,
    bound: K,
    words: &mut Vec<u64>,
) {
    let (bits, encoding) = (keys.bits(), keys.encoding());
    match comparison {
        Comparison::Above => pack(bits, words, |bits| encoding.encode(bits) > bound),
        Comparison::AtLeast => pack(bits, words, |bits| encoding.encode(bits) >= bound),
        Comparison::Below => pack(bits, words, |bits| encoding.encode(bits) < bound),
        Comparison::AtMost => pack(bits, words, |bits| encoding.encode(bits) <= bound),
    }
}

/// Appends one bit per value, in words of 64.
#[inline(always)]
fn pack<T: Copy>(values: &[T], words: &mut Vec<u64>, holds: impl Fn(T) -> bool) {
    let word = |values: &[T]| {
        let bits = values.iter().enumerate();
        bits.fold(0, |word, (i, value)| word | u64::from(holds(*value)) << i)
    };
    let (whole, rest) = values.as_chunks::<64>();
    words.extend(whole.iter().map(|values| word(values)));
    if !rest.is_empty() {
        words.push(word(rest));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::key::Encoding;

    #[test]
    fn bits_are_those_of_a_scalar_comparison() {
        let comparisons = [
            Comparison::Above,
            Comparison::AtLeast,
            Comparison::Below,
            Comparison::AtMost,
        ];
        let encoding = Encoding::<u32>::signed();
        for len in [0, 1, 63, 64, 65, 200] {
            let values: Vec<i32> = (0..len).map(|i| (i * 37) % 11 - 5).collect();
            let bits: Vec<u32> = values.iter().map(|value| value.cast_unsigned()).collect();
            let keys = Column::new(Arc::new(bits), encoding);
            for bound in [i32::MIN, -5, 0, 3, i32::MAX] {
                for comparison in comparisons {
                    let words = compare(&keys, comparison, encoding.encode(bound.cast_unsigned()));
                    assert_eq!(words.len(), values.len().div_ceil(64));
                    for i in 0..words.len() * 64 {
                        let expected = values.get(i).is_some_and(|v| comparison.holds(v, &bound));
                        let found = words[i / 64] >> (i % 64) & 1 == 1;
                        assert_eq!(found, expected, "{len} {bound} {comparison:?} {i}");
                    }
                }
            }
        }
    }
}
