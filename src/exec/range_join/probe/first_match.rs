//! Finds, for each probe row, the first build row in its range that meets a further condition, where the join only needs to know whether there is one.
//!
//! The condition is evaluated in slices of candidates of many probe rows. Each round takes twice as many candidates of a row as the one before it,
//! and a row with a match takes part in no further round: at most about twice as many candidates are evaluated as come before the first match.

use arrow::array::{RecordBatch, UInt32Array};
use datafusion::common::Result;
use datafusion::physical_plan::joins::utils::JoinFilter;

use crate::common::ranges::Ranges;
use crate::exec::range_join::build::side::BuildSide;
use crate::exec::range_join::row_join::RowJoin;

/// The number of candidates of each row in the first round.
const FIRST_CANDIDATES: usize = 4;

/// The search for the first match of each row of a probe batch.
pub(crate) struct FirstMatches<'a> {
    residual: &'a JoinFilter,
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
    /// The search in these ranges of the rows of `batch`.
    pub(crate) fn new(
        residual: &'a JoinFilter,
        batch: &'a RecordBatch,
        build: &'a BuildSide,
        ranges: &Ranges,
        slice_rows: usize,
    ) -> Self {
        let rows = (0_u32..).zip(ranges.iter());
        let undecided = rows.filter_map(|(row, (left, right))| {
            let (start, end) = (u32::try_from(left).ok()?, u32::try_from(right + 1).ok()?);
            (start < end).then_some(Undecided { row, start, end })
        });
        let mut undecided: Vec<_> = undecided.collect();
        undecided.reverse();
        Self {
            residual,
            batch,
            build,
            slice_rows,
            undecided,
            next_round: vec![],
            candidates: FIRST_CANDIDATES.min(slice_rows),
            found: vec![EMPTY; ranges.len()],
        }
    }

    /// For each row the range of its first match, or an empty one. To be called after [`Self::step`] has returned false.
    pub(crate) fn finish(self) -> Ranges {
        self.found.into_iter().collect()
    }

    /// Evaluates one slice of candidates. Returns whether there are more.
    pub(crate) fn step(&mut self) -> Result<bool> {
        if self.undecided.is_empty() {
            self.undecided = std::mem::take(&mut self.next_round);
            self.undecided.reverse();
            self.candidates = (2 * self.candidates).min(self.slice_rows);
        }
        let (mut rows, mut positions) = (vec![], vec![]);
        let mut slice = vec![];
        while positions.len() + self.candidates <= self.slice_rows
            && let Some(undecided) = self.undecided.pop()
        {
            let candidates = (undecided.end - undecided.start).min(number(self.candidates));
            positions.extend(undecided.start..undecided.start + candidates);
            rows.resize(positions.len(), undecided.row);
            slice.push((undecided, candidates));
        }
        if slice.is_empty() {
            return Ok(false);
        }
        let pairs = (&UInt32Array::from(rows), &UInt32Array::from(positions));
        let met =
            RowJoin::meet_residual(self.residual, self.batch, &self.build.row_columns, pairs)?;
        let met = met.values();
        let mut first = 0;
        for (mut undecided, candidates) in slice {
            let met = met.slice(first, candidates as usize);
            first += candidates as usize;
            if let Some(offset) = met.set_indices().next() {
                let position = i64::from(undecided.start + number(offset));
                self.found[undecided.row as usize] = (position, position);
                continue;
            }
            undecided.start += candidates;
            if undecided.start < undecided.end {
                self.next_round.push(undecided);
            }
        }
        Ok(!self.undecided.is_empty() || !self.next_round.is_empty())
    }
}

/// A number of candidates, which is at most that of the rows of a batch.
fn number(candidates: usize) -> u32 {
    u32::try_from(candidates).unwrap_or(u32::MAX)
}
