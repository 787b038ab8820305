//! The next value that is not NULL: a tree of bitmaps with 64 children per node.
//!
//! NULL has the greatest key, so it never replaces a smaller one. If a range's minimum is the greatest key, the range
//! may have only NULLs. The first position that is not NULL then decides whether there is a value, and is the leftmost
//! position of the minimum, because all values of the range are equal.

use crate::cpu::huge_page_buf::HugePageBytes;
use crate::error::EngineError;

/// The most levels of bitmaps: 64^8 bits exceed the number of positions.
const HEIGHT: usize = 8;

/// The valid positions of a column.
#[derive(Debug)]
pub(crate) struct NextValid {
    memory: HugePageBytes,
    /// The first word of each bitmap. The last bitmap has one word.
    start: [usize; HEIGHT],
    words: [usize; HEIGHT],
}

/// Returns the number of words of each bitmap for `len` positions.
fn words_of(len: usize) -> [usize; HEIGHT] {
    let mut words = [0; HEIGHT];
    let mut below = len;
    for words in &mut words {
        below = below.div_ceil(64);
        *words = below;
        if below <= 1 {
            break;
        }
    }
    words
}

impl NextValid {
    /// Returns the bytes for a column of `len` values.
    pub(crate) fn bytes_for(len: usize) -> usize {
        words_of(len).iter().sum::<usize>() * 8
    }

    /// Allocates bitmaps in which no position is valid.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`].
    pub(crate) fn new(len: usize) -> Result<Self, EngineError> {
        let words = words_of(len);
        let mut start = [0; HEIGHT];
        for level in 1..HEIGHT {
            start[level] = start[level - 1] + words[level - 1];
        }
        Ok(Self {
            memory: HugePageBytes::zeroed(Self::bytes_for(len))?,
            start,
            words,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn level(&self, level: usize) -> &[u64] {
        self.memory.slice(self.start[level] * 8, self.words[level])
    }

    /// The bits of all positions, which are set before [`NextValid::finish`].
    pub(crate) fn leaves(&mut self) -> &mut [u64] {
        self.memory.slice_mut(0, self.words[0])
    }

    /// Computes the upper bitmaps.
    pub(crate) fn finish(&mut self) {
        for level in 1..HEIGHT {
            if self.words[level] == 0 {
                break;
            }
            for word in 0..self.words[level] {
                let below = self.level(level - 1);
                let from = word * 64;
                let below = &below[from..below.len().min(from + 64)];
                let mut bits = 0;
                for (i, word) in below.iter().enumerate() {
                    bits |= u64::from(*word != 0) << i;
                }
                let (start, words) = (self.start[level] * 8, self.words[level]);
                self.memory.slice_mut::<u64>(start, words)[word] = bits;
            }
        }
    }

    /// Returns the first valid position from `from` on.
    pub(crate) fn next(&self, from: usize) -> Option<usize> {
        let mut at = from;
        for level in 0..HEIGHT {
            let words = self.level(level);
            let bits = words.get(at / 64).copied().unwrap_or(0) & (!0 << (at % 64));
            if bits != 0 {
                at = at / 64 * 64 + bits.trailing_zeros() as usize;
                for below in (0..level).rev() {
                    // A set bit means that the word below is not zero.
                    at = at * 64 + self.level(below)[at].trailing_zeros() as usize;
                }
                return Some(at);
            }
            at = at / 64 + 1;
        }
        None
    }

    /// Returns the last valid position up to `from`, which is a position of the column.
    pub(crate) fn previous(&self, from: usize) -> Option<usize> {
        // One past the position, so that 0 means that nothing is left.
        let mut end = from + 1;
        for level in 0..HEIGHT {
            let word = end.checked_sub(1)? / 64;
            let bits = self.level(level).get(word).copied().unwrap_or(0);
            let bits = bits & (!0 >> (63 - (end - 1) % 64));
            if bits != 0 {
                let last = |bits: u64| 63 - bits.leading_zeros() as usize;
                let mut at = word * 64 + last(bits);
                for below in (0..level).rev() {
                    // A set bit means that the word below is not zero.
                    at = at * 64 + last(self.level(below)[at]);
                }
                return Some(at);
            }
            end = word;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_and_previous_are_the_nearest_set_bits() {
        for len in [1, 63, 64, 65, 4095, 4096, 4097, 300_000] {
            for stride in [1, 7, 64, 5000, usize::MAX] {
                let mut tree = NextValid::new(len).expect("small");
                let set =
                    |i: usize| i % stride == stride / 2 || (stride == usize::MAX && i == len - 1);
                for i in 0..len {
                    tree.leaves()[i / 64] |= u64::from(set(i)) << (i % 64);
                }
                tree.finish();
                let mut expected = None;
                for i in (0..len).rev() {
                    if set(i) {
                        expected = Some(i);
                    }
                    assert_eq!(tree.next(i), expected, "len {len} stride {stride} at {i}");
                }
                assert_eq!(tree.next(len), None);
                let mut expected = None;
                for i in 0..len {
                    if set(i) {
                        expected = Some(i);
                    }
                    assert_eq!(
                        tree.previous(i),
                        expected,
                        "len {len} stride {stride} at {i}"
                    );
                }
            }
        }
    }
}
