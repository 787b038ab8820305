//! Finds, for each probe row, the build rows that are nearest an end of its range, and meet a further condition if
//! there is one.
//!
//! Without a condition a range is clipped. With one, it is evaluated on slices of candidates of many probe rows, from
//! the end on. Each time a row has no more than some candidates, twice as many as the time before, and none after its
//! last match: at most about twice as many candidates are evaluated as come before that one. Rows are returned in their
//! order, so those that end early wait for the ones before them. As rows that wait leave no room for new ones, few
//! positions are kept.
//!
//! A search that has read many candidates goes on by the index on the join's threshold, if there is one: from each row
//! that qualifies to the next. Where rows that qualify are many, they are listed some at a time, so that the rest of
//! the condition is evaluated on slices of them, too.
//!
//! So an unselective threshold costs nothing, and a selective one O(log N) for each row that qualifies.
//!
//! Where rows come in another order than that of the range key, candidates are taken in that order (`RowOrder`).

use std::collections::VecDeque;
use std::ops::Range;

use arrow::array::{RecordBatch, UInt32Array};
use datafusion::common::Result;
use datafusion::physical_plan::joins::utils::JoinFilter;

use crate::common::ranges::Ranges;
use crate::common::row_number::{row_number, row_numbers, row_range};
use crate::exec::range_join::build_side::row_order::RowOrder;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::qualifying::QualifyingRows;
use crate::exec::range_join::row_join::RowJoin;
use crate::logical_plan::nearest_rows::RowLimit;
use rmq_engine::RangeEnd;

/// The least number of candidates that a row begins with.
const FIRST_CANDIDATES: usize = 4;

/// A search that has read this many candidates is long: the index finds the next row in the time in which about as many
/// are evaluated.
const MANY_CANDIDATES: usize = 64;

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
    /// The ranges of the probe rows.
    pub(crate) ranges: Ranges,
    /// The number of rows that have been begun.
    begun: usize,
    /// Rows that have been begun and not been returned.
    window: VecDeque<RowSearch>,
    /// The number of candidates that a row begins with.
    first_candidates: usize,
    /// The most candidates that are evaluated at once.
    slice_rows: usize,
    /// Candidates of long searches.
    long_candidates: usize,
    index: ThresholdSearch,
}

/// How long searches go on.
enum ThresholdSearch {
    /// As they have begun, until they justify the index.
    NotJustified,
    /// As they have begun.
    Impossible,
    /// By the index.
    By(QualifyingRows),
}

/// The search for the matches of one probe row.
struct RowSearch {
    row: u32,
    /// The positions that have not been looked at; all of them where rows come in another order, until all have been
    /// looked at.
    rest: Range<u32>,
    /// The positions that come next, where rows come in another order, as far as they are known.
    next: VecDeque<u32>,
    /// The most candidates of the next slice.
    candidates: usize,
    /// How many candidates have been evaluated.
    read: usize,
    /// Whether the index finds the candidates.
    is_indexed: bool,
    /// How many matches are still to be left out.
    skip: usize,
    /// How many matches are still wanted.
    wanted: usize,
    /// Matches that have not been returned.
    found: Vec<u32>,
    has_match: bool,
}

/// Candidates of several rows of the window.
#[derive(Default)]
struct Slice {
    rows: Vec<u32>,
    positions: Vec<u32>,
    /// The rows by their number in the window, each with the end of its candidates.
    ends: Vec<(usize, usize)>,
}

impl NearestMatches {
    /// The search in these ranges, one for each row of a probe batch, for candidates that meet a condition, or for all.
    pub(crate) fn new(
        ranges: Ranges,
        limit: RowLimit,
        has_condition: bool,
        slice_rows: usize,
    ) -> Self {
        let most = limit.skip.saturating_add(limit.fetch.unwrap_or(usize::MAX));
        let least = if has_condition { FIRST_CANDIDATES } else { 1 };
        Self {
            limit,
            ranges,
            begun: 0,
            window: VecDeque::new(),
            first_candidates: most.max(least).min(slice_rows),
            slice_rows,
            long_candidates: 0,
            index: ThresholdSearch::NotJustified,
        }
    }

    /// Whether all matches have been returned.
    pub(crate) fn is_done(&self) -> bool {
        self.window.is_empty() && self.begun == self.ranges.len()
    }

