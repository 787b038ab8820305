//! Searches of the rows of a probe batch that take candidates together, so that a condition is evaluated on those of
//! many rows at once.

use std::collections::VecDeque;
use std::ops::Range;

use datafusion::common::Result;

use crate::common::ranges::Ranges;
use crate::common::row_number::{row_number, rows_between};

/// The searches of some consecutive rows of a probe batch, each an `S`.
pub(crate) struct SearchWindow<S> {
    /// The ranges of all rows.
    pub(crate) ranges: Ranges,
    /// The number of rows that have been begun.
    begun: usize,
    /// Those that have been begun and not been returned.
    pub(crate) searches: VecDeque<S>,
    /// The most candidates that are taken at once, and the most searches.
    slice_rows: usize,
}

impl<S> SearchWindow<S> {
    /// The searches in these ranges. None has begun.
    pub(crate) fn new(ranges: Ranges, slice_rows: usize) -> Self {
        Self {
            ranges,
            begun: 0,
            searches: VecDeque::new(),
            slice_rows,
        }
    }

    /// Whether all rows have been returned.
    pub(crate) fn is_done(&self) -> bool {
        self.searches.is_empty() && self.begun == self.ranges.len()
    }

    /// Calls `take` with the number of each search and the room that is left for candidates; it returns how many it has
    /// taken. Lets `begin` begin further rows, in their ranges, as long as there is room for `first_candidates`.
    pub(crate) fn take_candidates(
        &mut self,
        first_candidates: usize,
        mut begin: impl FnMut(u32, Range<u32>) -> Result<S>,
        mut take: impl FnMut(usize, &mut S, usize) -> Result<usize>,
    ) -> Result<()> {
        let (mut number, mut room) = (0, self.slice_rows);
        loop {
            if number == self.searches.len() {
                let is_full = number >= self.slice_rows || room < first_candidates;
                let row = self.begun;
                if is_full || row == self.ranges.len() {
                    return Ok(());
                }
                let range = rows_between((self.ranges.left()[row], self.ranges.right()[row]))?;
                self.searches.push_back(begin(row_number(row)?, range)?);
                self.begun += 1;
            }
            room -= take(number, &mut self.searches[number], room)?;
            number += 1;
        }
    }
}
