//! Joins a partition of the probe side with a build side that devices sorted: each batch goes up once for each segment,
//! and its aggregates come down. Those of several segments are merged as those of spill runs are.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryPool;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::exec::common::blocking::Waiting;
use crate::exec::common::device_batcher::{AnswerBatches, DeviceBatcher};
use crate::exec::common::metrics::OperatorMetrics;
use crate::exec::range_join::bounds::evaluate_bound;
use crate::exec::range_join::build_side::device_join::{DeviceAnswers, DeviceJoin, DeviceProbe};
use crate::exec::range_join::metrics::DeviceMetrics;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::segments::{Segmented, SegmentedSide};
use crate::exec::range_join::probe::spilled::partials::Partials;
use crate::exec::range_join::shifted_bounds::ShiftedBounds;
use crate::exec::range_join::spill::row_position::RowPosition;
use datafusion_rmq_logical::logical_plan::range_join::Unmatched;
use rmq_engine::CandidateRanges;

/// A build side on devices.
pub(crate) type DeviceJoins = Segmented<DeviceJoin>;

impl DeviceJoins {
    /// Number of build rows that can match.
    pub(crate) fn rows(&self) -> usize {
        self.segments.iter().map(DeviceJoin::rows).sum()
    }

    /// The build side on the CPU, which the first call builds. Blocks the thread.
    ///
    /// # Errors
    /// Those of building it; the same at each further call.
    fn on_cpu(&self) -> Result<SegmentedSide> {
        let segments = self.segments.iter().map(DeviceJoin::on_cpu);
        Ok(SegmentedSide {
            segments: segments.collect::<Result<_>>()?,
            merge_plan: self.merge_plan.clone(),
            searches: self.searches.clone(),
        })
    }
}

/// A partition of the probe side, and a build side on devices.
pub(crate) struct DeviceJoinPartition {
    partition: Arc<ProbePartition>,
    build: Arc<DeviceJoins>,
    bounds: ShiftedBounds,
    metrics: DeviceMetrics,
}

/// Joins the batches of a partition on devices.
pub(crate) fn answer_on_devices(
    partition: Arc<ProbePartition>,
    build: Arc<DeviceJoins>,
    input: BoxStream<'static, Result<RecordBatch>>,
) -> BoxStream<'static, Result<RecordBatch>> {
    let partition = DeviceJoinPartition {
        bounds: ShiftedBounds::new(&partition.spec.bounds, &partition.schema),
        metrics: partition.metrics.for_devices(),
        partition,
        build,
    };
    DeviceBatcher::new(Arc::new(partition), input).boxed()
}

impl DeviceJoinPartition {
    /// The aggregates of all rows of the batches; `None` if the CPU has to compute them. Blocks the thread.
    ///
    /// # Errors
    /// A failure of forced devices, or Arrow's errors.
    fn try_answer(&self, batches: &[RecordBatch]) -> Result<Option<DeviceAnswers>> {
        // An error of a bound may concern rows that match nothing; the CPU tells which.
        let Ok(probes) = self.probes(batches) else {
            return Ok(None);
        };
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        let answers = self.answer_on_devices(probes, rows)?;
        self.metrics
            .device_batches
            .add(usize::from(answers.is_some()));
        Ok(answers)
    }

    /// The groups of all rows of the batches and what their bounds are made of, for each segment.
    fn probes(&self, batches: &[RecordBatch]) -> Result<Vec<DeviceProbe>> {
        let _timer = self.partition.metrics.time_search();
        let columns = &self.bounds.columns;
        let segments = self.build.segments.iter();
        let probes = segments.map(|segment| segment.probe(columns.len()));
        let mut probes: Vec<_> = probes.collect::<Result<_>>()?;
        for batch in batches {
            let equality_keys = self.partition.equality_keys(batch)?;
            let segments = self.build.segments.iter();
            let groups = segments.map(|join| join.groups(batch.num_rows(), &equality_keys));
            let groups: Vec<_> = groups.collect::<Result<_>>()?;
            let can_match = || {
                let has_group = |row: usize| {
                    let mut groups = groups.iter();
                    groups.any(|groups| groups[row] != CandidateRanges::NO_GROUP)
                };
                (0..batch.num_rows()).map(has_group).collect()
            };
            let columns = columns.iter();
            let columns = columns.map(|column| evaluate_bound(column, batch, can_match));
            let columns: Vec<ArrayRef> = columns.collect::<Result<_>>()?;
            for (probe, groups) in probes.iter_mut().zip(groups) {
                probe.add(groups, &columns)?;
            }
        }
        Ok(probes)
    }

    /// The aggregates of all rows; `None` if a bound is beyond its type, or devices fail and the CPU may take over.
    fn answer_on_devices(
        &self,
        probes: Vec<DeviceProbe>,
        rows: usize,
    ) -> Result<Option<DeviceAnswers>> {
        let build = &self.build;
        let _timer = self.partition.metrics.time_query();
        let record_fallback = || self.metrics.cuda_fallbacks.add(1);
        let plan = build.merge_plan.as_ref();
        let mut partials = plan.map(|plan| Partials::new(plan, &self.partition, rows));
        build.record_search(rows);
        for (number, (segment, probe)) in build.segments.iter().zip(probes).enumerate() {
            let bounds = &self.bounds.bounds;
            let Some(answers) = segment.answer(probe, bounds, record_fallback)? else {
                return Ok(None);
            };
            let Some(partials) = &mut partials else {
                return Ok(Some(answers));
            };
            let first_row = RowPosition::default().after(number);
            partials.merge(first_row, &answers.matched, answers.aggregates)?;
        }
        let Some(partials) = partials else {
            return internal_err!("a build side on devices has no segment");
        };
        let (matched, aggregates) = partials.finish()?;
        Ok(Some(DeviceAnswers {
            matched,
            aggregates,
        }))
    }

    /// Joins batches on the CPU.
    fn join_on_cpu(&self, batches: &[RecordBatch]) -> Result<Vec<RecordBatch>> {
        let (build, waiting) = (self.build.on_cpu()?, Waiting::forever());
        let mut joined = vec![];
        for batch in batches {
            joined.extend(build.join_blocking(&self.partition, batch, &waiting)?);
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
