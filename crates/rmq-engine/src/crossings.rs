//! The seam of threshold searches: which end of a range is searched from, and the outputs of searches and of listings.

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
    /// A bitmap of `n.div_ceil(64)` words, least significant bit first: set if a row was found. Bits from `n` on are
    /// cleared.
    pub valid: &'a mut [u64],
}

impl Crossings<'_> {
    /// Checks that all slices fit `left`.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] with the name of the first slice that does not.
    pub fn check(&self, left: &[i64], right: &[i64], thresholds: usize) -> Result<(), EngineError> {
        let n = left.len();
        check_inputs(left, right, thresholds)?;
        check_length("the slice for positions", n, self.positions.len())?;
        let words = n.div_ceil(64);
        check_length("the bitmap of valid answers", words, self.valid.len())
    }
}

/// How many rows a listing may return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListLimits {
    /// The most rows of one range.
    pub per_range: usize,
    /// The most rows of all ranges together; at least 1.
    pub total: usize,
}

/// The rows that a listing has found.
#[derive(Debug, Default)]
pub struct RowList {
    /// The positions of the rows, range by range, ascending in each.
    pub positions: Vec<i64>,
    /// For each range that was listed to its end, or to the limit of one range, the end of its rows in `positions`. The
    /// range after these has been listed in part if there are more positions: to continue, it begins after the last of
    /// them.
    pub ends: Vec<usize>,
}

impl RowList {
    pub(crate) fn clear(&mut self) {
        self.positions.clear();
        self.ends.clear();
    }

    /// Begins with the next range.
    #[inline]
    pub(crate) fn begin_range(&mut self, limits: ListLimits) -> RangeRows<'_> {
        let of_range = self.positions.len().saturating_add(limits.per_range);
        RangeRows {
            stop: of_range.min(limits.total),
            positions: &mut self.positions,
        }
    }

    /// How many rows can be added to the range whose first row has this index among all rows.
    pub(crate) fn room(&self, first: usize, limits: ListLimits) -> usize {
        let stop = first.saturating_add(limits.per_range).min(limits.total);
        stop.saturating_sub(self.positions.len())
    }

    /// Ends the range whose first row has this index among all rows. Returns whether there is room for a further range.
    #[inline]
    pub(crate) fn end_range(&mut self, first: usize, limits: ListLimits) -> bool {
        let end = self.positions.len();
        if end < limits.total || end == first.saturating_add(limits.per_range) {
            self.ends.push(end);
        }
        end < limits.total
    }
}

/// The rows of one range of a listing.
pub(crate) struct RangeRows<'a> {
    positions: &'a mut Vec<i64>,
    /// The number of positions at which the range ends.
    stop: usize,
}

impl RangeRows<'_> {
    /// Whether a row can be added.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.positions.len() < self.stop
    }

    /// Adds a row. Returns whether there is room for a further one.
    #[inline]
    pub(crate) fn add(&mut self, position: i64) -> bool {
        self.positions.push(position);
        self.has_room()
    }
}

/// Checks that the inputs of a batch of threshold searches fit `left`.
pub(crate) fn check_inputs(
    left: &[i64],
    right: &[i64],
    thresholds: usize,
) -> Result<(), EngineError> {
    let n = left.len();
    for (what, found) in [
        ("the slice of right bounds", right.len()),
        ("the slice of thresholds", thresholds),
    ] {
        check_length(what, n, found)?;
    }
    Ok(())
}

/// Checks the length of a slice.
pub(crate) fn check_length(
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), EngineError> {
    if expected == found {
        return Ok(());
    }
    Err(EngineError::Lengths {
        what,
        expected,
        found,
    })
}
