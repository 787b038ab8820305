//! What a join that returns rows makes of a part of a run: pairs, and marks of the rows that have matched.

use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, UInt32Array};
use arrow::datatypes::UInt32Type;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::common::blocking::Waiting;
use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::probe::candidate_pairs::PairBuffer;
use crate::exec::range_join::probe::candidates::StepLimit;
use crate::exec::range_join::probe::pair_search::PairSearch;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::spilled::side::SpilledSide;
use crate::exec::range_join::row_join::RowJoin;
use rmq_arrow::common::row_number::row_numbers;
use rmq_arrow::range_agg::values::Values;

/// Marks the rows of a run that have matched in a part of it. The last row column has their positions in the run.
pub(crate) fn mark_in_run(
    here: &MatchedRows,
    of_run: &MatchedRows,
    columns: &[Arc<Values>],
) -> Result<()> {
    let Some(places) = columns.last() else {
        return internal_err!("a spill run has no row numbers");
    };
    let marked = (0..here.rows()).filter(|position| here.is_marked(*position));
    let places = places.take(&UInt32Array::from(row_numbers(marked)?))?;
    let places = places.as_primitive::<UInt32Type>();
    let places = places.values().iter();
    places.for_each(|place| of_run.mark(*place as usize));
    Ok(())
}

/// The rows that a turn returns.
pub(crate) struct Ready<'a> {
    pub(crate) batches: Vec<RecordBatch>,
    /// Registers the batches.
    memory: &'a MemoryReservation,
    /// The estimated bytes that a row has of the build side.
    row_bytes: usize,
    /// The bytes with which a turn ends.
    limit: usize,
    /// Whether the pool had no memory for the last rows.
    is_denied: bool,
}

impl<'a> Ready<'a> {
    /// No rows yet.
    pub(crate) fn new(side: &SpilledSide, memory: &'a MemoryReservation) -> Self {
        Self {
            batches: vec![],
            memory,
            row_bytes: side.row_bytes(),
            limit: side.partition_bytes(),
            is_denied: false,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        !self.batches.is_empty() && (self.is_denied || self.memory.size() >= self.limit)
    }

    /// Adds the rows of these pairs of a probe batch. Their memory is registered first, if the pool has more: the turn
    /// ends soon otherwise.
    pub(crate) fn add(
        &mut self,
        join: &RowJoin,
        batch: &RecordBatch,
        columns: &[Arc<Values>],
        pairs: (&UInt32Array, &UInt32Array),
    ) -> Result<()> {
        let DataSize { rows, bytes } = DataSize::of_batch(batch);
        let before = self.memory.size();
        let expected = pairs.0.len() * (bytes.div_ceil(rows.max(1)) + self.row_bytes);
        if self.memory.try_grow(expected).is_err() {
            self.is_denied = true;
        }
        let mut bytes = 0;
        for batch in join.output(Some(batch), columns, pairs, None)? {
            if batch.num_rows() > 0 {
                bytes += DataSize::of_batch(&batch).bytes;
                self.batches.push(batch);
            }
        }
        if !self.is_denied {
            // The estimate may have been too low.
            self.is_denied = self.memory.try_resize(before + bytes).is_err();
        }
        Ok(())
    }
}

/// The pairs of a buffered batch with the rows of a part of a run.
pub(crate) struct PartPairs<'a> {
    pub(crate) partition: &'a Arc<ProbePartition>,
    pub(crate) join: &'a Arc<RowJoin>,
    pub(crate) side: &'a Arc<BuildSide>,
    /// How many pairs are made at once.
    pub(crate) slice_rows: usize,
    pub(crate) batch: &'a RecordBatch,
    /// Whether each probe row has matched; empty if the join returns nothing by that.
    pub(crate) matched: &'a mut [bool],
}

impl PartPairs<'_> {
    /// Adds pairs, from those of probe row `next` on, until all of a probe row have been added and `ready` is full.
    /// Returns whether the batch is done.
    pub(crate) fn add_to(
        &mut self,
        ready: &mut Ready<'_>,
        next: &mut usize,
        waiting: &Waiting,
    ) -> Result<bool> {
        // A search for nearest rows can't go on with some of its rows, so it has few.
        let wanted = self.join.searched_limit().map(|limit| limit.fetch);
        let most = wanted.map_or(usize::MAX, |wanted| {
            let wanted = wanted.unwrap_or(self.slice_rows);
            self.slice_rows.div_ceil(wanted.clamp(1, self.slice_rows))
        });
        while *next < self.batch.num_rows() && !ready.is_full() {
            let slice = self
                .batch
                .slice(*next, most.min(self.batch.num_rows() - *next));
            *next += self.add_slice(slice, *next, ready, waiting)?;
        }
        Ok(*next == self.batch.num_rows())
    }

    /// Adds the pairs of a slice of the batch, which begins with row `first`, until all of a probe row have been added
    /// and `ready` is full. Returns the number of rows that are done.
    fn add_slice(
        &mut self,
        slice: RecordBatch,
        first: usize,
        ready: &mut Ready<'_>,
        waiting: &Waiting,
    ) -> Result<usize> {
        let limit = self.join.limit;
        let (partition, build, size) = (self.partition, self.side, self.slice_rows);
        let mut search = PairSearch::try_new(partition, build, slice, limit, size)?;
        let _timer = self.partition.metrics.time_query();
        let mut pairs = PairBuffer::default();
        loop {
            waiting.check()?;
            if let Some(unbuilt) = search.unbuilt() {
                unbuilt.build(&|| waiting.check());
            }
            let limit = StepLimit {
                pairs: self.slice_rows,
                rows: if ready.is_full() { 1 } else { usize::MAX },
            };
            search.step(limit, &mut pairs)?;
            let end = search.next_row();
            let end = end.filter(|_| search.is_done() || ready.is_full());
            let kept = end.map_or(self.slice_rows - 1, |_| 0);
            while pairs.len() > kept {
                let pairs = pairs.take(self.slice_rows);
                self.add(ready, &search.batch, pairs, first)?;
            }
            if let Some(row) = end {
                return Ok(row);
            }
        }
    }

    /// Adds pairs of a slice of the batch that match, and marks the rows on both sides.
    fn add(
        &mut self,
        ready: &mut Ready<'_>,
        slice: &RecordBatch,
        pairs: PairBuffer,
        first: usize,
    ) -> Result<()> {
        let matched = self.matched.get_mut(first..).unwrap_or_default();
        pairs.mark(self.side, matched);
        let (rows, positions) = pairs.into_arrays();
        let columns = &self.side.row_columns;
        ready.add(self.join, slice, columns, (&rows, &positions))
    }
}
