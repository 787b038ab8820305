//! The pairs of a probe batch that match by equality keys and range, taken in slices.

use std::ops::Range;

use arrow::array::RecordBatch;
use datafusion::common::Result;

use crate::common::ranges::Ranges;
use crate::common::row_number::{row_number, row_range, rows_between};
use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::probe::candidate_pairs::{CandidateSlice, NO_ROW, PairBuffer};
use crate::exec::range_join::probe::nearest_search::NearestSearch;
use crate::exec::range_join::probe::qualifying::QualifyingRows;

/// The pairs of a probe batch that match by equality keys and range, as far as they have not been taken. They are in
/// the order of probe rows, then of positions.
pub(crate) struct Candidates {
    pub(crate) batch: RecordBatch,
    ranges: Ranges,
    /// The candidates of the ranges that meet the join's threshold, if its index is used.
    pub(crate) qualifying: Option<QualifyingRows>,
    /// The current probe row.
    row: usize,
    /// How many positions of its range have been taken.
    taken: usize,
    /// Whether a pair of the current probe row has met the further condition.
    pub(crate) has_match: bool,
    /// Whether positions are taken from the end of each range on.
    pub(crate) descending: bool,
    /// The search for pairs, if only the nearest are returned and these are not the ends of ranges.
    pub(crate) nearest: Option<NearestSearch>,
}

impl Candidates {
    pub(crate) fn new(
        batch: RecordBatch,
        ranges: Ranges,
        qualifying: Option<QualifyingRows>,
    ) -> Self {
        Self {
            batch,
            ranges,
            qualifying,
            row: 0,
            taken: 0,
            has_match: false,
            descending: false,
            nearest: None,
        }
    }

    /// The current probe row.
    pub(crate) fn row(&self) -> usize {
        self.row
    }

    /// Leaves out the probe rows before this one.
    pub(crate) fn skip_to(&mut self, row: usize) {
        self.row = row;
    }

    pub(crate) fn is_done(&self) -> bool {
        match &self.nearest {
            Some(nearest) => nearest.is_done(),
            None => self.row >= self.ranges.len(),
        }
    }

    /// The number of the current probe row, and the positions of it that are not taken, at most `limit`. If these are
    /// all, the next row becomes the current one.
    pub(crate) fn next_positions(&mut self, limit: usize) -> Result<(u32, Range<u32>, bool)> {
        let row = self.row;
        let range = rows_between((self.ranges.left()[row], self.ranges.right()[row]))?;
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

    /// Takes candidates until `pairs` has `limit` pairs, and rows of NULLs for probe rows without any if these are
    /// kept.
    pub(crate) fn take_all(
        &mut self,
        limit: usize,
        keeps_probe_rows: bool,
        pairs: &mut PairBuffer,
    ) -> Result<()> {
        while pairs.len() < limit && !self.is_done() {
            let (row, positions, _) = self.next_positions(limit - pairs.len())?;
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

    /// Takes up to `limit` candidates, without those that are `matched`.
    pub(crate) fn take_slice(
        &mut self,
        limit: usize,
        matched: Option<&MatchedRows>,
    ) -> Result<CandidateSlice> {
        let mut slice = CandidateSlice::default();
        if let Some(qualifying) = &mut self.qualifying {
            let listed = qualifying.next(self.row, limit)?;
            slice.add_listed(listed, self.row, matched)?;
            self.row += listed.ends.len();
            return Ok(slice);
        }
        let mut seen = 0;
        while seen < limit && !self.is_done() {
            let (row, positions, is_last) = self.next_positions(limit - seen)?;
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
