//! The row that prevails when a window opens, as kdb+'s `wj` and QuestDB's INCLUDE PREVAILING have it: the last at or before its
//! lower bound.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::BooleanBuffer;
use datafusion::common::{Result, internal_err};

use crate::sorted::order_keys::OrderKeys;
use crate::sorted::sorted_rows::SortedRows;
use rmq_engine::{CandidateRanges, Comparison, LastFound};

/// What tells the prevailing row of each probe row of a batch.
pub(crate) struct Prevailing {
    /// The rows of the same equality keys.
    groups: CandidateRanges,
    lower: Option<ArrayRef>,
    upper: Vec<ArrayRef>,
}

impl Prevailing {
    pub(crate) fn among(groups: CandidateRanges) -> Self {
        Self {
            groups,
            lower: None,
            upper: vec![],
        }
    }

    /// The rows that a prevailing one may be among.
    pub(crate) fn groups(&self) -> &CandidateRanges {
        &self.groups
    }

    /// Notes a bound of the window.
    pub(crate) fn add(&mut self, comparison: Comparison, bounds: ArrayRef) -> Result<()> {
        if !comparison.is_lower() {
            self.upper.push(bounds);
        } else if self.lower.replace(bounds).is_some() {
            return internal_err!("a prevailing row is told by one lower bound, not by several");
        }
        Ok(())
    }

    /// Lets each window begin with its prevailing row. A window with a NULL bound, or that ends before it begins, is none. What is found for
    /// the prevailing rows is remembered under a number of its own.
    pub(crate) fn extend(
        self,
        windows: &mut CandidateRanges,
        rows: &SortedRows,
        number: usize,
        last_found: &mut LastFound,
    ) -> Result<()> {
        let Some(lower) = self.lower else {
            return internal_err!("a prevailing row is told by a lower bound");
        };
        let mut before = self.groups;
        let number = (number, Comparison::AtMost);
        rows.narrow(&mut before, number, &lower, last_found)?;
        let mut wanted = BooleanBuffer::new_set(lower.len());
        for upper in &self.upper {
            wanted = &wanted & &OrderKeys::are_at_most(&lower, upper)?;
        }
        windows.begin_with_last(&before, wanted.set_indices());
        Ok(())
    }
}
