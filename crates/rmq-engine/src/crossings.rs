//! The seam of threshold searches: which end of a range is searched from, and the outputs.

use crate::error::EngineError;

/// The end of a range that a search begins at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RangeEnd {
    /// The leftmost row is found.
    First,
    /// The rightmost row is found.
    Last,
}

impl RangeEnd {
    /// Returns `first` or `last`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Last => "last",
        }
    }
}

/// The outputs of `n` threshold searches.
#[derive(Debug)]
pub struct Crossings<'a> {
    /// The position of the row found, 0-based: `n` of them. 0 if no row of the range qualifies.
    pub positions: &'a mut [i64],
    /// A bitmap of `n.div_ceil(64)` words, least significant bit first: set if a row was found. Bits from `n` on are cleared.
    pub valid: &'a mut [u64],
}

impl Crossings<'_> {
    /// Checks that all slices fit `left`.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] with the name of the first slice that does not.
    pub fn check(&self, left: &[i64], right: &[i64], thresholds: usize) -> Result<(), EngineError> {
        let n = left.len();
        for (what, expected, found) in [
            ("the slice of right bounds", n, right.len()),
            ("the slice of thresholds", n, thresholds),
            ("the slice for positions", n, self.positions.len()),
            (
                "the bitmap of valid answers",
                n.div_ceil(64),
                self.valid.len(),
            ),
        ] {
            if expected != found {
                return Err(EngineError::Lengths {
                    what,
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }
}
