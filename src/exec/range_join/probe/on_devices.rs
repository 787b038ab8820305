//! Joins a partition of the probe side on devices. Its batches are coalesced into batches that are large enough for a
//! device.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryPool;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::common::ranges::Ranges;
use crate::exec::common::device_batcher::{AnswerBatches, DeviceBatcher};
use crate::exec::common::metrics::OperatorMetrics;
use crate::exec::range_join::build::device_side::DeviceSide;
use crate::exec::range_join::build::side::BuildSide;
use crate::exec::range_join::metrics::DeviceMetrics;
use crate::exec::range_join::probe::bounds::evaluate_bound;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::logical_plan::range_join::Unmatched;
use crate::sorted::device_keys::KeyRangeBatch;
use rmq_engine::SearchHints;

/// A partition of the probe side, and a build side with a device-resident part.
struct DevicePartition {
    partition: Arc<ProbePartition>,
    build: Arc<BuildSide>,
    metrics: DeviceMetrics,
}

/// Joins the batches of a partition on devices.
pub(crate) fn join_on_devices(
    partition: Arc<ProbePartition>,
    build: Arc<BuildSide>,
    input: BoxStream<'static, Result<RecordBatch>>,
) -> BoxStream<'static, Result<RecordBatch>> {
    let partition = DevicePartition {
        metrics: partition.metrics.for_devices(),
        partition,
        build,
    };
    DeviceBatcher::new(Arc::new(partition), input).boxed()
}

impl DevicePartition {
    /// The positions of the build side that match each row of the batches, one batch after the other. They are found on
    /// devices if these have the keys and don't fail, else on the CPU.
    fn find_ranges(&self, batches: &[RecordBatch]) -> Result<Ranges> {
        if let Some(device) = self.build.device().filter(|device| device.has_keys())
            // An error may concern rows that match nothing; the CPU tells which.
            && let Ok(Some(key_ranges)) = self.key_ranges(batches)
            && let Some(ranges) = self.find_on_devices(device, &key_ranges)?
        {
            return Ok(ranges);
        }
        let (mut left, mut right) = (vec![], vec![]);
        for batch in batches {
            let last_found = &mut SearchHints::default();
            let ranges = self.partition.find_ranges(batch, &self.build, last_found)?;
            left.extend_from_slice(ranges.left());
            right.extend_from_slice(ranges.right());
        }
        Ok(Ranges::new(left, right))
    }

    /// Finds the positions of key ranges on devices; `None` if they fail and the CPU may take over.
    fn find_on_devices(
        &self,
        device: &DeviceSide,
        key_ranges: &KeyRangeBatch,
    ) -> Result<Option<Ranges>> {
        let _timer = self.partition.metrics.time_search();
        let record_fallback = || self.metrics.cuda_fallbacks.add(1);
        device.find_ranges(key_ranges, record_fallback)
    }

    /// The range of keys of each row of the batches; `None` if devices can't search them.
    fn key_ranges(&self, batches: &[RecordBatch]) -> Result<Option<KeyRangeBatch>> {
        let spec = &self.partition.spec;
        if spec.prevailing || spec.bounds.is_empty() {
            return Ok(None);
        }
        let comparisons = spec.bounds.iter().map(|(comparison, _)| *comparison);
        let key_ranges = KeyRangeBatch::try_new(self.build.key_type(), comparisons)?;
        let Some(mut key_ranges) = key_ranges else {
            return Ok(None);
        };
        let _timer = self.partition.metrics.time_search();
        for batch in batches {
            let candidates = self.partition.candidates(batch, &self.build)?;
            let bounds = spec.bounds.iter().map(|(comparison, bound)| {
                let bounds = evaluate_bound(bound, batch, || candidates.can_match())?;
                Ok((*comparison, bounds))
            });
            let bounds: Vec<(_, ArrayRef)> = bounds.collect::<Result<_>>()?;
            key_ranges.add(candidates, &bounds)?;
        }
        Ok(Some(key_ranges))
    }
}

impl AnswerBatches for DevicePartition {
    fn answer(&self, batches: &[RecordBatch]) -> Result<Vec<RecordBatch>> {
        let partition = &self.partition;
        let rows = batches.iter().map(RecordBatch::num_rows);
        partition.metrics.probe_rows.add(rows.sum());
        if partition.spec.unmatched == Unmatched::Drop && self.build.rows().len() == 0 {
            // A join with an empty side evaluates no condition.
            let empty = || RecordBatch::new_empty(Arc::clone(&partition.schema));
            return Ok(batches.iter().map(|_| empty()).collect());
        }
        let ranges = self.find_ranges(batches)?;
        let (aggregates, used_cpu_fallback) =
            partition.aggregate(batches, &ranges, &self.build, &|| Ok(()))?;
        let counter = if used_cpu_fallback {
            &self.metrics.cuda_fallbacks
        } else {
            &self.metrics.device_batches
        };
        counter.add(1);
        let matched: Vec<bool> = ranges.iter().map(|(l, r)| l <= r).collect();
        partition.append_to_batches(batches, &matched, &aggregates)
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
