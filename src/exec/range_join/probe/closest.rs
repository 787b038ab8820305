//! Finds, for each probe row, the build rows that are closest to a point, on both sides of it, and meet a further
//! condition if there is one.
//!
//! A range is divided where the point is. Candidates are taken from there on in both directions, each time twice as
//! many as before, until no row that is left can be closer than those found: about twice as many as are returned. Of
//! rows at the same distance that no further order tells apart, those before the point come first, the last one first.
//!
//! Where the distance does not grow all the way to both ends of a range (`Distance::grows`), all its rows are
//! candidates.
//!
//! From a NULL no row has a distance, and the further order alone tells rows apart. Without a further condition, all
//! probe rows of a batch with such a point and the same range have the same matches, which are searched once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BooleanArray, RecordBatch, UInt32Array};
use arrow::buffer::NullBuffer;
use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::joins::utils::JoinFilter;

use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::pair_distance::PairDistance;
use crate::exec::range_join::probe::candidate_pairs::CandidateSlice;
use crate::exec::range_join::probe::search_window::{SearchWindow, take_from};
use crate::exec::range_join::row_join::RowJoin;
use datafusion_rmq_logical::logical_plan::nearest_rows::RowLimit;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::common::row_number::row_number;
use rmq_engine::RangeEnd;

/// The search for the closest matches of the rows of a probe batch.
pub(crate) struct ClosestMatches {
    limit: RowLimit,
    window: SearchWindow<PointSearch>,
    /// For each probe row the rows up to its point, in its range and before it; empty if there are none.
    up_to_point: Ranges,
    /// Whether the distance grows to both ends of a range.
    grows: Vec<bool>,
    /// As in [`Points`].
    known: Option<NullBuffer>,
    /// The matches of the ranges of such rows that have been begun, empty until they are known.
    matches_of_ranges: HashMap<Range<u32>, Vec<u32>>,
    /// The most candidates that are taken at once.
    slice_rows: usize,
}

/// The points of a probe batch, from which distances are counted.
pub(crate) struct Points {
    /// For each probe row the rows up to its point, which may begin before its range and end after it.
    pub(crate) up_to: Ranges,
    /// Which probe rows have a point, if the matches of the others depend on their ranges alone.
    pub(crate) known: Option<NullBuffer>,
}

/// The search for the matches of one probe row.
struct PointSearch {
    row: u32,
    /// The position from which on rows are after the point.
    point: u32,
    /// The positions on each side that have not been looked at.
    before: Range<u32>,
    after: Range<u32>,
    /// What no distance is below of a row that has not been looked at, on each side.
    reached: [Option<Vec<u8>>; 2],
    grows: bool,
    /// The most candidates that are taken next on each side.
    candidates: usize,
    found: Vec<ClosestMatch>,
    /// The range, if its matches are those of all rows with this range that have no point.
    shared: Option<Range<u32>>,
    is_done: bool,
}

/// A match, by its rank: the bytes of its distance, those of the further order, its side, and how far from the point it
/// is among the rows there.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ClosestMatch {
    distance: Vec<u8>,
    order: Vec<u8>,
    is_after: bool,
    steps: u32,
    position: u32,
}

impl ClosestMatches {
    /// The search in these ranges, one for each row of a probe batch.
    pub(crate) fn try_new(
        points: Points,
        ranges: Ranges,
        limit: RowLimit,
        distance: &PairDistance,
        batch: &RecordBatch,
        build: &BuildSide,
        slice_rows: usize,
    ) -> Result<Self> {
        let grows = grows_to_both_ends(&ranges, &distance.grows, batch, build)?;
        // Matches of a whole range are not kept.
        let known = points.known.filter(|_| limit.fetch.is_some());
        Ok(Self {
            known,
            matches_of_ranges: HashMap::new(),
            limit,
            window: SearchWindow::new(ranges, slice_rows),
            up_to_point: points.up_to,
            grows,
            slice_rows,
        })
    }

    /// Whether all matches have been returned.
    pub(crate) fn is_done(&self) -> bool {
        self.window.is_done()
    }

    /// How many matches of a row have to be known.
    fn needed(&self) -> usize {
        match self.limit.fetch {
            Some(0) => 0,
            _ => self.limit.with_skipped().fetch.unwrap_or(usize::MAX),
        }
    }

