//! The buffered probe rows of one partition, with their aggregates over the runs that have been probed so far.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use datafusion::common::{DataFusionError, Result};

use crate::common::ranges::Ranges;
use crate::common::row_number::row_numbers;
use crate::exec::common::blocking::blocking;
use crate::exec::common::device_batcher::BATCH_ROWS;
use crate::exec::range_join::build::device_join::DeviceJoin;
use crate::exec::range_join::build::side::BuildSide;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::probe::device_join::DeviceJoinPartition;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::spilled::merge::{MergePlan, PartialAggregates};
use crate::exec::range_join::probe::spilled::prevailing::PrevailingSoFar;
use crate::exec::range_join::probe::spilled::probe_buffer::ProbeBuffer;
use crate::exec::range_join::probe::spilled::run_loader::BuiltPart;
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
    /// Whether any row may match a run.
    pub(crate) fn may_match(&self, run: &BuildRun) -> bool {
        let mut batches = self.batches.iter();
        batches.any(|b| (0..b.batch.num_rows()).any(|row| run.may_match(&b.bounds, row)))
    }

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
        part: &BuiltPart,
        first_row: RowPosition,
    ) -> Result<()> {
        match part {
            BuiltPart::Cpu(side) => {
                let all = 0..selections.len();
                self.probe_on_cpu(all, selections, side, first_row).await?;
            }
            BuiltPart::Devices(join) => self.probe_on_devices(selections, join, first_row).await?,
        }
        let batches = self.batches.iter();
        let bytes = batches.map(|b| {
            let prevailing = b.prevailing.as_ref().map_or(0, PrevailingSoFar::bytes);
            let bounds: usize = b.bounds.iter().map(EncodedBound::bytes).sum();
            DataSize::of_batch(&b.batch).bytes + bounds + b.aggregates.bytes() + prevailing
        });
        self.buffer.register(bytes.sum());
        Ok(())
    }

    /// Probes with some of the batches.
    async fn probe_on_cpu(
        &mut self,
        batches: Range<usize>,
        selections: &[RowSelection],
        side: &Arc<BuildSide>,
        first_row: RowPosition,
    ) -> Result<()> {
        let requests = self.batches[batches.clone()].iter_mut();
        for (request, selection) in requests.zip(&selections[batches]) {
            let Some((batch, rows)) = request.selected(selection)? else {
                continue;
            };
            let last_found = &mut SearchHints::default();
            if let Some(prevailing) = &mut request.prevailing {
                let windows = self.partition.find_windows(&batch, side, last_found)?;
                let aggregate = async |ranges: &Ranges| {
                    side.build_justified_indexes(ranges).await?;
                    let batches = std::slice::from_ref(&batch);
                    let partition = &self.partition;
                    let aggregates = partition.aggregate_unblocked(batches, ranges, side).await?;
                    Ok::<_, DataFusionError>(aggregates.0)
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
            let batches = std::slice::from_ref(&batch);
            let partition = &self.partition;
            let (aggregates, _) = partition
                .aggregate_unblocked(batches, &ranges, side)
                .await?;
            let plan = &self.merge_plan;
            let merged = &mut request.aggregates;
            merged.merge(plan, first_row, rows, ranges.matched(), aggregates)?;
            // Lets other tasks run, and lets a cancelled query end.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Sends the selected rows to devices, those of several batches at a time. If devices fail, the CPU builds the part and probes it.
    async fn probe_on_devices(
        &mut self,
        selections: &[RowSelection],
        join: &Arc<DeviceJoin>,
        first_row: RowPosition,
    ) -> Result<()> {
        let partition = Arc::clone(&self.partition);
        let partition = Arc::new(DeviceJoinPartition::new(partition, Arc::clone(join)));
        let mut next = 0;
        while next < selections.len() {
            let (first, mut rows, mut selected) = (next, 0, vec![]);
            while next < selections.len() && rows < BATCH_ROWS {
                let batch = self.batches[next].selected(&selections[next])?;
                rows += batch.as_ref().map_or(0, |(batch, _)| batch.num_rows());
                selected.push(batch);
                next += 1;
            }
            if rows == 0 {
                continue;
            }
            let batches = selected.iter().flatten().map(|(batch, _)| batch.clone());
            let batches: Vec<RecordBatch> = batches.collect();
            let asked = Arc::clone(&partition);
            let Some(answers) = blocking(move |_| asked.try_answer(&batches)).await? else {
                let join = Arc::clone(join);
                let side = blocking(move |_| join.on_cpu()).await?;
                let left = first..selections.len();
                return self.probe_on_cpu(left, selections, &side, first_row).await;
            };
            let mut start = 0;
            let requests = self.batches[first..next].iter_mut().zip(&selected);
            for (request, selected) in requests {
                let Some((batch, selected)) = selected else {
                    continue;
                };
                let rows = start..start + batch.num_rows();
                start = rows.end;
                let partials = answers.aggregates.iter();
                let partials = partials.map(|a| a.slice(rows.start, rows.len())).collect();
                let matched = answers.matched[rows].iter().copied();
                let plan = &self.merge_plan;
                let merged = &mut request.aggregates;
                merged.merge(plan, first_row, *selected, matched, partials)?;
                tokio::task::yield_now().await;
            }
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
