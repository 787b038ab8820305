//! Finds, for each probe row, the first build row in its range that meets a further condition, where the join only
//! needs to know whether there is one.
//!
//! Candidates are the rows of the range, or those of them that meet the join's threshold, which its index lists.
//!
//! The condition is evaluated in slices of candidates of many probe rows. Each round takes twice as many candidates of
//! a row as the one before it, and a row with a match takes part in no further round: at most about twice as many
//! candidates are evaluated as come before the first match.

use std::ops::Range;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::physical_plan::joins::utils::JoinFilter;

use crate::common::ranges::Ranges;
use crate::common::row_number::{row_number, row_numbers, rows_between};
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::candidate_pairs::CandidateSlice;
use crate::exec::range_join::probe::qualifying::QualifyingRows;

/// The number of candidates of each row in the first round.
const FIRST_CANDIDATES: usize = 4;

/// The search for the first match of each row of a probe batch.
pub(crate) struct FirstMatches<'a> {
    /// `None` if the first candidates are the matches.
    residual: Option<&'a JoinFilter>,
    /// The rows of the ranges that are candidates; `None` if all are.
    qualifying: Option<QualifyingRows>,
    batch: &'a RecordBatch,
    build: &'a BuildSide,
    /// The most candidates that are evaluated at once.
    slice_rows: usize,
    /// The rows that have candidates in this round, the last one first.
    undecided: Vec<Undecided>,
    /// The rows that have candidates in the next round.
    next_round: Vec<Undecided>,
    /// The number of candidates of each row in this round.
    candidates: usize,
    found: Vec<(i64, i64)>,
}

/// A probe row without a match so far, and the positions that have not been looked at.
#[derive(Clone, Copy)]
struct Undecided {
    row: u32,
    start: u32,
    end: u32,
}

/// A range without rows.
const EMPTY: (i64, i64) = (0, -1);

impl<'a> FirstMatches<'a> {
    /// The search in these ranges of the rows of a batch.
    pub(crate) fn new(
        residual: &'a JoinFilter,
        batch: &'a RecordBatch,
        build: &'a BuildSide,
        ranges: &Ranges,
        slice_rows: usize,
    ) -> Result<Self> {
        let mut undecided = vec![];
        for (row, range) in (0..).zip(ranges.iter()) {
            let Range { start, end } = rows_between(range)?;
            if start < end {
                undecided.push(Undecided { row, start, end });
            }
        }
        undecided.reverse();
        Ok(Self {
            residual: Some(residual),
            qualifying: None,
            batch,
            build,
            slice_rows,
            undecided,
            next_round: vec![],
            candidates: FIRST_CANDIDATES.min(slice_rows),
            found: vec![EMPTY; ranges.len()],
        })
    }

    /// The search among the rows that meet a threshold, with the rest of the condition.
    pub(crate) fn among(
        qualifying: QualifyingRows,
        rest: Option<&'a JoinFilter>,
        batch: &'a RecordBatch,
        build: &'a BuildSide,
        ranges: &Ranges,
        slice_rows: usize,
    ) -> Result<Self> {
        let Some(rest) = rest else {
            let found = qualifying.first()?;
            return Ok(Self {
                residual: None,
                qualifying: None,
                batch,
                build,
                slice_rows,
                undecided: vec![],
                next_round: vec![],
                candidates: 0,
                found: found.iter().collect(),
            });
        };
        Ok(Self {
            qualifying: Some(qualifying),
            ..Self::new(rest, batch, build, ranges, slice_rows)?
        })
    }

    /// For each row the range of its first match, or an empty one. To be called after [`Self::step`] has returned
    /// false.
    pub(crate) fn finish(self) -> Ranges {
        self.found.into_iter().collect()
    }

    /// Evaluates one slice of candidates. Returns whether there are more.
    pub(crate) fn step(&mut self) -> Result<bool> {
        let Some(residual) = self.residual else {
            return Ok(false);
        };
        if self.undecided.is_empty() {
            self.undecided = std::mem::take(&mut self.next_round);
            self.undecided.reverse();
            self.candidates = (2 * self.candidates).min(self.slice_rows);
        }
        let slice = match &self.qualifying {
            Some(qualifying) => {
                let taken = (self.slice_rows / self.candidates).min(self.undecided.len());
                let mut taken = self.undecided.split_off(self.undecided.len() - taken);
                taken.reverse();
                take_qualifying(qualifying, taken, self.candidates)?
            }
            None => take_slice(&mut self.undecided, self.candidates, self.slice_rows)?,
        };
        let slice = slice.meeting(Some(residual), self.batch, self.build)?;
        let mut first = 0;
        for (undecided, end) in slice.ended {
            if let [position, ..] = slice.positions[first..end] {
                let position = i64::from(position);
                self.found[undecided.row as usize] = (position, position);
            } else if undecided.start < undecided.end {
                self.next_round.push(undecided);
            }
            first = end;
        }
        Ok(!self.undecided.is_empty() || !self.next_round.is_empty())
    }
}

/// Candidates of rows, each with the positions that are left after these.
type Slice = CandidateSlice<Undecided>;

/// The next positions of rows, `candidates` of each, as long as all together are at most `limit`.
fn take_slice(undecided: &mut Vec<Undecided>, candidates: usize, limit: usize) -> Result<Slice> {
    let mut slice = Slice::default();
    let most = row_number(candidates)?;
    while slice.positions.len() + candidates <= limit
        && let Some(mut row) = undecided.pop()
    {
        let end = row.end.min(row.start.saturating_add(most));
        slice.positions.extend(row.start..end);
        row.start = end;
        slice.end(row, row.row);
    }
    Ok(slice)
}

/// The next positions of rows that qualify, `candidates` of each.
fn take_qualifying(
    qualifying: &QualifyingRows,
    undecided: Vec<Undecided>,
    candidates: usize,
) -> Result<Slice> {
    let rows = undecided.iter();
    let rows = rows.map(|row| (row.row as usize, i64::from(row.start)));
    let listed = qualifying.list_from(&rows.collect::<Vec<_>>(), candidates)?;
    let positions = row_numbers(listed.positions.iter().copied())?;
    let (mut slice, mut start) = (Slice::default(), 0);
    for (mut row, end) in undecided.into_iter().zip(listed.ends) {
        let of_row = &positions[start..end];
        slice.positions.extend(of_row);
        row.start = match of_row.last() {
            Some(last) if of_row.len() == candidates => last + 1,
            _ => row.end,
        };
        slice.end(row, row.row);
        start = end;
    }
    Ok(slice)
}
