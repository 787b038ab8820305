//! A build side in memory: sorted rows, and the aggregates over ranges of them.

use std::sync::Arc;

use arrow::array::ArrayRef;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::ranges::Ranges;
use crate::exec::range_join::build_side::aggregate::AggregateEvaluator;
use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::build_side::row_order::RowOrder;
use crate::exec::range_join::build_side::threshold_index::ThresholdIndex;
use crate::exec::range_join::build_side::value_index::ValueIndex;
use crate::range_agg::values::Values;
use crate::sorted::permutation::RowPermutation;
use crate::sorted::sorted_rows::SortedRows;

/// The sorted rows of a build side: their keys, and what sorts values as them.
#[derive(Debug)]
pub(crate) struct SortedSide {
    pub(crate) rows: SortedRows,
    pub(crate) rows_memory: MemoryReservation,
    /// How the rows moved, while values may be added.
    pub(crate) permutation: Option<RowPermutation>,
    pub(crate) permutation_memory: MemoryReservation,
    /// The number of rows, with those that can't match.
    pub(crate) total_rows: usize,
    /// Whether batches were moved into the order of their keys before the rows were numbered.
    pub(crate) is_restored: bool,
}

impl SortedSide {
    /// The same rows, to which no values will be added.
    pub(crate) fn without_permutation(mut self) -> Result<Self> {
        let permutation = self.permutation.take();
        let shared = permutation.map_or(0, |p| p.shared_order_bytes());
        self.permutation_memory.try_resize(shared)?;
        Ok(self)
    }

    /// Bytes that are registered for it.
    pub(crate) fn registered_bytes(&self) -> usize {
        self.rows_memory.size() + self.permutation_memory.size()
    }
}

/// A sorted and indexed build side.
#[derive(Debug)]
pub(crate) struct BuildSide {
    pub(crate) sorted: Arc<SortedSide>,
    pub(crate) aggregates: Vec<AggregateEvaluator>,
    /// The columns that single rows are taken of, in sorted order.
    pub(crate) row_columns: Vec<Arc<Values>>,
    /// The index on the values that a join of rows compares with thresholds.
    pub(crate) threshold_index: Arc<ThresholdIndex>,
    /// The order in which rows are returned, if it is not that of the range key.
    pub(crate) row_order: Option<Arc<RowOrder>>,
    /// Which rows have matched, if the join returns build rows by that.
    pub(crate) matched: Option<MatchedRows>,
    /// Registers the memory of the values, without the indexes, which register their own.
    pub(crate) memory: Vec<Arc<MemoryReservation>>,
}

impl BuildSide {
    /// The sorted rows, to find positions in.
    pub(crate) fn rows(&self) -> &SortedRows {
        &self.sorted.rows
    }

    /// Whether there is no row that can match or be returned: those whose keys are NULL match nothing.
    pub(crate) fn is_empty(&self) -> bool {
        match &self.matched {
            Some(matched) => matched.rows() == 0,
            None => self.rows().len() == 0,
        }
    }

    /// Bytes that are registered for it, without the indexes.
    pub(crate) fn registered_bytes(&self) -> usize {
        let values = self.memory.iter().map(|memory| memory.size());
        self.sorted.registered_bytes() + values.sum::<usize>()
    }

    /// The number of rows, with those that can't match.
    pub(crate) fn total_rows(&self) -> usize {
        self.sorted.total_rows
    }

    /// Builds the lazy indexes for which these ranges justify it. To be called once for ranges before
    /// [`Self::aggregate`].
    pub(crate) async fn build_justified_indexes(&self, ranges: &Ranges) -> Result<()> {
        for index in self.indexes() {
            index.build_if_justified(ranges).await?;
        }
        Ok(())
    }

    /// Does the same on the calling thread.
    pub(crate) fn build_justified_indexes_blocking(&self, ranges: &Ranges) -> Result<()> {
        let mut indexes = self.indexes();
        indexes.try_for_each(|index| index.build_if_justified_blocking(ranges))
    }

    /// The index of each aggregate that has one.
    fn indexes(&self) -> impl Iterator<Item = &Arc<ValueIndex>> {
        self.aggregates.iter().filter_map(AggregateEvaluator::index)
    }

    /// Whether computing the aggregates reads the rows of the ranges, and so may take long.
    pub(crate) fn reads_rows(&self) -> bool {
        let mut aggregates = self.aggregates.iter();
        aggregates.any(|a| {
            matches!(
                a,
                AggregateEvaluator::Accumulate(_) | AggregateEvaluator::CountCrossing { .. }
            )
        })
    }

    /// Each aggregate over these ranges, with the thresholds of the probe rows. Calls `check` between ranges whose rows
    /// it reads.
    pub(crate) fn aggregate(
        &self,
        ranges: &Ranges,
        thresholds: &[ArrayRef],
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Vec<ArrayRef>> {
        let aggregates = self.aggregates.iter();
        let aggregates = aggregates.map(|a| a.evaluate(ranges, thresholds, self.rows(), check));
        aggregates.collect()
    }
}
