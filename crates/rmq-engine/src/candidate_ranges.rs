//! Candidate ranges: the positions among sorted keys that rows can still match.

use crate::comparison::Comparison;

/// For each of some rows, a half-open range of positions among sorted keys. Each bound of the row intersects it.
#[derive(Debug, Clone)]
pub struct CandidateRanges {
    /// The group of each row, if the keys are in groups.
    groups: Option<Vec<u32>>,
    starts: Vec<usize>,
    ends: Vec<usize>,
    /// No end is above it, so that a search compares one number with its keys and not every end.
    limit: usize,
}

impl CandidateRanges {
    /// The group id of a row that belongs to no group: its range is empty.
    pub const NO_GROUP: u32 = u32::MAX;

    /// Returns `0..positions` for each of `rows` rows.
    #[must_use]
    pub fn all(rows: usize, positions: usize) -> Self {
        Self {
            groups: None,
            starts: vec![0; rows],
            ends: vec![positions; rows],
            limit: positions,
        }
    }

    /// Returns the positions of each row's group. `group_starts` holds the first position of each group, in ascending
    /// order, then the end of the last.
    ///
    /// # Panics
    /// Where a group id is neither [`Self::NO_GROUP`] nor below the number of groups.
    #[must_use]
    pub fn of_groups(groups: Vec<u32>, group_starts: &[usize]) -> Self {
        let ends = groups.iter().map(|group| match *group {
            Self::NO_GROUP => (0, 0),
            group => (
                group_starts[group as usize],
                group_starts[group as usize + 1],
            ),
        });
        let (starts, ends) = ends.unzip();
        Self {
            groups: Some(groups),
            starts,
            ends,
            limit: group_starts.last().copied().unwrap_or(0),
        }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.starts.len()
    }

    /// Returns whether rows are in groups, so that a range may be smaller than all positions.
    #[must_use]
    pub fn has_groups(&self) -> bool {
        self.groups.is_some()
    }

    /// Returns for each row whether its range has a position left.
    #[must_use]
    pub fn can_match(&self) -> Vec<bool> {
        let ranges = self.starts.iter().zip(&self.ends);
        ranges.map(|(start, end)| start < end).collect()
    }

    /// Returns the range of a row as `(start, end)`; `None` where it is empty.
    #[inline]
    #[must_use]
    pub fn get(&self, row: usize) -> Option<(usize, usize)> {
        let (start, end) = (self.starts[row], self.ends[row]);
        (start < end).then_some((start, end))
    }

    /// Returns the group of a row whose range is not empty; 0 without groups.
    #[inline]
    #[must_use]
    pub fn group(&self, row: usize) -> usize {
        let groups = self.groups.as_ref();
        groups.map_or(0, |groups| groups[row] as usize)
    }

    /// The first position of each row's range.
    #[must_use]
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// The end of each row's range, exclusive. A range is empty where it is not above the start.
    #[must_use]
    pub fn ends(&self) -> &[usize] {
        &self.ends
    }

    /// A number that no end is above.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Empties the ranges of rows whose flag is false, such as those with a NULL bound. Rows past the last flag keep
    /// theirs.
    pub fn retain_rows(&mut self, keep: impl IntoIterator<Item = bool>) {
        let ranges = self.starts.iter().zip(&mut self.ends);
        for ((start, end), keep) in ranges.zip(keep) {
            if !keep {
                *end = *start;
            }
        }
    }

    /// Cuts a row's range at a position: it begins no sooner for a lower bound, and ends no later for an upper bound.
    #[inline]
    pub fn intersect(&mut self, row: usize, comparison: Comparison, position: usize) {
        if comparison.is_lower() {
            self.starts[row] = self.starts[row].max(position);
        } else {
            self.ends[row] = self.ends[row].min(position);
        }
    }

    /// Extends the ranges of `rows` downward to the last position of the row's range in `before`. An empty range
    /// becomes that position; a row whose range in `before` is empty keeps its own.
    pub fn begin_with_last(&mut self, before: &Self, rows: impl IntoIterator<Item = usize>) {
        self.limit = self.limit.max(before.limit);
        for row in rows {
            let Some((_, end)) = before.get(row) else {
                continue;
            };
            let last = end - 1;
            match self.get(row) {
                Some((start, _)) => self.starts[row] = start.min(last),
                None => (self.starts[row], self.ends[row]) = (last, last + 1),
            }
        }
    }

    /// Returns the ranges as inclusive bounds; left is above right where a range is empty.
    #[must_use]
    pub fn into_inclusive(self) -> (Vec<i64>, Vec<i64>) {
        let left = self.starts.into_iter().map(inclusive);
        let right = self.ends.into_iter().map(|end| inclusive(end) - 1);
        (left.collect(), right.collect())
    }
}

#[expect(clippy::cast_possible_wrap, reason = "no slice has 2^63 keys")]
fn inclusive(position: usize) -> i64 {
    position as i64
}
