//! The pairs of a probe batch that match by equality keys and range, taken in slices.

use std::ops::Range;

use datafusion::common::Result;

use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::probe::candidate_pairs::{CandidateSlice, NO_ROW, PairBuffer};
use crate::exec::range_join::probe::qualifying::QualifyingRows;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::common::row_number::{row_number, row_range};

/// How much a step of a search takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepLimit {
    /// The most pairs that there are after it, or candidates that are looked at.
    pub(crate) pairs: usize,
    /// The most probe rows that it ends.
    pub(crate) rows: usize,
}

impl StepLimit {
    /// The limit of a step after which there are this many pairs.
    pub(crate) fn of_pairs(pairs: usize) -> Self {
        Self {
            pairs,
            rows: usize::MAX,
        }
    }

    /// The limit of a step where there are this many pairs already.
    pub(crate) fn without(self, pairs: usize) -> Self {
        Self {
            pairs: self.pairs - pairs,
            ..self
        }
    }
}

/// The pairs of a probe batch that match by equality keys and range, as far as they have not been taken. They are in
/// the order of probe rows, then of positions.
pub(crate) struct Candidates {
    pub(crate) ranges: Ranges,
    /// The candidates of the ranges that meet the join's threshold, if its index is used.
    pub(crate) qualifying: Option<QualifyingRows>,
    /// The current probe row.
    row: usize,
    /// How many positions of its range have been taken.
    taken: usize,
    /// Whether candidates of it have been listed, but not its last.
    is_listed: bool,
    /// Whether a pair of the current probe row has met the further condition.
    pub(crate) has_match: bool,
    /// Whether positions are taken from the end of each range on.
    descending: bool,
}

impl Candidates {
    pub(crate) fn new(ranges: Ranges, descending: bool) -> Self {
        Self {
            ranges,
            qualifying: None,
            row: 0,
            taken: 0,
            is_listed: false,
            has_match: false,
            descending,
        }
    }

    /// The current probe row, if none of its candidates has been taken.
    pub(crate) fn next_row(&self) -> Option<usize> {
        (self.taken == 0 && !self.is_listed).then_some(self.row)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.row >= self.ranges.len()
    }

    /// The number of the current probe row, and the positions of it that are not taken, at most `limit`. If these are
    /// all, the next row becomes the current one.
    fn next_positions(&mut self, limit: usize) -> Result<(u32, Range<u32>, bool)> {
        let row = self.row;
        let range = self.ranges.rows_of(row)?;
        let range = range.start as usize..range.end as usize;
        let rest = range.len() - self.taken;
        let rows = rest.min(limit);
        let start = if self.descending {
            range.start + rest - rows
        } else {
            range.start + self.taken
        };
        let end = start + rows;
        self.taken += rows;
        let is_last = rows == rest;
        if is_last {
            self.row += 1;
            self.taken = 0;
        }
        Ok((row_number(row)?, row_range(start..end)?, is_last))
    }

    /// Marks build rows of candidates, about `limit`.
    pub(crate) fn mark_all(&mut self, limit: usize, matched: &MatchedRows) -> Result<()> {
        let mut room = limit;
        while room > 0 && !self.is_done() {
            let (_, positions, _) = self.next_positions(room)?;
            room = room.saturating_sub(positions.len().max(1));
            matched.mark_range(positions.start as usize..positions.end as usize);
        }
        Ok(())
    }

    /// Takes candidates until `pairs` has as many as the limit says, and rows of NULLs for probe rows without any if
    /// these are kept.
    pub(crate) fn take_all(
        &mut self,
        limit: StepLimit,
        keeps_probe_rows: bool,
        pairs: &mut PairBuffer,
    ) -> Result<()> {
        let first = self.row;
        while pairs.len() < limit.pairs && self.row - first < limit.rows && !self.is_done() {
            let (row, positions, _) = self.next_positions(limit.pairs - pairs.len())?;
            if positions.is_empty() && keeps_probe_rows {
                pairs.add(row, NO_ROW);
            }
            pairs.rows.resize(pairs.rows.len() + positions.len(), row);
            if self.descending {
                pairs.positions.extend(positions.rev());
            } else {
                pairs.positions.extend(positions);
            }
        }
        Ok(())
    }

    /// Takes some candidates, without those that are `matched`.
    pub(crate) fn take_slice(
        &mut self,
        limit: StepLimit,
        matched: Option<&MatchedRows>,
    ) -> Result<CandidateSlice> {
        let mut slice = CandidateSlice::default();
        if let Some(qualifying) = &mut self.qualifying {
            let listed = qualifying.next(self.row, limit.rows, limit.pairs)?;
            slice.add_listed(listed, self.row, matched)?;
            self.row += listed.ends.len();
            self.is_listed = listed.positions.len() > listed.ends.last().copied().unwrap_or(0);
            return Ok(slice);
        }
        let (mut seen, first) = (0, self.row);
        while seen < limit.pairs && self.row - first < limit.rows && !self.is_done() {
            let (row, positions, is_last) = self.next_positions(limit.pairs - seen)?;
            // A row without candidates takes time, too.
            seen += positions.len().max(1);
            slice.add(row, positions, matched);
            if is_last {
                slice.ended.push((row, slice.rows.len()));
            }
        }
        Ok(slice)
    }
}
