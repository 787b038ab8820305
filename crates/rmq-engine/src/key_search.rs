//! Finding rows by their keys: from ranges of keys to the positions where these stand.

use std::fmt::Debug;
use std::ops::Range;

use crate::error::EngineError;
use crate::key::Key;

/// Keys that ascend, in one segment or in several, one after another.
#[derive(Clone, Copy)]
pub struct SortedKeys<'a, K> {
    /// How many there are, fewer than 2^32.
    pub len: usize,
    /// Writes keys, from this position on.
    pub fill: &'a (dyn Fn(usize, &mut [K]) + Sync),
}

/// Ranges of keys to be found, one a query.
#[derive(Debug, Clone, Copy)]
pub struct KeyRanges<'a, K> {
    /// Of each query the first position of its segment and that behind its last; where not said, all keys are one segment.
    pub segments: Option<(&'a [u32], &'a [u32])>,
    /// From where on.
    pub low: Option<KeyBound<'a, K>>,
    /// Up to where.
    pub high: Option<KeyBound<'a, K>>,
}

/// One end of ranges of keys.
#[derive(Debug, Clone, Copy)]
pub struct KeyBound<'a, K> {
    /// The end of each range.
    pub keys: &'a [K],
    /// Whether a key that equals it lies within.
    pub inside: bool,
}

/// Sorted keys made ready to be searched. Shared between threads.
pub trait KeySearch<K: Key>: Send + Sync + Debug {
    /// Bytes of GPU memory that this object owns, on each of its devices.
    fn device_bytes(&self) -> usize;

    /// For each query the positions whose keys lie in its range, both inclusive: 1 and 0 where there are none.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] where slices do not fit each other, and what devices fail with.
    fn search(
        &self,
        asked: KeyRanges<'_, K>,
        left: &mut [i64],
        right: &mut [i64],
    ) -> Result<(), EngineError>;
}

impl<'a, K: Copy> KeyRanges<'a, K> {
    /// That all slices have `n` entries, and segments lie within so many keys.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] with the name of the first slice that has not, and the segment's end.
    pub(crate) fn check(&self, n: usize, keys: u32) -> Result<(), EngineError> {
        let slices = [
            ("the starts of segments", self.segments.map(|s| s.0.len())),
            ("the ends of segments", self.segments.map(|s| s.1.len())),
            ("the lower bounds", self.low.map(|bound| bound.keys.len())),
            ("the upper bounds", self.high.map(|bound| bound.keys.len())),
        ];
        for (what, found) in slices {
            if let Some(found) = found.filter(|found| *found != n) {
                return Err(EngineError::Lengths {
                    what,
                    expected: n,
                    found,
                });
            }
        }
        let ends = self.segments.and_then(|(_, ends)| ends.iter().max());
        match ends.filter(|end| **end > keys) {
            Some(end) => Err(EngineError::Lengths {
                what: "the sorted keys, where a segment ends behind them,",
                expected: *end as usize,
                found: keys as usize,
            }),
            None => Ok(()),
        }
    }

    /// Some of the queries.
    pub(crate) fn part(&self, queries: Range<usize>) -> Self {
        let bound = |bound: KeyBound<'a, K>| KeyBound {
            keys: &bound.keys[queries.clone()],
            ..bound
        };
        Self {
            segments: (self.segments)
                .map(|(from, to)| (&from[queries.clone()], &to[queries.clone()])),
            low: self.low.map(bound),
            high: self.high.map(bound),
        }
    }
}
