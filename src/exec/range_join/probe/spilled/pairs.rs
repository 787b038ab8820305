//! What a join that returns rows makes of a part of a run: pairs, and marks of the rows that have matched.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch, UInt32Array};
use arrow::datatypes::UInt32Type;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::ranges::Ranges;
use crate::common::row_number::row_numbers;
use crate::exec::common::blocking::Waiting;
use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::probe::candidates::Candidates;
use crate::exec::range_join::probe::nearest::clip;
use crate::exec::range_join::probe::nearest_search::NearestSearch;
use crate::exec::range_join::probe::spilled::run_cache::RunPart;
use crate::exec::range_join::row_join::RowJoin;
use crate::logical_plan::nearest_rows::RowLimit;
use crate::range_agg::values::Values;

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
    pub(crate) memory: &'a MemoryReservation,
    /// The estimated bytes that a row has of the build side.
    pub(crate) row_bytes: usize,
    pub(crate) limit: usize,
    /// Whether the pool had no memory for the last rows.
    pub(crate) is_denied: bool,
}

impl Ready<'_> {
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

/// The pairs of probe rows with the rows of a part of a run.
pub(crate) struct Pairs<'a> {
    pub(crate) join: &'a RowJoin,
    pub(crate) part: &'a RunPart,
    pub(crate) slice_rows: usize,
    /// For each row of the batch the rows of the part up to its point, if rows are ordered by a distance.
    pub(crate) up_to_point: Option<Ranges>,
}

impl Pairs<'_> {
    /// Adds the rows of these ranges of a batch, from probe row `next` on, until all of a probe row have been taken and
    /// `ready` is full. Returns whether the batch is done.
    pub(crate) fn add_to(
        &self,
        ready: &mut Ready<'_>,
        batch: &RecordBatch,
        ranges: Ranges,
        (next, matched): (&mut usize, &mut [bool]),
        waiting: &Waiting,
    ) -> Result<bool> {
        if let Some(limit) = self.join.searched_limit() {
            return self.add_nearest(ready, batch, &ranges, limit, (next, matched), waiting);
        }
        let limit = self.join.limit();
        let ranges = match limit {
            Some(limit) => clip(&ranges, limit),
            None => ranges,
        };
        let mut candidates = Candidates::new(batch.clone(), ranges, None);
        candidates.skip_to(*next);
        candidates.descending = limit.is_some_and(|limit| limit.descending);
        while !candidates.is_done() {
            waiting.check()?;
            let (mut rows, mut positions) = (vec![], vec![]);
            let (mut seen, mut is_between_rows) = (0, true);
            while seen < self.slice_rows && !candidates.is_done() {
                let (row, range, is_last) = candidates.next_positions(self.slice_rows - seen)?;
                seen += range.len().max(1);
                if candidates.descending {
                    positions.extend(range.rev());
                } else {
                    positions.extend(range);
                }
                rows.resize(positions.len(), row);
                is_between_rows = is_last;
                if is_last && ready.is_full() {
                    break;
                }
            }
            let mut pairs = (UInt32Array::from(rows), UInt32Array::from(positions));
            if let Some(residual) = self.join.residual().filter(|_| !pairs.0.is_empty()) {
                let columns = &self.part.side.row_columns;
                let met = RowJoin::meet_residual(residual, batch, columns, (&pairs.0, &pairs.1))?;
                pairs = (filtered(&pairs.0, &met)?, filtered(&pairs.1, &met)?);
            }
            self.add(ready, batch, &pairs, matched)?;
            if is_between_rows && ready.is_full() {
                break;
            }
        }
        *next = candidates.row();
        Ok(candidates.is_done())
    }

    /// Adds the nearest rows that meet the further condition, of a slice of probe rows at a time.
    fn add_nearest(
        &self,
        ready: &mut Ready<'_>,
        batch: &RecordBatch,
        ranges: &Ranges,
        limit: RowLimit,
        (next, matched): (&mut usize, &mut [bool]),
        waiting: &Waiting,
    ) -> Result<bool> {
        let wanted = limit
            .fetch
            .unwrap_or(self.slice_rows)
            .clamp(1, self.slice_rows);
        let step = self.slice_rows.div_ceil(wanted);
        if let Some(order) = &self.part.side.row_order
            && order.should_build(ranges)
        {
            order.build(&|| waiting.check());
        }
        while *next < batch.num_rows() && !ready.is_full() {
            let slice_rows = step.min(batch.num_rows() - *next);
            let slice = batch.slice(*next, slice_rows);
            let of_slice = |ranges: &Ranges| -> Ranges {
                ranges.iter().skip(*next).take(slice_rows).collect()
            };
            let up_to_point = self.up_to_point.as_ref().map(of_slice);
            let (all, sides) = ((of_slice(ranges), up_to_point), (&slice, &*self.part.side));
            let mut nearest =
                NearestSearch::try_new(self.join, limit, all, sides, self.slice_rows)?;
            let (mut rows, mut positions) = (vec![], vec![]);
            while !nearest.is_done() {
                waiting.check()?;
                nearest.step(self.join, &slice, &self.part.side)?;
                nearest.take_found(|row, position| {
                    if let Some(position) = position {
                        rows.push(row);
                        positions.push(position);
                    }
                });
            }
            let pairs = (UInt32Array::from(rows), UInt32Array::from(positions));
            let of_slice = if matched.is_empty() {
                0..0
            } else {
                *next..*next + slice_rows
            };
            self.add(ready, &slice, &pairs, &mut matched[of_slice])?;
            *next += slice_rows;
        }
        Ok(*next == batch.num_rows())
    }

    /// Adds pairs of a batch that match, and marks the rows on both sides whose matches count.
    fn add(
        &self,
        ready: &mut Ready<'_>,
        batch: &RecordBatch,
        pairs: &(UInt32Array, UInt32Array),
        matched: &mut [bool],
    ) -> Result<()> {
        let side = &self.part.side;
        if !matched.is_empty() {
            let rows = pairs.0.values().iter();
            rows.for_each(|row| matched[*row as usize] = true);
        }
        if let Some(marks) = &side.matched {
            let positions = pairs.1.values().iter();
            positions.for_each(|position| marks.mark(*position as usize));
        }
        if !self.join.returns_build_rows() && !pairs.0.is_empty() {
            let pairs = (&pairs.0, &pairs.1);
            ready.add(self.join, batch, &side.row_columns, pairs)?;
        }
        Ok(())
    }
}

fn filtered(numbers: &UInt32Array, met: &BooleanArray) -> Result<UInt32Array> {
    let filtered: ArrayRef = arrow::compute::filter(numbers, met)?;
    Ok(filtered.as_primitive::<UInt32Type>().clone())
}
