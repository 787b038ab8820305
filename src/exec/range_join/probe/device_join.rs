//! Joins a partition of the probe side with a build side that devices sorted: each batch goes up once, and its
//! aggregates come down.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryPool;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::exec::common::device_batcher::{AnswerBatches, DeviceBatcher};
use crate::exec::common::metrics::OperatorMetrics;
use crate::exec::range_join::build_side::device_join::{DeviceAnswers, DeviceJoin, DeviceProbe};
use crate::exec::range_join::metrics::DeviceMetrics;
use crate::exec::range_join::probe::bounds::evaluate_bound;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::logical_plan::range_join::Unmatched;
use rmq_engine::{CandidateRanges, SearchHints};

/// A partition of the probe side, and a build side on devices.
pub(crate) struct DeviceJoinPartition {
    partition: Arc<ProbePartition>,
    build: Arc<DeviceJoin>,
    metrics: DeviceMetrics,
}

/// Joins the batches of a partition on devices.
pub(crate) fn answer_on_devices(
    partition: Arc<ProbePartition>,
    build: Arc<DeviceJoin>,
    input: BoxStream<'static, Result<RecordBatch>>,
) -> BoxStream<'static, Result<RecordBatch>> {
    let partition = DeviceJoinPartition::new(partition, build);
    DeviceBatcher::new(Arc::new(partition), input).boxed()
}

impl DeviceJoinPartition {
    pub(crate) fn new(partition: Arc<ProbePartition>, build: Arc<DeviceJoin>) -> Self {
        Self {
            metrics: partition.metrics.for_devices(),
            partition,
            build,
        }
    }

    /// The aggregates of all rows of the batches; `None` if the CPU has to compute them. Blocks the thread.
    ///
    /// # Errors
    /// A failure of forced devices, or Arrow's errors.
    pub(crate) fn try_answer(&self, batches: &[RecordBatch]) -> Result<Option<DeviceAnswers>> {
        // An error of a bound may concern rows that match nothing; the CPU tells which.
        let Ok(probe) = self.probe(batches) else {
            return Ok(None);
        };
        let answers = self.answer_on_devices(probe)?;
        self.metrics
            .device_batches
            .add(usize::from(answers.is_some()));
        Ok(answers)
    }

    /// The groups and the bounds of all rows of the batches.
    fn probe(&self, batches: &[RecordBatch]) -> Result<DeviceProbe> {
        let spec = &self.partition.spec;
        let _timer = self.partition.metrics.time_search();
        let mut probe = self.build.probe()?;
        for batch in batches {
            let equality_keys = self.partition.equality_keys(batch)?;
            let groups = self.build.groups(batch.num_rows(), &equality_keys)?;
            let can_match = || {
                let groups = groups.iter();
                groups
                    .map(|group| *group != CandidateRanges::NO_GROUP)
                    .collect()
            };
            let bounds = spec.bounds.iter();
            let bounds = bounds.map(|(_, bound)| evaluate_bound(bound, batch, can_match));
            let bounds: Vec<ArrayRef> = bounds.collect::<Result<_>>()?;
            probe.add(groups, &bounds)?;
        }
        Ok(probe)
    }

    /// The aggregates of all rows; `None` if devices fail and the CPU may take over.
    fn answer_on_devices(&self, probe: DeviceProbe) -> Result<Option<DeviceAnswers>> {
        let _timer = self.partition.metrics.time_query();
        let record_fallback = || self.metrics.cuda_fallbacks.add(1);
        self.build.answer(probe, record_fallback)
    }

    /// Joins batches on the CPU.
    fn join_on_cpu(&self, batches: &[RecordBatch]) -> Result<Vec<RecordBatch>> {
        let build = self.build.on_cpu()?;
        let mut joined = vec![];
        for batch in batches {
            let last_found = &mut SearchHints::default();
            joined.extend(
                self.partition
                    .join_blocking(batch, &build, last_found, &|| Ok(()))?,
            );
        }
        Ok(joined)
    }
}

impl AnswerBatches for DeviceJoinPartition {
    fn answer(&self, batches: &[RecordBatch]) -> Result<Vec<RecordBatch>> {
        let partition = &self.partition;
        if partition.spec.unmatched == Unmatched::Drop && self.build.rows() == 0 {
            // A join with an empty side evaluates no condition.
            let rows = batches.iter().map(RecordBatch::num_rows);
            partition.metrics.probe_rows.add(rows.sum());
            let empty = || RecordBatch::new_empty(Arc::clone(&partition.schema));
            return Ok(batches.iter().map(|_| empty()).collect());
        }
        let Some(answers) = self.try_answer(batches)? else {
            return self.join_on_cpu(batches);
        };
        let rows = batches.iter().map(RecordBatch::num_rows);
        partition.metrics.probe_rows.add(rows.sum());
        partition.append_to_batches(batches, &answers.matched, &answers.aggregates)
    }

    fn row_bytes(&self) -> usize {
        64 + 16 * self.partition.spec.aggregates.len()
    }

    fn pool(&self) -> &Arc<dyn MemoryPool> {
        &self.partition.pool
    }

    fn baseline(&self) -> &OperatorMetrics {
        &self.partition.metrics.baseline
    }
}