    /// How many candidates of long searches have been evaluated since the last call; 0 once it is settled how these go
    /// on.
    pub(crate) fn take_long_candidates(&mut self) -> usize {
        match self.index {
            ThresholdSearch::NotJustified => std::mem::take(&mut self.long_candidates),
            ThresholdSearch::Impossible | ThresholdSearch::By(_) => 0,
        }
    }

    /// Lets long searches go on by the index on the threshold, or as they have begun without it.
    pub(crate) fn go_on_by(&mut self, index: Option<QualifyingRows>) {
        self.index = index.map_or(ThresholdSearch::Impossible, ThresholdSearch::By);
    }

    /// Evaluates the condition on one slice of candidates, and on one of those that the index finds. Returns how many
    /// rows have begun to use that.
    pub(crate) fn step(
        &mut self,
        join: &RowJoin,
        batch: &RecordBatch,
        build: &BuildSide,
    ) -> Result<usize> {
        let slice = match &build.row_order {
            Some(order) => self.take_ordered(order)?,
            None => self.take_slice()?,
        };
        self.evaluate(slice, join.residual(), batch, build)?;
        let ThresholdSearch::By(index) = &self.index else {
            return Ok(0);
        };
        let before = self
            .window
            .iter()
            .filter(|search| search.is_indexed)
            .count();
        let end = if self.limit.descending {
            RangeEnd::Last
        } else {
            RangeEnd::First
        };
        let slice = Slice::qualifying(&mut self.window, index, end, self.slice_rows)?;
        let after = self
            .window
            .iter()
            .filter(|search| search.is_indexed)
            .count();
        let rest = join
            .threshold()
            .and_then(|threshold| threshold.rest.as_ref());
        self.evaluate(slice, rest, batch, build)?;
        Ok(after - before)
    }

    /// Takes candidates of searches that don't use the index.
    fn take_slice(&mut self) -> Result<Slice> {
        let mut slice = Slice::default();
        let uses_index = matches!(self.index, ThresholdSearch::By(_));
        let mut index = 0;
        loop {
            let room = self.slice_rows - slice.positions.len();
            if index == self.window.len() {
                let is_full = index >= self.slice_rows || room < self.first_candidates;
                if is_full || self.begun == self.ranges.len() {
                    break;
                }
                self.begin_row()?;
            }
            let search = &mut self.window[index];
            if !(uses_index && search.is_long()) {
                let is_long = search.is_long();
                let taken = search.take(room, self.limit.descending, &mut slice.positions)?;
                self.long_candidates += if is_long { taken } else { 0 };
                slice.add_row(index, search.row);
            }
            index += 1;
        }
        Ok(slice)
    }

    /// Takes candidates in another order than that of positions.
    fn take_ordered(&mut self, order: &RowOrder) -> Result<Slice> {
        let (mut index, mut room) = (0, self.slice_rows);
        // The searches, each with the number of its candidates.
        let mut taken = vec![];
        loop {
            if index == self.window.len() {
                let is_full = index >= self.slice_rows || room < self.first_candidates;
                if is_full || self.begun == self.ranges.len() {
                    break;
                }
                self.begin_row()?;
            }
            let search = &self.window[index];
            let left = if search.rest.is_empty() {
                0
            } else {
                search.rest.len() - search.read
            };
            let candidates = search.candidates.min(room).min(left);
            taken.push((index, candidates));
            room -= candidates;
            index += 1;
        }
        let is_short =
            |(index, candidates): &&(usize, usize)| self.window[*index].next.len() < *candidates;
        let short: Vec<_> = taken.iter().filter(is_short).copied().collect();
        let searched = short.iter().map(|(index, candidates)| {
            let search = &self.window[*index];
            // Twice as many as before, as rows are listed from the first one on.
            let count = search.read + search.read.max(*candidates);
            (search.rest.clone(), count)
        });
        let listed = order.first_rows(&searched.collect::<Vec<_>>())?;
        let mut start = 0;
        for ((index, _), end) in short.into_iter().zip(listed.ends) {
            let search = &mut self.window[index];
            let read = start + search.read;
            search.next = listed.positions[read..end].iter().copied().collect();
            start = end;
        }
        let mut slice = Slice::default();
        for (index, candidates) in taken {
            let search = &mut self.window[index];
            slice.positions.extend(search.next.drain(..candidates));
            search.read += candidates;
            if candidates == search.candidates {
                search.candidates *= 2;
            }
            if search.read >= search.rest.len() {
                search.rest = 0..0;
            }
            slice.add_row(index, search.row);
        }
        Ok(slice)
    }