    /// Evaluates the distance, and the further condition, on one slice of candidates.
    pub(crate) fn step(
        &mut self,
        join: &RowJoin,
        batch: &RecordBatch,
        build: &BuildSide,
    ) -> Result<()> {
        let slice = self.take_slice()?.meeting(join.residual(), batch, build)?;
        let ranks = PairRanks::of_pairs(&slice, join, batch, build)?;
        let needed = self.needed();
        let mut start = 0;
        for ((number, is_after), end) in slice.ended {
            let search = &mut self.window.searches[number];
            for (pair, position) in (start..end).zip(&slice.positions[start..end]) {
                search.add(&ranks, pair, *position, is_after);
            }
            if end > start {
                let last = ranks.distances.value(end - 1).to_vec();
                search.reached[usize::from(is_after)] = Some(last);
            }
            if is_after {
                search.finish(needed, join.orders_ties());
            }
            start = end;
        }
        Ok(())
    }

    /// Takes candidates of searches: of each those before the point, then those after it.
    fn take_slice(&mut self) -> Result<CandidateSlice<(usize, bool)>> {
        let candidates = self.needed().min(self.slice_rows);
        let mut slice = CandidateSlice::default();
        let begin = |row: u32, range: Range<u32>| {
            let row_index = row as usize;
            let known = self.known.as_ref();
            let is_shared = known.is_some_and(|known| known.is_null(row_index));
            let shared = is_shared.then(|| range.clone());
            let is_searched = match shared.clone().map(|r| self.matches_of_ranges.entry(r)) {
                Some(Entry::Vacant(entry)) => {
                    entry.insert(vec![]);
                    false
                }
                found => found.is_some(),
            };
            let is_done = is_searched || range.is_empty() || candidates == 0;
            let range = if is_done { 0..0 } else { range };
            let up_to_point = self.up_to_point.rows_of(row_index)?;
            // Without a row up to the point, all are after it.
            let point = up_to_point.end.clamp(range.start, range.end);
            Ok(PointSearch {
                row,
                point,
                before: range.start..point,
                after: point..range.end,
                reached: [None, None],
                grows: self.grows[row_index],
                candidates,
                found: vec![],
                shared,
                is_done,
            })
        };
        let take = |number, search: &mut PointSearch, room| {
            if search.is_done {
                return Ok(0);
            }
            let (most, positions) = (search.candidates, &mut slice.positions);
            let rest = &mut search.before;
            let before = take_from(RangeEnd::Last, rest, most.min(room), positions)?;
            slice.end((number, false), search.row);
            let (room, rest) = (room - before, &mut search.after);
            let after = take_from(RangeEnd::First, rest, most.min(room), &mut slice.positions)?;
            slice.end((number, true), search.row);
            if before + after > 0 {
                search.candidates = search.candidates.saturating_mul(2);
            }
            Ok(before + after)
        };
        self.window.take_candidates(1, begin, take)?;
        Ok(slice)
    }

    /// Returns the matches that are known, by row and in order: each with its position, and a row without a match once
    /// with `None`.
    pub(crate) fn take_found(&mut self, mut returned: impl FnMut(u32, Option<u32>)) {
        let RowLimit { skip, fetch, .. } = self.limit;
        let searches = &mut self.window.searches;
        while let Some(mut search) = searches.pop_front_if(|search| search.is_done) {
            search.found.sort_unstable();
            let found = search.found.iter().skip(skip);
            let found = found.take(fetch.unwrap_or(usize::MAX));
            let mut found: Vec<u32> = found.map(|found| found.position).collect();
            if let Some(range) = search.shared {
                // The row that has searched them comes first.
                let known = self.matches_of_ranges.entry(range).or_default();
                known.append(&mut found);
                found.clone_from(known);
            }
            if found.is_empty() {
                returned(search.row, None);
            }
            let found = found.into_iter();
            found.for_each(|position| returned(search.row, Some(position)));
        }
    }
}

impl PointSearch {
    fn add(&mut self, ranks: &PairRanks, pair: usize, position: u32, is_after: bool) {
        let steps = if is_after {
            position - self.point
        } else {
            self.point - 1 - position
        };
        let order = ranks.orders.as_ref();
        self.found.push(ClosestMatch {
            distance: ranks.distances.value(pair).to_vec(),
            order: order.map_or_else(Vec::new, |order| order.value(pair).to_vec()),
            is_after,
            steps,
            position,
        });
    }

    /// Drops matches beyond those that are needed, and candidates that can't be among these.
    fn finish(&mut self, needed: usize, is_ordered: bool) {
        if self.found.len() >= needed {
            let (_, farthest, _) = self.found.select_nth_unstable(needed - 1);
            let is_beyond = |reached: &Option<Vec<u8>>, is_after: bool| {
                reached.as_ref().is_some_and(|reached| {
                    let is_same = *reached == farthest.distance;
                    // Rows before the point come first.
                    let comes_later = is_same && !is_ordered && (is_after || !farthest.is_after);
                    *reached > farthest.distance || comes_later
                })
            };
            let [before, after] = &self.reached;
            if self.grows && is_beyond(before, false) {
                self.before.end = self.before.start;
            }
            if self.grows && is_beyond(after, true) {
                self.after.start = self.after.end;
            }
            self.found.truncate(needed);
        }
        self.is_done = self.before.is_empty() && self.after.is_empty();
    }
}

