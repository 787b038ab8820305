//! Searches of the rows of a probe batch that take candidates together, so that a condition is evaluated on those of
//! many rows at once.
//!
//! Each search takes positions from an end of what is left of its range, twice as many each time. What they have in
//! common is here; they differ in when they end, and in what is known of the positions that are left.

use std::collections::VecDeque;
use std::ops::Range;

use datafusion::common::Result;

use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::common::row_number::row_number;
use rmq_engine::RangeEnd;

/// Takes the positions at an end of a range, at most `most`, from the outermost on. Returns how many.
pub(crate) fn take_from(
    end: RangeEnd,
    rest: &mut Range<u32>,
    most: usize,
    positions: &mut Vec<u32>,
) -> Result<usize> {
    let taken = row_number(most.min(rest.len()))?;
    match end {
        RangeEnd::First => {
            let next = rest.start + taken;
            positions.extend(rest.start..next);
            rest.start = next;
        }
        RangeEnd::Last => {
            let next = rest.end - taken;
            positions.extend((next..rest.end).rev());
            rest.end = next;
        }
    }
    Ok(taken as usize)
}

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
                let range = self.ranges.rows_of(row)?;
                self.searches.push_back(begin(row_number(row)?, range)?);
                self.begun += 1;
            }
            room -= take(number, &mut self.searches[number], room)?;
            number += 1;
        }
    }
}