    fn begin_row(&mut self) -> Result<()> {
        let (left, right) = (
            self.ranges.left()[self.begun],
            self.ranges.right()[self.begun],
        );
        let range = if left <= right {
            row_range(left..right + 1)?
        } else {
            0..0
        };
        let row = row_number(self.begun)?;
        let search = RowSearch::new(row, range, self.limit, self.first_candidates);
        self.begun += 1;
        self.window.push_back(search);
        Ok(())
    }

    /// Adds the candidates that meet a condition to the matches of their rows, all without one.
    fn evaluate(
        &mut self,
        slice: Slice,
        condition: Option<&JoinFilter>,
        batch: &RecordBatch,
        build: &BuildSide,
    ) -> Result<()> {
        if slice.positions.is_empty() {
            return Ok(());
        }
        let (rows, positions) = (
            UInt32Array::from(slice.rows),
            UInt32Array::from(slice.positions),
        );
        let met = condition.map(|condition| {
            RowJoin::meet_residual(condition, batch, &build.row_columns, (&rows, &positions))
        });
        let met = met.transpose()?;
        let mut start = 0;
        for (index, end) in slice.ends {
            let candidates = start..end;
            let met = candidates.filter(|i| met.as_ref().is_none_or(|met| met.value(*i)));
            met.for_each(|i| self.window[index].add(positions.value(i)));
            start = end;
        }
        Ok(())
    }

    /// Returns the matches that are known, by row and in order: each with its position, and a row without a match once
    /// with `None`.
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
            next: VecDeque::new(),
            candidates,
            read: 0,
            is_indexed: false,
            skip: limit.skip,
            wanted,
            found: vec![],
            has_match: false,
        }
    }

    /// Whether enough candidates have been evaluated for the index to find the next ones sooner.
    fn is_long(&self) -> bool {
        self.read >= MANY_CANDIDATES
    }

    /// Takes the next candidates, at most `room`, and returns how many.
    fn take(&mut self, room: usize, descending: bool, positions: &mut Vec<u32>) -> Result<usize> {
        let candidates = self.candidates.min(room).min(self.rest.len());
        let taken = row_number(candidates)?;
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
        self.read += candidates;
        Ok(candidates)
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

impl Slice {
    /// Takes rows that qualify, of the searches that use the index: of each the nearest one, and those within as many
    /// positions as it may have candidates.
    fn qualifying(
        window: &mut VecDeque<RowSearch>,
        index: &QualifyingRows,
        end: RangeEnd,
        slice_rows: usize,
    ) -> Result<Self> {
        let (mut numbers, mut searches, mut room) = (vec![], vec![], slice_rows);
        for (number, search) in window.iter_mut().enumerate() {
            if room == 0 {
                break;
            }
            if !search.is_long() || search.rest.is_empty() {
                continue;
            }
            if !search.is_indexed {
                search.is_indexed = true;
                search.candidates = FIRST_CANDIDATES;
            }
            let positions = search.candidates.min(room);
            room -= positions;
            numbers.push(number);
            let positions = row_number(positions)?;
            searches.push((search.row as usize, search.rest.clone(), positions));
        }
        let mut slice = Self::default();
        if searches.is_empty() {
            return Ok(slice);
        }
        let listed = index.list_nearest(&searches, end)?;
        let mut start = 0;
        for ((number, (.., positions)), list_end) in
            numbers.into_iter().zip(searches).zip(listed.ends)
        {
            let found = row_numbers(listed.positions[start..list_end].iter().copied())?;
            let found = found.into_iter();
            let search = &mut window[number];
            let rest = &mut search.rest;
            match (found.clone().next(), found.clone().next_back(), end) {
                (Some(first), _, RangeEnd::First) => {
                    rest.start = rest.end.min(first.saturating_add(positions));
                    slice.positions.extend(found);
                }
                (_, Some(last), RangeEnd::Last) => {
                    rest.end = rest.start.max((last + 1).saturating_sub(positions));
                    slice.positions.extend(found.rev());
                }
                _ => *rest = 0..0,
            }
            // Where rows that qualify are dense, more of them are listed at once.
            let is_dense = 2 * (list_end - start) > search.candidates;
            search.candidates *= if is_dense { 2 } else { 1 };
            slice.add_row(number, search.row);
            start = list_end;
        }
        Ok(slice)
    }

    /// Ends the candidates of a row of the window.
    fn add_row(&mut self, number: usize, row: u32) {
        self.rows.resize(self.positions.len(), row);
        self.ends.push((number, self.positions.len()));
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
