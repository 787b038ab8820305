//! Replays rows that [`UniqueGroupsExec`](crate::exec::unique_groups::exec::UniqueGroupsExec) read before it ran the
//! aggregate.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use futures::{StreamExt, stream};

use crate::exec::common::another_run::another_run;
use crate::exec::common::metrics::OperatorMetrics;
use crate::exec::common::plan_methods::{no_expressions, replace_input, rows_of_input};
use crate::exec::range_join::data_size::DataSize;

/// A batch whose memory is reserved until it is dropped.
pub(crate) struct ReservedBatch {
    pub(crate) batch: RecordBatch,
    memory: Arc<MemoryReservation>,
    bytes: usize,
}

impl ReservedBatch {
    /// Reserves memory for a batch, up to `max_bytes` in all. Returns the batch, and whether the reservation was
    /// granted.
    pub(crate) fn new(
        batch: RecordBatch,
        memory: &Arc<MemoryReservation>,
        max_bytes: usize,
    ) -> (Self, bool) {
        let bytes = DataSize::of_batch(&batch).bytes;
        let granted =
            memory.size().saturating_add(bytes) <= max_bytes && memory.try_grow(bytes).is_ok();
        let held = Self {
            batch,
            memory: Arc::clone(memory),
            bytes: if granted { bytes } else { 0 },
        };
        (held, granted)
    }
}

impl Drop for ReservedBatch {
    fn drop(&mut self) {
        self.memory.shrink(self.bytes);
    }
}

/// A partition that was read in part.
pub(crate) struct PartialRead {
    pub(crate) batches: Vec<ReservedBatch>,
    /// The rest of the partition; none if it was read to its end.
    pub(crate) rest: Option<SendableRecordBatchStream>,
}

/// The rows of a [`ReplayExec`]'s input that were read, by partition.
pub(crate) struct Replay(Vec<Mutex<Option<PartialRead>>>);

impl Replay {
    /// Makes a task context in which a [`ReplayExec`] returns these rows, each partition once. Operators below it do
    /// not run in this context.
    pub(crate) fn context(
        context: &TaskContext,
        partitions: impl IntoIterator<Item = PartialRead>,
    ) -> Arc<TaskContext> {
        let partitions = partitions.into_iter();
        let replay = Self(partitions.map(|p| Mutex::new(Some(p))).collect());
        let config = context.session_config().clone();
        another_run(context, config.with_extension(Arc::new(replay)))
    }

    fn take(&self, partition: usize) -> Result<PartialRead> {
        let slot = self.0.get(partition);
        let read = slot.and_then(|p| p.lock().unwrap_or_else(PoisonError::into_inner).take());
        read.ok_or_else(|| internal_datafusion_err!("no rows of partition {partition} are left"))
    }
}

/// Returns its input's rows. Below a [`UniqueGroupsExec`](crate::exec::unique_groups::exec::UniqueGroupsExec) these are
/// the rows that it has read already, and then the rest of the input; in any other task context, the input itself.
#[derive(Debug)]
pub struct ReplayExec {
    input: Arc<dyn ExecutionPlan>,
    metrics: ExecutionPlanMetricsSet,
}

impl ReplayExec {
    /// Wraps an input. The operator has the properties of its input.
    #[must_use]
    pub fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        Self {
            input,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }
}

impl DisplayAs for ReplayExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => write!(f, "ReplayExec"),
            DisplayFormatType::TreeRender => Ok(()),
        }
    }
}

impl ExecutionPlan for ReplayExec {
    fn name(&self) -> &'static str {
        "ReplayExec"
    }

    rows_of_input!();

    no_expressions!();

    replace_input!(|_replay, input| Self::new(input));

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let Some(replay) = context.session_config().get_extension::<Replay>() else {
            return self.input.execute(partition, context);
        };
        let PartialRead { batches, rest } = replay.take(partition)?;
        let metrics = OperatorMetrics::new(&self.metrics, partition);
        let batches = stream::iter(batches).map(|held| Ok(held.batch.clone()));
        let batches = batches.chain(stream::iter(rest).flatten());
        let batches = batches.map(move |batch| batch.map(|batch| metrics.record(batch)));
        let schema = self.schema();
        let batches = RecordBatchStreamAdapter::new(schema, batches);
        Ok(make_cooperative(Box::pin(batches)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
