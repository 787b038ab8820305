//! Ranges of rows in groups.

use std::ops::Range;

use crate::common::ranges::Ranges;

/// Ranges of rows, one after another for each group. A group may have none.
#[derive(Debug, Clone)]
pub struct RangeGroups {
    /// The number of the first range of each group, and that of all ranges.
    firsts: Vec<usize>,
    rows: Vec<Range<u32>>,
}

impl Default for RangeGroups {
    fn default() -> Self {
        Self {
            firsts: vec![0],
            rows: vec![],
        }
    }
}

impl RangeGroups {
    /// Adds a group.
    pub fn push(&mut self, ranges: impl IntoIterator<Item = Range<u32>>) {
        self.rows.extend(ranges);
        self.firsts.push(self.rows.len());
    }

    /// The number of groups.
    pub fn len(&self) -> usize {
        self.firsts.len() - 1
    }

    /// The number of the first range of each group, and that of all ranges.
    pub fn firsts(&self) -> &[usize] {
        &self.firsts
    }

    /// The ranges of all groups.
    pub fn ranges(&self) -> Ranges {
        let rows = self.rows.iter();
        let bounds = rows.map(|rows| (i64::from(rows.start), i64::from(rows.end) - 1));
        bounds.collect()
    }

    /// The ranges of each group.
    pub fn iter(&self) -> impl Iterator<Item = &[Range<u32>]> {
        self.firsts
            .windows(2)
            .map(|group| &self.rows[group[0]..group[1]])
    }

    /// Whether each group has one range.
    pub fn are_single(&self) -> bool {
        self.iter().all(|group| group.len() == 1)
    }

    /// The fewest ranges of the rows that are in any of each group.
    pub fn united(&self) -> Self {
        let mut united = Self::default();
        for group in self.iter() {
            united.push(union(group.to_vec()));
        }
        united
    }
}

fn union(mut ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
    ranges.sort_unstable_by_key(|rows| rows.start);
    let mut united: Vec<Range<u32>> = vec![];
    for rows in ranges {
        match united.last_mut() {
            Some(last) if rows.start <= last.end => last.end = last.end.max(rows.end),
            _ => united.push(rows),
        }
    }
    united
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "lists of ranges")]
    fn unions_have_each_row_once() {
        let mut groups = RangeGroups::default();
        let mut expected = vec![];
        for (ranges, united) in [
            (vec![], vec![]),
            (vec![4..5, 3..4], vec![3..5]),
            (vec![3..5, 3..3, 4..4], vec![3..5]),
            (vec![8..9, 0..7, 2..3, 5..8], vec![0..9]),
            (vec![6..9, 0..5, 2..3], vec![0..5, 6..9]),
        ] {
            groups.push(ranges);
            expected.push(united);
        }
        let united = groups.united();
        assert_eq!(united.iter().collect::<Vec<_>>(), expected);
        assert_eq!(
            (united.len(), united.firsts()),
            (5, &[0, 0, 1, 2, 3, 5][..])
        );
        assert_eq!(united.ranges().left(), [3, 3, 0, 0, 6]);
        assert_eq!(united.ranges().right(), [4, 4, 8, 4, 8]);
        assert!(!united.are_single());
    }
}
