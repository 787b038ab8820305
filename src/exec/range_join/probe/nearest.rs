//! Finds, for each probe row, the build rows that are nearest an end of its range, and meet a further condition if there is one.
//!
//! Without a condition a range is clipped. With one, it is evaluated on slices of candidates of many probe rows, from the end on. Each time a row has no
//! more than some candidates, twice as many as the time before, and none after its last match: at most about twice as many candidates are evaluated as
//! come before that one. Rows are returned in their order, so those that end early wait for the ones before them. As rows that wait leave no room for
//! new ones, few positions are kept.

use std::collections::VecDeque;
use std::ops::Range;

use arrow::array::{RecordBatch, UInt32Array};
use datafusion::common::Result;
use datafusion::physical_plan::joins::utils::JoinFilter;

use crate::common::ranges::Ranges;
use crate::exec::range_join::build::side::BuildSide;
use crate::exec::range_join::row_join::RowJoin;
use crate::logical_plan::nearest_rows::RowLimit;

/// The least number of candidates that a row begins with.
const FIRST_CANDIDATES: usize = 4;

/// Clips ranges to the positions that are returned.
pub(crate) fn clip(ranges: &Ranges, limit: RowLimit) -> Ranges {
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let skip = number(limit.skip);
    let clipped = ranges.iter().map(|(left, right)| {
        let rows = (right - left + 1).saturating_sub(skip).max(0);
        let rows = limit.fetch.map_or(rows, |fetch| rows.min(number(fetch)));
        match rows {
            0 => (0, -1),
            _ if limit.descending => (right - skip - rows + 1, right - skip),
            _ => (left + skip, left + skip + rows - 1),
        }
    });
    clipped.collect()
}

/// The search for the nearest matches of the rows of a probe batch.
pub(crate) struct NearestMatches {
    limit: RowLimit,
    /// The positions of the rows that have not been begun.
    ranges: std::vec::IntoIter<Range<u32>>,
    /// The number of rows that have been begun.
    begun: u32,
    /// Rows that have been begun and not been returned.
    window: VecDeque<RowSearch>,
    /// The number of candidates that a row begins with.
    first_candidates: usize,
    /// The most candidates that are evaluated at once.
    slice_rows: usize,
}

/// The search for the matches of one probe row.
struct RowSearch {
    row: u32,
    /// The positions that have not been looked at.
    rest: Range<u32>,
    /// The most candidates of the next slice.
    candidates: usize,
    /// How many matches are still to be left out.
    skip: usize,
    /// How many matches are still wanted.
    wanted: usize,
    /// Matches that have not been returned.
    found: Vec<u32>,
    has_match: bool,
}

impl NearestMatches {
    /// The search in these ranges, one for each row of a probe batch.
    pub(crate) fn new(ranges: &Ranges, limit: RowLimit, slice_rows: usize) -> Self {
        let positions = ranges.iter().map(|(left, right)| {
            // Build sides have fewer than 2^32 rows.
            let (start, end) = (u32::try_from(left), u32::try_from(right + 1));
            start.unwrap_or(0)..end.unwrap_or(0)
        });
        let most = limit.skip.saturating_add(limit.fetch.unwrap_or(usize::MAX));
        Self {
            limit,
            ranges: positions.collect::<Vec<_>>().into_iter(),
            begun: 0,
            window: VecDeque::new(),
            first_candidates: most.max(FIRST_CANDIDATES).min(slice_rows),
            slice_rows,
        }
    }

    /// Whether all matches have been returned.
    pub(crate) fn is_done(&self) -> bool {
        self.window.is_empty() && self.ranges.len() == 0
    }

