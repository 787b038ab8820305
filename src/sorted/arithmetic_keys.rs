//! Sorted keys at one distance from each other, as positions and samples taken at a fixed rate have: where a bound stands among
//! them is computed, and no key is looked at.

#![allow(
    clippy::inline_always,
    clippy::needless_bitwise_bool,
    reason = "loops without branches"
)]

use crate::sorted::key_search::Number;
use rmq_engine::Encoding;

/// Keys of which each but the first is `step` above the one before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ArithmeticKeys<K> {
    first: K,
    step: K,
    len: usize,
}

impl<K: Number> ArithmeticKeys<K> {
    /// These keys, which come in pieces, if they are even. Others are seen soon, as a rule.
    pub(crate) fn of<'a>(
        chunks: impl Iterator<Item = &'a [K]>,
        encoding: Encoding<K>,
    ) -> Option<Self> {
        /// So many are looked at before it is asked whether to go on.
        const STRIDE: usize = 512;
        let mut even: Option<Self> = None;
        let mut last = K::ZERO;
        for chunk in chunks {
            let (Some(begin), Some(end)) = (chunk.first(), chunk.last()) else {
                continue;
            };
            let begin = encoding.encode(*begin);
            let known = match even {
                Some(known) if known.step == begin.distance(last) => known,
                // Of one key the step is not known yet.
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
            let mut pairs = chunk.chunks(STRIDE).zip(nexts.chunks(STRIDE));
            let is_even = pairs.all(|(keys, nexts)| {
                let pairs = keys.iter().zip(nexts);
                !pairs.fold(false, |uneven, (key, next)| {
                    let step = encoding.encode(*next).distance(encoding.encode(*key));
                    uneven | (step != known.step)
                })
            });
            if !is_even {
                return None;
            }
            last = encoding.encode(*end);
            even = Some(Self {
                len: known.len + chunk.len(),
                ..known
            });
        }
        // Distances are computed modulo the width, so keys that fall, or begin anew at zero, may look even.
        even.filter(|even| even.step > K::ZERO && !even.passes_the_greatest())
    }

    /// Whether the last key would be above the greatest that there is.
    fn passes_the_greatest(&self) -> bool {
        let (most, _) = K::MAX.distance(self.first).divided(self.step);
        self.len - 1 > most
    }

    /// How many keys are below the bound, or, unless `before_equal`, at most the bound.
    #[inline(always)]
    pub(crate) fn before(&self, bound: K, before_equal: bool) -> usize {
        if bound < self.first {
            return 0;
        }
        let (steps, exact) = bound.distance(self.first).divided(self.step);
        let equal = exact && before_equal;
        steps.saturating_add(usize::from(!equal)).min(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(chunks: &[&[u32]]) -> Option<ArithmeticKeys<u32>> {
        ArithmeticKeys::of(chunks.iter().copied(), Encoding::unsigned())
    }

    #[test]
    fn places_are_those_that_counting_finds() {
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
                let even = of(&[&[], head, &[], tail]).expect("even keys");
                assert_eq!(even.len, keys.len());
                let near = keys
                    .iter()
                    .flat_map(|key| [key.wrapping_sub(1), *key, key.wrapping_add(1)]);
                for bound in near.chain([0, 1, 1 << 30, top - 1, top]) {
                    let below = keys.iter().filter(|key| **key < bound).count();
                    let most = keys.iter().filter(|key| **key <= bound).count();
                    assert_eq!(even.before(bound, true), below, "{keys:?} {bound}");
                    assert_eq!(even.before(bound, false), most, "{keys:?} {bound}");
                }
            }
        }
    }

    #[test]
    fn other_keys_are_not_even() {
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
                assert_eq!(of(&[head, tail]), None, "{keys:?} at {split}");
            }
        }
        for len in [511, 512, 513, 1025] {
            for odd in 1..len {
                let mut keys: Vec<u32> = (0..len).map(|i| 4 * i).collect();
                assert!(of(&[&keys]).is_some());
                keys[odd as usize] += 1;
                assert_eq!(of(&[&keys]), None, "{odd} of {len}");
            }
        }
    }
}
