//! Positions that rows have left while bound after bound cuts them.

use arrow::buffer::{BooleanBuffer, NullBuffer};

use crate::common::ranges::Ranges;
use crate::sorted::id_map::NO_GROUP;
use crate::sorted::permutation::number;
use crate::sorted::sorted_rows::Comparison;

/// For each of some rows, positions from a first to before an end.
#[derive(Debug, Clone)]
pub(crate) struct CandidateRanges {
    /// The group of each row, if there are groups.
    groups: Option<Vec<u32>>,
    starts: Vec<usize>,
    ends: Vec<usize>,
}

impl CandidateRanges {
    /// All positions, for each of `rows` rows.
    pub(crate) fn of_all(rows: usize, positions: usize) -> Self {
        Self {
            groups: None,
            starts: vec![0; rows],
            ends: vec![positions; rows],
        }
    }

    /// The positions of each row's group. `starts` says where each group begins, and ends with the end of the last.
    pub(crate) fn of_groups(groups: Vec<u32>, starts: &[usize]) -> Self {
        let ends = groups.iter().map(|group| match *group {
            NO_GROUP => (0, 0),
            group => (starts[group as usize], starts[group as usize + 1]),
        });
        let (starts, ends) = ends.unzip();
        Self {
            groups: Some(groups),
            starts,
            ends,
        }
    }

    /// Which rows have positions left.
    pub(crate) fn can_match(&self) -> Vec<bool> {
        let ends = self.starts.iter().zip(&self.ends);
        ends.map(|(start, end)| start < end).collect()
    }

    /// The positions of a row, if it has any left.
    #[inline]
    pub(crate) fn of(&self, row: usize) -> Option<(usize, usize)> {
        let (start, end) = (self.starts[row], self.ends[row]);
        (start < end).then_some((start, end))
    }

    /// The group of a row that has positions: 0 where there are no groups.
    #[inline]
    pub(crate) fn group(&self, row: usize) -> usize {
        self.groups
            .as_ref()
            .map_or(0, |groups| groups[row] as usize)
    }

    /// Leaves nothing where there is a NULL.
    pub(crate) fn leave_out(&mut self, nulls: &NullBuffer) {
        let rows = self.starts.iter().zip(&mut self.ends);
        for ((start, end), valid) in rows.zip(nulls) {
            if !valid {
                *end = *start;
            }
        }
    }

    /// Whether rows may have other positions than all.
    pub(crate) fn are_of_groups(&self) -> bool {
        self.groups.is_some()
    }

    /// Adds where each row's positions begin and end.
    pub(crate) fn append_to(&self, begin: &mut Vec<u32>, end: &mut Vec<u32>) {
        begin.extend(self.starts.iter().map(|place| number(*place)));
        end.extend(self.ends.iter().map(|place| number(*place)));
    }

    /// Lets the positions of the `wanted` rows begin with the last of those in `before`, if that is not behind their first.
    pub(crate) fn begin_with_last(&mut self, before: &Self, wanted: &BooleanBuffer) {
        for row in wanted.set_indices() {
            let Some((_, end)) = before.of(row) else {
                continue;
            };
            let last = end - 1;
            match self.of(row) {
                Some((start, _)) => self.starts[row] = start.min(last),
                None => (self.starts[row], self.ends[row]) = (last, last + 1),
            }
        }
    }

    /// Cuts a row's positions at a place.
    #[inline]
    pub(crate) fn cut(&mut self, row: usize, comparison: Comparison, place: usize) {
        if comparison.is_lower() {
            self.starts[row] = self.starts[row].max(place);
        } else {
            self.ends[row] = self.ends[row].min(place);
        }
    }

    /// The positions as inclusive ranges.
    pub(crate) fn ranges(self) -> Ranges {
        let left = self.starts.into_iter().map(position).collect();
        let right = self.ends.into_iter().map(|end| position(end) - 1);
        Ranges::new(left, right.collect())
    }
}

/// Positions are fewer than 2^32.
#[expect(
    clippy::cast_possible_wrap,
    reason = "`Unsorted::try_new` refuses more rows"
)]
fn position(place: usize) -> i64 {
    place as i64
}