    /// Evaluates the condition on one slice of candidates.
    pub(crate) fn step(
        &mut self,
        residual: &JoinFilter,
        batch: &RecordBatch,
        build: &BuildSide,
    ) -> Result<()> {
        let (mut rows, mut positions, mut taken) = (vec![], vec![], vec![]);
        let mut index = 0;
        loop {
            let room = self.slice_rows - positions.len();
            if index == self.window.len() {
                let is_full = index >= self.slice_rows || room < self.first_candidates;
                if is_full {
                    break;
                }
                let Some(range) = self.ranges.next() else {
                    break;
                };
                let search = RowSearch::new(self.begun, range, self.limit, self.first_candidates);
                self.begun += 1;
                self.window.push_back(search);
            }
            let search = &mut self.window[index];
            search.take(room, self.limit.descending, &mut positions);
            taken.push(positions.len());
            rows.resize(positions.len(), search.row);
            index += 1;
        }
        if positions.is_empty() {
            return Ok(());
        }
        let positions = UInt32Array::from(positions);
        let pairs = (&UInt32Array::from(rows), &positions);
        let met = RowJoin::meet_residual(residual, batch, &build.row_columns, pairs)?;
        let mut start = 0;
        for (search, end) in self.window.iter_mut().zip(taken) {
            let met = (start..end).filter(|i| met.value(*i));
            met.for_each(|i| search.add(positions.value(i)));
            start = end;
        }
        Ok(())
    }

    /// Returns the matches that are known, by row and in order: each with its position, and a row without a match once with `None`.
    pub(crate) fn take_found(&mut self, mut returned: impl FnMut(u32, Option<u32>)) {
        while let Some(search) = self.window.front_mut() {
            let found = search.found.drain(..);
            found.for_each(|position| returned(search.row, Some(position)));
            if !search.rest.is_empty() {
                return;
            }
            if !search.has_match {
                returned(search.row, None);
            }
            self.window.pop_front();
        }
    }
}

impl RowSearch {
    fn new(row: u32, range: Range<u32>, limit: RowLimit, candidates: usize) -> Self {
        let wanted = limit.fetch.unwrap_or(usize::MAX);
        Self {
            row,
            rest: if wanted == 0 { 0..0 } else { range },
            candidates,
            skip: limit.skip,
            wanted,
            found: vec![],
            has_match: false,
        }
    }

    /// Takes the next candidates, at most `room`.
    fn take(&mut self, room: usize, descending: bool, positions: &mut Vec<u32>) {
        let candidates = self.candidates.min(room).min(self.rest.len());
        // At most the length of the rest, which is a 32-bit number.
        let taken = u32::try_from(candidates).unwrap_or(u32::MAX);
        if descending {
            let start = self.rest.end - taken;
            positions.extend((start..self.rest.end).rev());
            self.rest.end = start;
        } else {
            let end = self.rest.start + taken;
            positions.extend(self.rest.start..end);
            self.rest.start = end;
        }
        if candidates == self.candidates {
            self.candidates *= 2;
        }
    }

    /// Adds a match.
    fn add(&mut self, position: u32) {
        if self.skip > 0 {
            self.skip -= 1;
        } else if self.wanted > 0 {
            self.wanted -= 1;
            self.found.push(position);
            self.has_match = true;
            if self.wanted == 0 {
                self.rest = 0..0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_clipped_from_either_end() {
        let ranges: Ranges = [(10, 19), (5, 5), (3, 2)].into_iter().collect();
        let clipped = |descending, skip, fetch| {
            let limit = RowLimit {
                descending,
                skip,
                fetch,
            };
            clip(&ranges, limit).iter().collect::<Vec<_>>()
        };
        let empty = (0, -1);
        assert_eq!(clipped(false, 0, Some(3)), [(10, 12), (5, 5), empty]);
        assert_eq!(clipped(true, 0, Some(3)), [(17, 19), (5, 5), empty]);
        assert_eq!(clipped(false, 8, Some(3)), [(18, 19), empty, empty]);
        assert_eq!(clipped(true, 8, Some(1)), [(11, 11), empty, empty]);
        assert_eq!(clipped(true, 0, None), [(10, 19), (5, 5), empty]);
        assert_eq!(clipped(false, usize::MAX, None), [empty; 3]);
        assert_eq!(clipped(true, 1, Some(usize::MAX)), [(10, 18), empty, empty]);
        assert_eq!(clipped(false, 0, Some(0)), [empty; 3]);
    }
}
