//! Tells which keys of a column are in one of some intervals, 64 keys per word.

use crate::column::Column;
use crate::cpu::simd::dispatch::{SupportedSimd, multiversion};
use crate::key::Key;

/// Returns a bitmap, least significant bit first, of the keys that are in an interval. Intervals are disjoint and
/// ascend; both of their ends are keys, and belong to them. Bits past the last key are 0.
pub(crate) fn within<K: Key>(keys: &Column<K>, intervals: &[(K, K)]) -> Vec<u64> {
    let mut words = Vec::with_capacity(keys.len().div_ceil(64));
    within_vectorized(SupportedSimd::best(), keys, intervals, &mut words);
    words
}

multiversion! {
    fn within_vectorized[K: Key](keys: &Column<K>, intervals: &[(K, K)], words: &mut Vec<u64>) {
        within_inlined(keys, intervals, words);
    }
}

#[inline(always)]
fn within_inlined<K: Key>(keys: &Column<K>, intervals: &[(K, K)], words: &mut Vec<u64>) {
    let (bits, encoding) = (keys.bits(), keys.encoding());
    let (Some((first, _)), Some((_, last))) = (intervals.first(), intervals.last()) else {
        words.resize(bits.len().div_ceil(64), 0);
        return;
    };
    // Often most keys are outside of all intervals, or there is one.
    pack(bits, words, |bits| {
        let key = encoding.encode(bits);
        (key >= *first) & (key <= *last)
    });
    if intervals.len() == 1 {
        return;
    }
    for (word, bits) in words.iter_mut().zip(bits.chunks(64)) {
        let mut left = *word;
        while left != 0 {
            let key = encoding.encode(bits[left.trailing_zeros() as usize]);
            // The first interval begins at or before the key.
            let begun = intervals.partition_point(|(low, _)| *low <= key);
            if intervals[begun - 1].1 < key {
                *word &= !(left & left.wrapping_neg());
            }
            left &= left - 1;
        }
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
        let encoding = Encoding::<u32>::signed();
        let key = |value: i32| encoding.encode(value.cast_unsigned());
        let all: [&[(i32, i32)]; 6] = [
            &[],
            &[(i32::MIN, i32::MAX)],
            &[(2, 2)],
            &[(-4, -3), (-1, 0), (4, 9)],
            &[(i32::MIN, -5), (5, i32::MAX)],
            &[(-5, -5), (-3, -3), (0, 1), (3, 3), (20, 30)],
        ];
        for len in [0, 1, 63, 64, 65, 200] {
            let values: Vec<i32> = (0..len).map(|i| (i * 37) % 11 - 5).collect();
            let bits: Vec<u32> = values.iter().map(|value| value.cast_unsigned()).collect();
            let keys = Column::new(Arc::new(bits), encoding);
            for intervals in all {
                let ends: Vec<_> = intervals.iter().map(|(a, b)| (key(*a), key(*b))).collect();
                let words = within(&keys, &ends);
                assert_eq!(words.len(), values.len().div_ceil(64));
                for i in 0..words.len() * 64 {
                    let is_in = |v: &i32| intervals.iter().any(|(a, b)| (a..=b).contains(&v));
                    let expected = values.get(i).is_some_and(is_in);
                    let found = words[i / 64] >> (i % 64) & 1 == 1;
                    assert_eq!(found, expected, "{len} {intervals:?} {i}");
                }
            }
        }
    }
}
