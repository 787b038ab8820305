//! An index that a query can use.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow::array::ArrayRef;
use datafusion::common::Result;

use crate::common::ranges::Ranges;
use crate::index::best_positions::CountedRanges;
use crate::index::key_index::Answer;
use crate::index::reserved_index::ReservedIndex;
use crate::index::threshold::ThresholdTest;
use rmq_engine::RangeEnd;

/// An index, and whether the CPU engine may answer if its devices fail.
#[derive(Debug, Clone)]
pub(crate) struct ReadyIndex {
    pub(crate) reserved: Arc<ReservedIndex>,
    pub(crate) allow_cpu_fallback: bool,
}

impl ReadyIndex {
    /// Answers a batch of ranges: see [`ColumnIndex::answer`](crate::index::column_index::ColumnIndex::answer).
    ///
    /// # Errors
    /// The engine's, if no fallback is allowed or the fallback fails as well.
    pub(crate) fn answer(
        &self,
        ranges: &[Ranges],
        values: bool,
        positions: bool,
    ) -> Result<Answer> {
        let index = &self.reserved.index;
        index.answer(ranges, values, positions, self.allow_cpu_fallback)
    }

    /// Finds rows by thresholds: see [`ColumnIndex::crossings`](crate::index::column_index::ColumnIndex::crossings).
    ///
    /// # Errors
    /// The engine's, if no fallback is allowed or the fallback fails as well.
    pub(crate) fn crossings(
        &self,
        ranges: &[Ranges],
        thresholds: &[ArrayRef],
        end: RangeEnd,
        test: ThresholdTest,
    ) -> Result<Answer> {
        let index = &self.reserved.index;
        index.crossings(ranges, thresholds, end, test, self.allow_cpu_fallback)
    }

    /// Lists the positions of the best values: see
    /// [`ColumnIndex::best_positions`](crate::index::column_index::ColumnIndex::best_positions).
    ///
    /// # Errors
    /// The engine's, if no fallback is allowed or the fallback fails as well.
    pub(crate) fn best_positions(
        &self,
        ranges: &[CountedRanges],
        stop: &AtomicBool,
    ) -> Result<Answer> {
        let index = &self.reserved.index;
        index.best_positions(ranges, stop, self.allow_cpu_fallback)
    }
}
