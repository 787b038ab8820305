//! The buffered probe rows of one partition, with their aggregates over the runs that have been probed so far.

use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use datafusion::common::Result;

use crate::common::ranges::Ranges;
use crate::common::row_number::row_numbers;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::spilled::merge::{MergePlan, PartialAggregates};
use crate::exec::range_join::probe::spilled::prevailing::PrevailingSoFar;
use crate::exec::range_join::probe::spilled::probe_buffer::ProbeBuffer;
use crate::exec::range_join::spill::key_extent::{EncodedBound, KeyOrder};
use crate::exec::range_join::spill::row_position::RowPosition;
use crate::exec::range_join::spill::run::BuildRun;
use rmq_engine::SearchHints;

/// The buffered batches of one partition.
pub(crate) struct ProbeRequest {
    pub(crate) partition: Arc<ProbePartition>,
    pub(crate) merge_plan: Arc<MergePlan>,
    pub(crate) key_order: Arc<KeyOrder>,
    pub(crate) batches: Vec<RequestBatch>,
    pub(crate) buffer: Arc<ProbeBuffer>,
}

/// A buffered batch.
pub(crate) struct RequestBatch {
    pub(crate) batch: RecordBatch,
    /// The bounds of its rows, to skip runs.
    pub(crate) bounds: Vec<EncodedBound>,
    pub(crate) aggregates: PartialAggregates,
    /// The prevailing rows, if they are wanted.
    pub(crate) prevailing: Option<PrevailingSoFar>,
}

/// The rows of a batch that may match a run.
pub(crate) enum RowSelection {
    All,
    Rows(UInt32Array),
    None,
}

impl ProbeRequest {
    /// The rows of each batch that may match a run; `None` if no row does.
    pub(crate) async fn select_rows(&self, run: &BuildRun) -> Result<Option<Vec<RowSelection>>> {
        let mut selections = Vec::with_capacity(self.batches.len());
        for batch in &self.batches {
            selections.push(batch.select_rows(run)?);
            // Lets other tasks run, and lets a cancelled query end.
            tokio::task::yield_now().await;
        }
        let any = |selection: &RowSelection| !matches!(selection, RowSelection::None);
        Ok(selections.iter().any(any).then_some(selections))
    }

    /// Probes a part of a run, which begins at `first_row`, with the selected rows, and merges the aggregates.
    pub(crate) async fn probe(
        &mut self,
        selections: &[RowSelection],
        side: &Arc<BuildSide>,
        first_row: RowPosition,
    ) -> Result<()> {
        self.probe_batches(selections, side, first_row).await?;
        let batches = self.batches.iter();
        let bytes = batches.map(|b| {
            let prevailing = b.prevailing.as_ref().map_or(0, PrevailingSoFar::bytes);
            let bounds: usize = b.bounds.iter().map(EncodedBound::bytes).sum();
            DataSize::of_batch(&b.batch).bytes + bounds + b.aggregates.bytes() + prevailing
        });
        self.buffer.register(bytes.sum());
        Ok(())
    }

    async fn probe_batches(
        &mut self,
        selections: &[RowSelection],
        side: &Arc<BuildSide>,
        first_row: RowPosition,
    ) -> Result<()> {
        for (request, selection) in self.batches.iter_mut().zip(selections) {
            let Some((batch, rows)) = request.selected(selection)? else {
                continue;
            };
            let last_found = &mut SearchHints::default();
            if let Some(prevailing) = &mut request.prevailing {
                let windows = self.partition.find_windows(&batch, side, last_found)?;
                let aggregate = async |ranges: &Ranges| {
                    side.build_justified_indexes(ranges).await?;
                    let partition = &self.partition;
                    partition.aggregate_unblocked(&batch, ranges, side).await
                };
                let plan = &self.merge_plan;
                let partials = aggregate(&windows.rows).await?;
                let merged = &mut request.aggregates;
                merged.merge(plan, first_row, rows, windows.rows.matched(), partials)?;
                let partials = aggregate(&windows.prevailing).await?;
                prevailing.offer(&self.key_order, first_row, rows, &windows, partials)?;
                tokio::task::yield_now().await;
                continue;
            }
            let ranges = self.partition.find_ranges(&batch, side, last_found)?;
            let ranges = self.partition.refine(&batch, side, ranges).await?;
            side.build_justified_indexes(&ranges).await?;
            let partition = &self.partition;
            let aggregates = partition.aggregate_unblocked(&batch, &ranges, side).await?;
            let plan = &self.merge_plan;
            let merged = &mut request.aggregates;
            merged.merge(plan, first_row, rows, ranges.matched(), aggregates)?;
            // Lets other tasks run, and lets a cancelled query end.
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

impl RequestBatch {
    /// The selected rows as a batch, and their places unless they are all; `None` if there are none.
    fn selected<'a>(
        &self,
        selection: &'a RowSelection,
    ) -> Result<Option<(RecordBatch, Option<&'a UInt32Array>)>> {
        Ok(match selection {
            RowSelection::None => None,
            RowSelection::All => Some((self.batch.clone(), None)),
            RowSelection::Rows(rows) => Some((take_record_batch(&self.batch, rows)?, Some(rows))),
        })
    }

    fn select_rows(&self, run: &BuildRun) -> Result<RowSelection> {
        let rows = (0..self.batch.num_rows()).filter(|row| run.may_match(&self.bounds, *row));
        let rows = UInt32Array::from(row_numbers(rows)?);
        Ok(match rows.len() {
            0 => RowSelection::None,
            all if all == self.batch.num_rows() => RowSelection::All,
            _ => RowSelection::Rows(rows),
        })
    }
}
