//! The row that prevails when a window begins, as in kdb+'s `wj` and QuestDB's `INCLUDE PREVAILING`: the last row at or
//! before the window's lower bound.

use arrow::array::{Array, ArrayRef, BooleanArray};
use arrow::buffer::BooleanBuffer;
use datafusion::common::{Result, internal_err};

use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::sorted::order_keys::OrderKeys;
use rmq_arrow::sorted::sorted_rows::SortedRows;
use rmq_engine::CandidateRanges;
use rmq_engine::Comparison;

/// Finds the prevailing row of each probe row of a batch.
pub(crate) struct PrevailingRows {
    /// The build rows with the same equality keys.
    groups: CandidateRanges,
    lower: Option<ArrayRef>,
    upper: Vec<ArrayRef>,
}

/// The windows of probe rows, and the prevailing row of each.
pub(crate) struct Windows {
    pub(crate) rows: Ranges,
    /// Ranges of at most one row.
    pub(crate) prevailing: Ranges,
}

impl Windows {
    /// Whether each prevailing row is in its window.
    pub(crate) fn have_prevailing(&self) -> BooleanArray {
        let ranges = self.prevailing.iter().zip(self.rows.iter());
        let are_in = ranges.map(|((row, _), (start, end))| Some(start <= row && row <= end));
        are_in.collect()
    }
}

impl PrevailingRows {
    /// Without bounds yet. The prevailing rows are among `groups`.
    pub(crate) fn new(groups: CandidateRanges) -> Self {
        Self {
            groups,
            lower: None,
            upper: vec![],
        }
    }

    /// The build rows that may prevail.
    pub(crate) fn groups(&self) -> &CandidateRanges {
        &self.groups
    }

    /// Adds a bound of the windows.
    pub(crate) fn add_bound(&mut self, comparison: Comparison, bounds: ArrayRef) -> Result<()> {
        if !comparison.is_lower() {
            self.upper.push(bounds);
        } else if self.lower.replace(bounds).is_some() {
            return internal_err!("a prevailing row needs one lower bound, not several");
        }
        Ok(())
    }

    /// Extends each window down to its prevailing row. A window with a NULL bound, or whose lower bound is above an
    /// upper one, stays empty.
    pub(crate) fn extend_windows(
        self,
        windows: &mut CandidateRanges,
        rows: &SortedRows,
    ) -> Result<()> {
        let (up_to_lower, is_valid) = self.find(rows)?;
        windows.begin_with_last(&up_to_lower, is_valid.set_indices());
        Ok(())
    }

    /// The prevailing row of each window, as a range of at most one row.
    pub(crate) fn single_rows(self, rows: &SortedRows) -> Result<Ranges> {
        let (up_to_lower, is_valid) = self.find(rows)?;
        let rows = Ranges::from(up_to_lower);
        let rows = rows.iter().zip(&is_valid);
        let last =
            rows.map(|((left, right), is_valid)| (is_valid && left <= right).then_some(right));
        Ok(Ranges::of_single(last))
    }

    /// The rows of each group up to the lower bound, and which windows have a prevailing row if there are any.
    fn find(self, rows: &SortedRows) -> Result<(CandidateRanges, BooleanBuffer)> {
        let Some(lower) = self.lower else {
            return internal_err!("a prevailing row needs a lower bound");
        };
        let mut up_to_lower = self.groups;
        let mut is_valid = BooleanBuffer::new_set(lower.len());
        for upper in &self.upper {
            is_valid = &is_valid & &OrderKeys::are_at_most(&lower, upper)?;
        }
        rows.narrow(&mut up_to_lower, &[(Comparison::AtMost, lower)])?;
        Ok((up_to_lower, is_valid))
    }
}
