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

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::physical_plan::joins::utils::JoinFilter;

use crate::exec::range_join::build_side::row_order::RowOrder;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::candidate_pairs::CandidateSlice;
use crate::exec::range_join::probe::qualifying::QualifyingRows;
use crate::exec::range_join::probe::search_window::{SearchWindow, take_from};
use crate::exec::range_join::row_join::RowJoin;
use datafusion_rmq_logical::logical_plan::nearest_rows::RowLimit;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::common::row_number::{row_number, row_numbers};
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
    window: SearchWindow<EndSearch>,
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
struct EndSearch {
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

/// Candidates of searches of the window, by their numbers.
type Slice = CandidateSlice<usize>;

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
            window: SearchWindow::new(ranges, slice_rows),
            first_candidates: most.max(least).min(slice_rows),
            slice_rows,
            long_candidates: 0,
            index: ThresholdSearch::NotJustified,
        }
    }

    /// Whether all matches have been returned.
    pub(crate) fn is_done(&self) -> bool {
        self.window.is_done()
    }

    /// The ranges of the probe rows.
    pub(crate) fn ranges(&self) -> &Ranges {
        &self.window.ranges
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
        let indexed = |searches: &VecDeque<EndSearch>| {
            let searches = searches.iter();
            searches.filter(|search| search.is_indexed).count()
        };
        let before = indexed(&self.window.searches);
        let (searches, end) = (&mut self.window.searches, self.limit.end());
        let slice = take_qualifying(searches, index, end, self.slice_rows)?;
        let after = indexed(&self.window.searches);
        let rest = join
            .threshold()
            .and_then(|threshold| threshold.rest.as_ref());
        self.evaluate(slice, rest, batch, build)?;
        Ok(after - before)
    }

    /// Takes candidates of searches that don't use the index.
    fn take_slice(&mut self) -> Result<Slice> {
        let (limit, first) = (self.limit, self.first_candidates);
        let uses_index = matches!(self.index, ThresholdSearch::By(_));
        let (mut slice, mut long_candidates) = (Slice::default(), 0);
        let begin = |row, range| Ok(EndSearch::new(row, range, limit, first));
        let take = |number, search: &mut EndSearch, room| {
            let is_long = search.is_long();
            if uses_index && is_long {
                return Ok(0);
            }
            let taken = search.take(room, limit.end(), &mut slice.positions)?;
            long_candidates += if is_long { taken } else { 0 };
            slice.end(number, search.row);
            Ok(taken)
        };
        self.window.take_candidates(first, begin, take)?;
        self.long_candidates += long_candidates;
        Ok(slice)
    }

    /// Takes candidates in another order than that of positions.
    fn take_ordered(&mut self, order: &RowOrder) -> Result<Slice> {
        let (limit, first) = (self.limit, self.first_candidates);
        // The searches, each with the number of its candidates.
        let mut taken = vec![];
        let begin = |row, range| Ok(EndSearch::new(row, range, limit, first));
        let take = |number, search: &mut EndSearch, room| {
            let candidates = search.candidates.min(room).min(search.unread());
            taken.push((number, candidates));
            Ok(candidates)
        };
        self.window.take_candidates(first, begin, take)?;
        let searches = &mut self.window.searches;
        let is_short =
            |(number, candidates): &&(usize, usize)| searches[*number].next.len() < *candidates;
        let short: Vec<_> = taken.iter().filter(is_short).copied().collect();
        let wanted = short.iter().map(|(number, candidates)| {
            let search = &searches[*number];
            // Twice as many as before, as rows are listed from the first one on.
            let count = search.read + search.read.max(*candidates);
            (search.rest.clone(), count)
        });
        let listed = order.first_rows(&wanted.collect::<Vec<_>>())?;
        let mut start = 0;
        for ((number, _), end) in short.into_iter().zip(listed.ends) {
            let search = &mut searches[number];
            let read = start + search.read;
            search.next = listed.positions[read..end].iter().copied().collect();
            start = end;
        }
        let mut slice = Slice::default();
        for (number, candidates) in taken {
            let search = &mut searches[number];
            slice.positions.extend(search.next.drain(..candidates));
            search.read += candidates;
            if candidates == search.candidates {
                search.candidates *= 2;
            }
            if search.read >= search.rest.len() {
                search.rest = 0..0;
            }
            slice.end(number, search.row);
        }
        Ok(slice)
    }

    /// Adds the candidates that meet a condition to the matches of their rows, all without one.
    fn evaluate(
        &mut self,
        slice: Slice,
        condition: Option<&JoinFilter>,
        batch: &RecordBatch,
        build: &BuildSide,
    ) -> Result<()> {
        let slice = slice.meeting(condition, batch, build)?;
        let mut start = 0;
        for (number, end) in slice.ended {
            let search = &mut self.window.searches[number];
            let met = slice.positions[start..end].iter();
            met.for_each(|position| search.add(*position));
            start = end;
        }
        Ok(())
    }

    /// Returns the matches that are known, by row and in order: each with its position, and a row without a match once
    /// with `None`.
    pub(crate) fn take_found(&mut self, mut returned: impl FnMut(u32, Option<u32>)) {
        let searches = &mut self.window.searches;
        while let Some(search) = searches.front_mut() {
            let found = search.found.drain(..);
            found.for_each(|position| returned(search.row, Some(position)));
            if !search.rest.is_empty() {
                return;
            }
            if !search.has_match {
                returned(search.row, None);
            }
            searches.pop_front();
        }
    }
}

impl EndSearch {
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

    /// The number of positions that have not been looked at, where rows come in another order.
    fn unread(&self) -> usize {
        self.rest.len().saturating_sub(self.read)
    }

    /// Whether enough candidates have been evaluated for the index to find the next ones sooner.
    fn is_long(&self) -> bool {
        self.read >= MANY_CANDIDATES
    }

    /// Takes the next candidates, at most `room`, and returns how many.
    fn take(&mut self, room: usize, end: RangeEnd, positions: &mut Vec<u32>) -> Result<usize> {
        let most = self.candidates.min(room);
        let candidates = take_from(end, &mut self.rest, most, positions)?;
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

/// Takes rows that qualify, of the searches that use the index: of each the nearest one, and those within as many
/// positions as it may have candidates.
fn take_qualifying(
    searches: &mut VecDeque<EndSearch>,
    index: &QualifyingRows,
    end: RangeEnd,
    slice_rows: usize,
) -> Result<Slice> {
    let (mut numbers, mut wanted, mut room) = (vec![], vec![], slice_rows);
    for (number, search) in searches.iter_mut().enumerate() {
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
        wanted.push((search.row as usize, search.rest.clone(), positions));
    }
    let mut slice = Slice::default();
    if wanted.is_empty() {
        return Ok(slice);
    }
    let listed = index.list_nearest(&wanted, end)?;
    let mut start = 0;
    for ((number, (.., positions)), list_end) in numbers.into_iter().zip(wanted).zip(listed.ends) {
        let found = row_numbers(listed.positions[start..list_end].iter().copied())?;
        let found = found.into_iter();
        let search = &mut searches[number];
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
        slice.end(number, search.row);
        start = list_end;
    }
    Ok(slice)
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