/// What ranks the pairs of a slice.
struct PairRanks {
    distances: BinaryArray,
    /// The bytes of the further order.
    orders: Option<BinaryArray>,
}

impl PairRanks {
    fn of_pairs<S>(
        slice: &CandidateSlice<S>,
        join: &RowJoin,
        batch: &RecordBatch,
        build: &BuildSide,
    ) -> Result<Self> {
        let Some(distance) = join.distance() else {
            return internal_err!("a range join orders rows by no distance");
        };
        let columns = &build.row_columns;
        let rows = UInt32Array::from(slice.rows.clone());
        let positions = UInt32Array::from(slice.positions.clone());
        let orders = match (join.orders_ties(), columns.last()) {
            (false, _) => None,
            (true, Some(order)) => Some(binary(&order.take(&positions)?)?),
            (true, None) => return internal_err!("a range join lacks the order of its rows"),
        };
        let distances = RowJoin::evaluate(&distance.by, batch, columns, (&rows, &positions))?;
        Ok(Self {
            distances: binary(&distances)?,
            orders,
        })
    }
}

fn binary(array: &ArrayRef) -> Result<BinaryArray> {
    match array.as_binary_opt() {
        Some(array) => Ok(array.clone()),
        None => internal_err!("the order of rows is a {}", array.data_type()),
    }
}

/// Whether the distance grows from the point of each row of a batch to both ends of its range, without the rows whose
/// distance is NULL, which come last.
fn grows_to_both_ends(
    ranges: &Ranges,
    grows: &JoinFilter,
    batch: &RecordBatch,
    build: &BuildSide,
) -> Result<Vec<bool>> {
    let at = |rows: &[u32], positions: Vec<u32>| -> Result<BooleanArray> {
        let (rows, positions) = (UInt32Array::from(rows.to_vec()), positions.into());
        let grows = RowJoin::evaluate(grows, batch, &build.row_columns, (&rows, &positions))?;
        Ok(grows.as_boolean().clone())
    };
    let mut grows = vec![true; ranges.len()];
    let (mut rows, mut searched) = (vec![], vec![]);
    for row in 0..ranges.len() {
        let range = ranges.rows_of(row)?;
        if !range.is_empty() {
            rows.push(row_number(row)?);
            searched.push(range);
        }
    }
    let ends = [
        at(&rows, searched.iter().map(|range| range.start).collect())?,
        at(&rows, searched.iter().map(|range| range.end - 1).collect())?,
    ];
    for end in &ends {
        for (row, end) in rows.iter().zip(end) {
            grows[*row as usize] &= end != Some(false);
        }
    }
    // Finds the last row whose distance is not NULL, once for all probe rows with the same range.
    let mut ranges_with_nulls: HashMap<Range<u32>, Vec<u32>> = HashMap::new();
    for (i, range) in searched.iter().enumerate() {
        if ends[1].is_null(i) && !ends[0].is_null(i) {
            ranges_with_nulls
                .entry(range.clone())
                .or_default()
                .push(rows[i]);
        }
    }
    let mut open: Vec<(Range<u32>, u32)> = ranges_with_nulls
        .iter()
        .map(|(range, rows)| (range.clone(), rows[0]))
        .collect();
    let of_range: Vec<&Vec<u32>> = ranges_with_nulls.values().collect();
    // The first row of each has a distance, the last one has none.
    while open.iter().any(|(range, _)| range.len() > 2) {
        let middles = open.iter();
        let middles: Vec<u32> = middles
            .map(|(range, _)| range.start + (range.end - range.start) / 2)
            .collect();
        let first_rows: Vec<u32> = open.iter().map(|(_, row)| *row).collect();
        let found = at(&first_rows, middles.clone())?;
        for (i, middle) in middles.into_iter().enumerate() {
            let range = &mut open[i].0;
            if range.len() > 2 {
                if found.is_null(i) {
                    range.end = middle + 1;
                } else {
                    range.start = middle;
                }
            }
        }
    }
    for ((range, _), rows) in open.iter().zip(of_range) {
        let found = at(rows, vec![range.start; rows.len()])?;
        for (row, found) in rows.iter().zip(&found) {
            grows[*row as usize] &= found == Some(true);
        }
    }
    Ok(grows)
}
