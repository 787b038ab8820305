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

/// A probe row without a match so far, and the positions that have not been looked at.
#[derive(Clone, Copy)]
struct Undecided {
    row: u32,
    start: u32,
    end: u32,
}

/// A range without rows.
const EMPTY: (i64, i64) = (0, -1);

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
    let mut found = vec![EMPTY; ranges.len()];
    let mut candidates = FIRST_CANDIDATES.min(slice_rows);
    // The last row is first.
    let mut round = vec![];
    for (row, range) in (0..).zip(ranges.iter()) {
        let Range { start, end } = rows_between(range)?;
        if start < end {
            round.push(Undecided { row, start, end });
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
                    let position = i64::from(position);
                    found[undecided.row as usize] = (position, position);
                } else if undecided.start < undecided.end {
                    next_round.push(undecided);
                }
                first = end;
            }
        }
        round = next_round;
        candidates = (2 * candidates).min(slice_rows);
    }
    Ok(found.into_iter().collect())
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
