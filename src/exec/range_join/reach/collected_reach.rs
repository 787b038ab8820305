//! The rows of a collected build side that the windows of a probe side can reach.
//!
//! Rows that are in memory already, or come from scans that can't prune, are collected without a copy, as for any join.
//! Only then are the windows of a small probe side made out, and only rows that these reach are copied and sorted: to
//! compare a row with all windows takes a fraction of the time that it takes to sort it. A sample tells whether most
//! are reached. These are sorted once and kept.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::filter_record_batch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;

use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::reach::window_reach::Reach;
use datafusion_rmq_logical::logical_plan::range_join::RangeJoinSpec;
use datafusion_rmq_logical::rules::common::max_rows::MAX_EAGERLY_SORTED_ROWS;
use rmq_arrow::common::array_bytes::{arrays_bytes, compact_if_sparse};
use rmq_arrow::common::workers::Workers;
use rmq_arrow::sorted::order_keys::OrderKeys;

/// With more than one probe row for so many build rows, the build side is sorted: to make out a window takes about as
/// long as to sort ten rows.
pub(crate) const MIN_ROWS_PER_WINDOW: usize = 256;

/// Where windows reach more than one of so many rows, all are sorted.
const MIN_ROWS_PER_REACHED: usize = 4;

/// Rows with fewer descents than one in so many are about as good as sorted.
const MAX_SORTED_PER_DESCENT: usize = 256;

/// The rows of a sample are in this many places.
const SAMPLES: usize = 16;

/// The rows of a sample in one place.
const SAMPLE_ROWS: usize = 256;

/// Whether sorting these rows takes so long that it is worth finding out which are reached.
///
/// # Errors
/// If the range key has no order.
pub(crate) fn is_long_to_sort(columns: &BuildColumns, batches: &[RecordBatch]) -> Result<bool> {
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let (Some(first), true) = (batches.first(), rows > MAX_EAGERLY_SORTED_ROWS) else {
        return Ok(false);
    };
    if columns.num_equality_keys > 0 {
        // Grouping moves all rows, even if they are in the order of the range key.
        return Ok(true);
    }
    // Those of the first batch, and the first ones of all.
    let key = |batch: &RecordBatch| Arc::clone(columns.range_key(batch.columns()));
    let key_of_first = key(first);
    let pairs = key_of_first.len() - 1;
    let before = (key_of_first.slice(0, pairs), key_of_first.slice(1, pairs));
    let starts = batches.windows(2);
    let starts = starts.map(|pair| (key(&pair[0]).slice(0, 1), key(&pair[1]).slice(0, 1)));
    let (mut compared, mut descents) = (0, 0);
    for (one, next) in std::iter::once(before).chain(starts) {
        let ascending = OrderKeys::are_at_most(&one, &next)?;
        compared += ascending.len();
        descents += ascending.len() - ascending.count_set_bits();
    }
    Ok(descents > compared / MAX_SORTED_PER_DESCENT)
}

/// The same join of a build side that has been collected, whose keys are columns.
pub(crate) fn over_collected(
    spec: &RangeJoinSpec<PhysicalExprRef>,
    columns: &BuildColumns,
) -> RangeJoinSpec<PhysicalExprRef> {
    let column = |index: usize| Arc::new(Column::new(&index.to_string(), index));
    let mut spec = spec.clone();
    for (index, (_, key)) in spec.on.iter_mut().enumerate() {
        *key = column(index);
    }
    spec.key = column(columns.num_equality_keys);
    spec
}

/// Compares collected rows with what windows reach of them.
pub(crate) struct CollectedReach<'a> {
    pub(crate) reach: &'a Reach,
    pub(crate) columns: &'a BuildColumns,
    pub(crate) batches: &'a [RecordBatch],
}

impl CollectedReach<'_> {
    /// Whether most rows are not reached, by a sample of them.
    ///
    /// # Errors
    /// Those of the comparisons.
    pub(crate) fn is_small(&self) -> Result<bool> {
        let batches = self.batches;
        let total: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let (mut number, mut before) = (0, 0);
        let (mut compared, mut reached) = (0, 0);
        for sample in 0..SAMPLES {
            let row = (2 * sample + 1) * total / (2 * SAMPLES);
            while before + batches[number].num_rows() <= row {
                before += batches[number].num_rows();
                number += 1;
            }
            let from = row - before;
            let rows = SAMPLE_ROWS.min(batches[number].num_rows() - from);
            compared += rows;
            let rows = batches[number].slice(from, rows);
            reached += self.reach.contains(&self.keys(&rows)?)?.true_count();
        }
        Ok(reached * MIN_ROWS_PER_REACHED <= compared)
    }

    /// The rows that are reached, in their order. `memory` registers them.
    ///
    /// # Errors
    /// Those of the comparisons; if memory is short, or the query is cancelled.
    pub(crate) fn rows(
        &self,
        memory: &MemoryReservation,
        workers: Workers<'_>,
    ) -> Result<Vec<RecordBatch>> {
        if self.reach.is_empty() {
            return Ok(vec![]);
        }
        let batches = self.batches.iter().collect();
        let reached = workers.map(batches, |batch| {
            let reached = self.reach.contains(&self.keys(batch)?)?;
            let (schema, columns, _) = filter_record_batch(batch, &reached)?.into_parts();
            let columns = columns.into_iter().map(compact_if_sparse).collect();
            let reached = RecordBatch::try_new(schema, columns)?;
            memory.try_grow(arrays_bytes(reached.columns()))?;
            Ok(reached)
        })?;
        let reached = reached.into_iter().filter(|batch| batch.num_rows() > 0);
        Ok(reached.collect())
    }

    /// The equality keys and the range key of rows.
    fn keys(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let keys: Vec<usize> = (0..=self.columns.num_equality_keys).collect();
        Ok(batch.project(&keys)?)
    }
}
