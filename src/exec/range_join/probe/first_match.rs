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

use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::candidate_pairs::CandidateSlice;
use crate::exec::range_join::probe::qualifying::QualifyingRows;
use crate::exec::range_join::probe::search_window::take_from;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::common::row_number::{row_number, row_numbers};
use rmq_engine::RangeEnd;

/// The number of candidates of each row in the first round.
const FIRST_CANDIDATES: usize = 4;

/// A probe row without a match so far, and the positions that have not been looked at.
struct Undecided {
    row: u32,
    rest: Range<u32>,
}

/// For each row of a batch the range of the first row in its range that meets a condition, or an empty one. Candidates
/// are the rows of its range, or those of them that are `qualifying`, and at most `slice_rows` are evaluated at once.
/// Calls `check` between slices.
pub(crate) fn first_matches(
    condition: &JoinFilter,
    qualifying: Option<&QualifyingRows>,
    batch: &RecordBatch,
    build: &BuildSide,
    ranges: &Ranges,
    slice_rows: usize,
    check: &dyn Fn() -> Result<()>,
) -> Result<Ranges> {
    let mut found = vec![None; ranges.len()];
    let mut candidates = FIRST_CANDIDATES.min(slice_rows);
    // The last row is first.
    let mut round = vec![];
    for row in 0..ranges.len() {
        let (rest, row) = (ranges.rows_of(row)?, row_number(row)?);
        if !rest.is_empty() {
            round.push(Undecided { row, rest });
        }
    }
    while !round.is_empty() {
        round.reverse();
        let mut next_round = vec![];
        while !round.is_empty() {
            check()?;
            let slice = match qualifying {
                Some(qualifying) => {
                    let left = round.len().saturating_sub(slice_rows / candidates);
                    let mut taken = round.split_off(left);
                    taken.reverse();
                    take_qualifying(qualifying, taken, candidates)?
                }
                None => take_slice(&mut round, candidates, slice_rows)?,
            };
            let slice = slice.meeting(Some(condition), batch, build)?;
            let mut first = 0;
            for (undecided, end) in slice.ended {
                if let [position, ..] = slice.positions[first..end] {
                    found[undecided.row as usize] = Some(i64::from(position));
                } else if !undecided.rest.is_empty() {
                    next_round.push(undecided);
                }
                first = end;
            }
        }
        round = next_round;
        candidates = (2 * candidates).min(slice_rows);
    }
    Ok(Ranges::of_single(found))
}

/// Candidates of rows, each with the positions that are left after these.
type Slice = CandidateSlice<Undecided>;

impl Slice {
    fn end_row(&mut self, undecided: Undecided) {
        let row = undecided.row;
        self.end(undecided, row);
    }
}

/// The next positions of rows, `candidates` of each, as long as all together are at most `limit`.
fn take_slice(undecided: &mut Vec<Undecided>, candidates: usize, limit: usize) -> Result<Slice> {
    let mut slice = Slice::default();
    while slice.positions.len() + candidates <= limit
        && let Some(mut row) = undecided.pop()
    {
        take_from(
            RangeEnd::First,
            &mut row.rest,
            candidates,
            &mut slice.positions,
        )?;
        slice.end_row(row);
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
    let rows = rows.map(|row| (row.row as usize, i64::from(row.rest.start)));
    let listed = qualifying.list_from(&rows.collect::<Vec<_>>(), candidates)?;
    let positions = row_numbers(listed.positions.iter().copied())?;
    let (mut slice, mut start) = (Slice::default(), 0);
    for (mut row, end) in undecided.into_iter().zip(listed.ends) {
        let of_row = &positions[start..end];
        slice.positions.extend(of_row);
        row.rest.start = match of_row.last() {
            Some(last) if of_row.len() == candidates => last + 1,
            _ => row.rest.end,
        };
        slice.end_row(row);
        start = end;
    }
    Ok(slice)
}
