//! Evenly spaced sorted keys, such as row positions or samples at a fixed rate. A bound's position is computed by one
//! division instead of a search.

use crate::key::{Encoding, Key};

/// Arithmetic that locates a key among others.
pub(crate) trait KeyArithmetic: Key {
    /// The distance of neighbouring integers.
    const ONE: Self;

    /// Returns how far this key is above the other, modulo the width.
    fn distance(self, other: Self) -> Self;

    /// Divides by a distance that is not zero. Returns the quotient, saturated, and whether the remainder is zero.
    fn divide(self, by: Self) -> (usize, bool);
}

macro_rules! key_arithmetic {
    ($($key:ty),*) => {$(
        impl KeyArithmetic for $key {
            const ONE: Self = 1;

            #[inline(always)]
            fn distance(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }

            #[inline(always)]
            fn divide(self, by: Self) -> (usize, bool) {
                let (quotient, remainder) = if by == 1 { (self, 0) } else { (self / by, self % by) };
                (usize::try_from(quotient).unwrap_or(usize::MAX), remainder == 0)
            }
        }
    )*};
}

key_arithmetic!(u32, u64, u128);

/// Keys that are each `step` above the one before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ArithmeticKeys<K> {
    first: K,
    step: K,
    len: usize,
}

impl<K: KeyArithmetic> ArithmeticKeys<K> {
    /// Returns the keys of these chunks if they are evenly spaced. Others are usually rejected within the first stride.
    pub(crate) fn detect<'a>(
        chunks: impl Iterator<Item = &'a [K]>,
        encoding: Encoding<K>,
    ) -> Option<Self> {
        /// Pairs of keys that are compared without a branch between two checks for the end.
        const STRIDE: usize = 512;
        let mut detected: Option<Self> = None;
        let mut last = K::ZERO;
        for chunk in chunks {
            let (Some(begin), Some(end)) = (chunk.first(), chunk.last()) else {
                continue;
            };
            let begin = encoding.encode(*begin);
            let known = match detected {
                Some(known) if known.step == begin.distance(last) => known,
                // One key alone does not define the step.
                Some(Self { first, len: 1, .. }) => Self {
                    first,
                    step: begin.distance(last),
                    len: 1,
                },
                Some(_) => return None,
                None => Self {
                    first: begin,
                    step: chunk
                        .get(1)
                        .map_or(K::ONE, |next| encoding.encode(*next).distance(begin)),
                    len: 0,
                },
            };
            let nexts = &chunk[1..];
            let mut strides = chunk.chunks(STRIDE).zip(nexts.chunks(STRIDE));
            let is_even = strides.all(|(keys, nexts)| {
                let pairs = keys.iter().zip(nexts);
                !pairs.fold(false, |differs, (key, next)| {
                    let step = encoding.encode(*next).distance(encoding.encode(*key));
                    differs | (step != known.step)
                })
            });
            if !is_even {
                return None;
            }
            last = encoding.encode(*end);
            detected = Some(Self {
                len: known.len + chunk.len(),
                ..known
            });
        }
        // Distances are computed modulo the width, so keys that descend or wrap around have equal distances, too.
        detected.filter(|keys| keys.step > K::ZERO && !keys.wraps_around())
    }

    /// Returns whether the last key would be above [`Key::MAX`].
    fn wraps_around(&self) -> bool {
        let (most, _) = K::MAX.distance(self.first).divide(self.step);
        self.len - 1 > most
    }

    /// Returns how many keys are below the bound or, unless `before_equal`, at most the bound.
    #[inline(always)]
    pub(crate) fn count_before(&self, bound: K, before_equal: bool) -> usize {
        if bound < self.first {
            return 0;
        }
        let (steps, exact) = bound.distance(self.first).divide(self.step);
        let equal = exact && before_equal;
        steps.saturating_add(usize::from(!equal)).min(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(chunks: &[&[u32]]) -> Option<ArithmeticKeys<u32>> {
        ArithmeticKeys::detect(chunks.iter().copied(), Encoding::unsigned())
    }

    #[test]
    fn positions_equal_those_found_by_counting() {
        let top = u32::MAX;
        let all: [&[u32]; 8] = [
            &[0, 1, 2, 3, 4, 5],
            &[7, 10, 13, 16],
            &[5],
            &[0],
            &[top],
            &[0, top],
            &[top - 6, top - 4, top - 2, top],
            &[0, 1 << 31],
        ];
        for keys in all {
            for split in 0..=keys.len() {
                let (head, tail) = keys.split_at(split);
                let even = detect(&[&[], head, &[], tail]).expect("even keys");
                assert_eq!(even.len, keys.len());
                let near = keys
                    .iter()
                    .flat_map(|key| [key.wrapping_sub(1), *key, key.wrapping_add(1)]);
                for bound in near.chain([0, 1, 1 << 30, top - 1, top]) {
                    let below = keys.iter().filter(|key| **key < bound).count();
                    let most = keys.iter().filter(|key| **key <= bound).count();
                    assert_eq!(even.count_before(bound, true), below, "{keys:?} {bound}");
                    assert_eq!(even.count_before(bound, false), most, "{keys:?} {bound}");
                }
            }
        }
    }

    #[test]
    fn unevenly_spaced_keys_are_rejected() {
        let top = u32::MAX;
        let all: [&[u32]; 6] = [
            &[],
            &[3, 3],
            &[3, 2, 1],
            &[1, 2, 3, 5],
            // These are 3 apart, modulo 2^32.
            &[top - 4, top - 1, 1, 4],
            &[0, 1 << 31, 0],
        ];
        for keys in all {
            for split in 0..=keys.len() {
                let (head, tail) = keys.split_at(split);
                assert_eq!(detect(&[head, tail]), None, "{keys:?} at {split}");
            }
        }
        for len in [511, 512, 513, 1025] {
            for odd in 1..len {
                let mut keys: Vec<u32> = (0..len).map(|i| 4 * i).collect();
                assert!(detect(&[&keys]).is_some());
                keys[odd as usize] += 1;
                assert_eq!(detect(&[&keys]), None, "{odd} of {len}");
            }
        }
    }
}
