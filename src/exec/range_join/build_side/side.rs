//! A build side in memory: sorted rows, and the aggregates over ranges of them.

use std::sync::{Arc, OnceLock};

use arrow::array::ArrayRef;
use arrow::buffer::ScalarBuffer;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::range_join::build_side::aggregate::AggregateEvaluator;
use crate::exec::range_join::build_side::column::PreparedColumn;
use crate::exec::range_join::build_side::lazy_structure::LazyStructure;
use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::build_side::range_sources::RangeSources;
use crate::exec::range_join::build_side::row_order::RowOrder;
use crate::exec::range_join::build_side::threshold_index::ThresholdIndex;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::common::workers::Workers;
use rmq_arrow::range_agg::values::Values;
use rmq_arrow::sorted::permutation::RowPermutation;
use rmq_arrow::sorted::sorted_rows::SortedRows;

/// The sorted rows of a build side: their keys, and what sorts values as them.
#[derive(Debug)]
pub(crate) struct SortedSide {
    pub(crate) rows: SortedRows,
    pub(crate) rows_memory: MemoryReservation,
    /// How the rows moved, while values may be added.
    pub(crate) movement: Option<Movement>,
    pub(crate) permutation_memory: MemoryReservation,
    /// The number of rows, with those that can't match.
    pub(crate) total_rows: usize,
    /// Whether batches were moved into the order of their keys before the rows were numbered.
    pub(crate) is_restored: bool,
}

/// How rows moved from the order of the input to that of their keys.
#[derive(Debug)]
pub(crate) enum Movement {
    /// As they were sorted.
    Known(RowPermutation),
    /// As a file has it, the input row at each position. The permutation is made when it is needed.
    Saved {
        order: ScalarBuffer<u32>,
        permutation: OnceLock<RowPermutation>,
    },
}

impl SortedSide {
    /// How the rows moved.
    ///
    /// # Errors
    /// An internal error after [`Self::without_permutation`]. If memory is short or the query is cancelled.
    pub(crate) fn permutation(&self, workers: Workers) -> Result<&RowPermutation> {
        match &self.movement {
            Some(Movement::Known(permutation)) => Ok(permutation),
            Some(Movement::Saved { order, permutation }) => {
                if let Some(made) = permutation.get() {
                    return Ok(made);
                }
                // The position of each row, its part of the positions, and its offset in it.
                let bytes = 3 * size_of::<u32>() * self.total_rows;
                self.permutation_memory.try_grow(bytes)?;
                let made = RowPermutation::from_order(order, self.total_rows, workers);
                self.permutation_memory.shrink(bytes);
                let made = made?;
                self.permutation_memory.try_grow(made.bytes())?;
                Ok(permutation.get_or_init(|| made))
            }
            None => {
                internal_err!("a build side that has dropped its permutation can't be extended")
            }
        }
    }

    /// The same rows, to which no values will be added.
    pub(crate) fn without_permutation(mut self) -> Result<Self> {
        let shared = match self.movement.take() {
            Some(Movement::Known(permutation)) => permutation.shared_order_bytes(),
            Some(Movement::Saved { .. }) | None => 0,
        };
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
    /// What was built of the values, with what registers its memory.
    pub(crate) values: Vec<PreparedColumn>,
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

    /// Bytes that are registered for it.
    pub(crate) fn registered_bytes(&self) -> usize {
        let values = self.values.iter().map(PreparedColumn::registered_bytes);
        self.sorted.registered_bytes() + values.sum::<usize>()
    }

    /// The number of rows, with those that can't match.
    pub(crate) fn total_rows(&self) -> usize {
        self.sorted.total_rows
    }

    /// The lazy structures that are to be built before these ranges are aggregated. To be called once for ranges, as it
    /// counts them, once for each aggregate.
    pub(crate) fn justified_structures(
        &self,
        ranges: &Ranges,
    ) -> impl Iterator<Item = Arc<dyn LazyStructure>> {
        let aggregates = self.aggregates.iter();
        let lazy = aggregates.flat_map(AggregateEvaluator::lazy_structures);
        lazy.filter(|structure| structure.should_build(ranges))
    }

    /// Whether computing the aggregates reads the rows of the ranges, and so may take long.
    pub(crate) fn reads_rows(&self) -> bool {
        let mut aggregates = self.aggregates.iter();
        aggregates.any(|aggregate| aggregate.reads_rows)
    }

    /// Each aggregate over these ranges, with the thresholds of the probe rows. Ranges that are returned are those of a
    /// source in `sources`. Calls `check` between ranges whose rows
    /// it reads.
    pub(crate) fn aggregate(
        &self,
        ranges: &Ranges,
        thresholds: &[ArrayRef],
        sources: Option<&RangeSources>,
        check: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<Vec<ArrayRef>> {
        let rows = self.rows();
        let aggregates = self.aggregates.iter();
        let aggregates = aggregates.map(|a| a.evaluate(ranges, thresholds, rows, sources, check));
        aggregates.collect()
    }
}
