//! The seam of key search: from bounds of keys to positions among sorted keys. The CPU and devices implement one trait.

use std::fmt::Debug;

use crate::candidates::CandidateRanges;
use crate::column::Column;
use crate::comparison::Comparison;
use crate::error::EngineError;
use crate::key::{Encoding, Key};

/// Ranges of keys to be found, one per query.
#[derive(Debug, Clone, Copy)]
pub struct KeyRanges<'a, K> {
    /// The start and the end (exclusive) of each query's segment of keys; `None` if all keys are one segment.
    pub segments: Option<(&'a [u32], &'a [u32])>,
    /// The lower bounds; `None` if ranges are unbounded below.
    pub low: Option<KeyBound<'a, K>>,
    /// The upper bounds; `None` if ranges are unbounded above.
    pub high: Option<KeyBound<'a, K>>,
}

/// One end of ranges of keys.
#[derive(Debug, Clone, Copy)]
pub struct KeyBound<'a, K> {
    /// The bound of each query.
    pub keys: &'a [K],
    /// Whether a key that equals the bound is in the range.
    pub inside: bool,
}

/// Sorted keys that can be searched. Shared between threads.
pub trait KeySearch<K: Key>: Send + Sync + Debug {
    /// Finds the first and the last position whose key is in each query's range, inclusive: 1 and 0 where there is
    /// none.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] if slices differ in length or a segment ends after the last key; errors of devices.
    fn search(
        &self,
        ranges: KeyRanges<'_, K>,
        left: &mut [i64],
        right: &mut [i64],
    ) -> Result<(), EngineError>;

    /// Intersects each row's candidates with the positions whose key compares so with the row's bound. Several bounds
    /// of a row, also several of one side, are applied one after another.
    ///
    /// `bounds` has one value per row. Its validity is ignored: rows with a NULL bound are emptied by the caller
    /// ([`CandidateRanges::retain_rows`]). `hints` are those of this bound, from earlier batches of the same stream;
    /// they change the speed only, and devices ignore them.
    ///
    /// # Errors
    /// As [`KeySearch::search`].
    fn narrow(
        &self,
        candidates: &mut CandidateRanges,
        comparison: Comparison,
        bounds: &Column<K>,
        hints: &mut BoundHints,
    ) -> Result<(), EngineError> {
        let _ = hints;
        let keys = encoded(bounds.bits(), bounds.encoding());
        let bound = Some(KeyBound {
            keys: &keys,
            inside: !comparison.is_strict(),
        });
        let (starts, ends) = (
            segment_ends(candidates.starts())?,
            segment_ends(candidates.ends())?,
        );
        let mut ranges = KeyRanges {
            segments: Some((&starts, &ends)),
            low: None,
            high: None,
        };
        if comparison.is_lower() {
            ranges.low = bound;
        } else {
            ranges.high = bound;
        }
        let (mut left, mut right) = (vec![0; starts.len()], vec![0; starts.len()]);
        self.search(ranges, &mut left, &mut right)?;
        candidates.set_inclusive(&left, &right);
        Ok(())
    }
}

fn encoded<K: Key>(bits: &[K], encoding: Encoding<K>) -> Vec<K> {
    bits.iter().map(|bits| encoding.encode(*bits)).collect()
}

fn segment_ends(positions: &[usize]) -> Result<Vec<u32>, EngineError> {
    let ends = positions.iter().map(|position| {
        u32::try_from(*position).map_err(|_| EngineError::TooLong { rows: *position })
    });
    ends.collect()
}

/// Where the searches of one stream ended, for each of its bounds: searches of the next batch begin there. Empty at
/// first.
#[derive(Debug, Default)]
pub struct SearchHints(Vec<BoundHints>);

impl SearchHints {
    /// Returns the hints of the bound with this number.
    pub fn of_bound(&mut self, bound: usize) -> &mut BoundHints {
        if self.0.len() <= bound {
            self.0.resize_with(bound + 1, BoundHints::default);
        }
        &mut self.0[bound]
    }
}

/// The hints of one bound. Empty at first.
#[derive(Debug, Default)]
pub struct BoundHints(Vec<GroupHint>);

impl BoundHints {
    /// Returns one hint per group, without a position if their number differs from before.
    pub(crate) fn of_groups(&mut self, groups: usize) -> &mut [GroupHint] {
        if self.0.len() != groups {
            self.0 = vec![GroupHint::NONE; groups];
        }
        &mut self.0
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Where the last search in a group of keys ended. The next one begins there, which is near where bounds ascend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupHint {
    pub(crate) position: u32,
    /// Estimated positions per unit of key distance; NaN if not known yet.
    pub(crate) slope: f32,
}

impl GroupHint {
    const NONE: Self = Self {
        position: 0,
        slope: f32::NAN,
    };
}

impl<K: Copy> KeyRanges<'_, K> {
    /// Checks that all slices have `n` entries and segments end within `keys` keys.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] with the name of the first slice of another length, or the greatest end of a segment.
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
}
