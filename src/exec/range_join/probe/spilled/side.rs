//! A build side on disk.
//!
//! Each run is read, built and probed in turn, and the partial aggregates are merged. Probe rows are buffered, so that
//! one scan of the runs serves many, those of all partitions together ([`SharedScan`]). Still, the runs are read again
//! for each buffer: the work grows with the product of the rows of both sides, as that of DataFusion's nested loop join
//! does.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;

use crate::exec::range_join::build_side::builder::BuildSideBuilder;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::spilled::merge::{MergePlan, PartialAggregates};
use crate::exec::range_join::probe::spilled::prevailing::PrevailingSoFar;
use crate::exec::range_join::probe::spilled::probe_buffer::{ProbeBuffer, ProbeBufferLimit};
use crate::exec::range_join::probe::spilled::request::{ProbeRequest, RequestBatch};
use crate::exec::range_join::probe::spilled::run_loader::RunLoader;
use crate::exec::range_join::probe::spilled::shared_scan::SharedScan;
use crate::exec::range_join::spill::key_extent::{EncodedBound, KeyOrder};
use crate::exec::range_join::spill::retaining_pool::RetainingPool;
use crate::exec::range_join::spill::run::{BuildRuns, MIN_SPLIT_ROWS};

/// A build side that is probed run by run.
#[derive(Debug)]
pub(crate) struct SideInRuns {
    key_order: Arc<KeyOrder>,
    merge_plan: Arc<MergePlan>,
    scan: Arc<SharedScan>,
    memory: Arc<RetainingPool>,
    buffer_limit: Arc<ProbeBufferLimit>,
    /// The estimated bytes of the aggregates of one probe row.
    aggregate_bytes: usize,
}

impl SideInRuns {
    /// A build side that `builder` has divided into these runs, to be probed by this many partitions.
    pub(crate) fn try_new(
        runs: BuildRuns,
        builder: &BuildSideBuilder,
        probe_partitions: usize,
    ) -> Result<Self> {
        let columns = &builder.columns;
        builder.memory.retain(runs.retained_bytes());
        let merge_plan = MergePlan::try_new(columns, &builder.schema)?;
        // Each partial aggregate is as wide as one column, and all columns together are as wide as a row.
        let partials = merge_plan.columns.aggregates.len();
        let value_columns = columns.values(builder.schema.fields()).len();
        let aggregate_bytes = runs.row_bytes() * partials.div_ceil(value_columns.max(1));
        let buffer_bytes = runs.peak_granted_bytes / 4;
        let run_build_bytes = runs.run_build_bytes();
        let run_columns = merge_plan.columns.clone();
        let key_order = Arc::clone(&runs.key_order);
        let loader = RunLoader::new(runs, run_columns, builder);
        Ok(Self {
            key_order,
            merge_plan: Arc::new(merge_plan),
            scan: Arc::new(SharedScan::new(loader, run_build_bytes)),
            memory: Arc::clone(&builder.memory),
            buffer_limit: Arc::new(ProbeBufferLimit::new(buffer_bytes, probe_partitions)),
            aggregate_bytes,
        })
    }

    /// The estimated bytes of a buffered batch with its aggregates. Both are in memory twice while the output is put
    /// together.
    pub(crate) fn buffered_bytes(&self, batch: &RecordBatch) -> usize {
        let DataSize { rows, bytes } = DataSize::of_batch(batch);
        2 * (bytes + rows * self.aggregate_bytes)
    }

    /// Splits a batch into the rows that a partition may buffer, and the remainder.
    pub(crate) fn split_to_buffer(
        &self,
        batch: &RecordBatch,
    ) -> (RecordBatch, Option<RecordBatch>) {
        let rows = batch.num_rows();
        let row_bytes = self.buffered_bytes(batch).div_ceil(rows.max(1));
        let fitting_rows = self.buffer_limit.per_partition() / row_bytes.max(1);
        let fitting_rows = fitting_rows.max(MIN_SPLIT_ROWS);
        if rows <= fitting_rows {
            return (batch.clone(), None);
        }
        let remainder = batch.slice(fitting_rows, rows - fitting_rows);
        (batch.slice(0, fitting_rows), Some(remainder))
    }

    /// An empty buffer for a partition.
    pub(crate) fn new_buffer(&self) -> ProbeBuffer {
        let memory = self.memory.session_reservation();
        ProbeBuffer::new(Arc::clone(&self.buffer_limit), memory)
    }

    /// Joins buffered batches.
    pub(crate) async fn join(
        &self,
        partition: Arc<ProbePartition>,
        batches: Vec<RecordBatch>,
        buffer: Arc<ProbeBuffer>,
    ) -> Result<VecDeque<RecordBatch>> {
        let batches = batches.into_iter().map(|batch| {
            partition.metrics.probe_rows.add(batch.num_rows());
            let bounds = partition.encode_bounds(&self.key_order, &batch);
            buffer.add(bounds.iter().map(EncodedBound::bytes).sum());
            RequestBatch {
                bounds,
                aggregates: PartialAggregates::new(&self.merge_plan, batch.num_rows()),
                prevailing: (partition.spec.prevailing)
                    .then(|| PrevailingSoFar::new(batch.num_rows())),
                batch,
            }
        });
        let request = ProbeRequest {
            batches: batches.collect(),
            partition: Arc::clone(&partition),
            merge_plan: Arc::clone(&self.merge_plan),
            key_order: Arc::clone(&self.key_order),
            buffer,
        };
        let request = self.scan.probe(request).await?;
        let mut joined = VecDeque::new();
        for mut request in request.batches {
            if let Some(prevailing) = request.prevailing {
                prevailing.merge_into(&self.merge_plan, &mut request.aggregates)?;
            }
            let (matched, aggregates) = request.aggregates.finish(&partition.spec.aggregates);
            joined.extend(partition.append_aggregates(&request.batch, &matched, aggregates)?);
        }
        Ok(joined)
    }
}
