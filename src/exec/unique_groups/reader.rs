//! Reads the input until it is known whether each row is a group of its own.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, SharedResult, exec_err, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, Time};
use futures::channel::oneshot;
use futures::future::{BoxFuture, Either, Shared, select, try_join_all};
use futures::{FutureExt, StreamExt};

use crate::exec::common::blocking::joined;
use crate::exec::common::metrics::summary;
use crate::exec::unique_groups::ascending::{AscendingColumns, first_and_last};
use crate::exec::unique_groups::pattern::SingletonGroups;
use crate::exec::unique_groups::replay::{PartialRead, Replay, ReservedBatch};
use crate::kept::giving_pool::GivingPool;

/// The name of the memory consumer in the pool's reports.
const NAME: &str = "rmq unique groups";

/// The result of reading.
pub(crate) enum Grouping {
    /// Each row is a group. The rows of each output partition.
    Singletons(Vec<Mutex<VecDeque<ReservedBatch>>>),
    /// Groups may have several rows. The context has the rows that were read, for
    /// [`ReplayExec`](crate::exec::unique_groups::replay::ReplayExec).
    Any(Arc<TaskContext>),
}

impl Grouping {
    /// Takes the rows of an output partition.
    ///
    /// # Errors
    /// An internal error if there is no such partition.
    pub(crate) fn take(
        shares: &[Mutex<VecDeque<ReservedBatch>>],
        partition: usize,
    ) -> Result<VecDeque<ReservedBatch>> {
        let Some(share) = shares.get(partition) else {
            return internal_err!("no rows were assigned to partition {partition}");
        };
        let mut share = share.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut *share))
    }
}

/// The assignment of the first run in a task context. Runs that begin in the same context before that one ends must
/// agree with it, because a caller may combine partitions of several runs. `None` in it: the first run used the
/// aggregate.
#[derive(Debug, Default)]
pub(crate) struct FirstAssignment(OnceLock<Option<Assignment>>);

/// What determines the partition of each row: the key column, and for each batch the key of its first row and its
/// length.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Assignment {
    key: usize,
    batches: Vec<(Option<(i128, i128)>, usize)>,
}

impl Assignment {
    fn new<'a>(batches: impl Iterator<Item = &'a ReservedBatch>, key: usize) -> Self {
        let of_batch = |held: &ReservedBatch| (first_key(held, key), held.batch.num_rows());
        let mut batches: Vec<_> = batches.map(of_batch).collect();
        batches.sort_unstable();
        Self { key, batches }
    }
}

impl FirstAssignment {
    /// Whether a run with this assignment may return its rows as groups; otherwise it must use the aggregate.
    ///
    /// # Errors
    /// An execution error if the first run has assigned its rows differently.
    fn allows(&self, found: Option<&Assignment>) -> Result<bool> {
        let first = self.0.get_or_init(|| found.cloned());
        if first.as_ref() == found || first.is_none() {
            return Ok(first.is_some());
        }
        exec_err!(
            "a query with GROUP BY over a range join was executed again in one task context and read its rows in another way, so that \
             partitions of both runs would not fit together; execute it in a task context of its own"
        )
    }
}

/// The task that reads the input. It runs until this is dropped, whichever partitions wait for it.
pub(crate) struct ReadTask(Shared<BoxFuture<'static, SharedResult<Arc<Grouping>>>>);

impl ReadTask {
    /// Starts to read, for this number of output partitions.
    pub(crate) fn begin(
        groups: Arc<SingletonGroups>,
        partitions: usize,
        first_assignment: Arc<FirstAssignment>,
        context: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Self {
        let unique_groups = summary(metrics).counter("unique_groups", 0);
        let time = MetricBuilder::new(metrics).elapsed_compute(0);
        let reading = SpawnedTask::spawn(async move {
            read(
                &groups,
                partitions,
                &first_assignment,
                &context,
                &unique_groups,
                time,
            )
            .await
        });
        let found = async move {
            let found = joined(reading, "reading").await;
            found.map(Arc::new).map_err(Arc::new)
        };
        Self(found.boxed().shared())
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// The error of reading the input; every waiting partition gets the same one.
    pub(crate) async fn groups(&self) -> Result<Arc<Grouping>> {
        self.0.clone().await.map_err(DataFusionError::Shared)
    }
}

/// Reads all input partitions.
async fn read(
    groups: &SingletonGroups,
    partitions: usize,
    first_assignment: &FirstAssignment,
    context: &Arc<TaskContext>,
    unique_groups: &Count,
    time: Time,
) -> Result<Grouping> {
    // Reading falls back to the aggregate when memory runs out, so for a fair pool it counts as a consumer that can
    // spill.
    let memory = MemoryConsumer::new(NAME).with_can_spill(true);
    let pool = context.memory_pool();
    // The aggregate starts while the rows are still reserved, and needs memory itself.
    let max_bytes = GivingPool::free_bytes(pool) / 2;
    let memory = memory.register(pool);
    let (stop, stopped) = oneshot::channel();
    let shared = Arc::new(SharedRead {
        ascending: AscendingColumns::new(&groups.keys),
        memory: Arc::new(memory),
        max_bytes,
        stop: Mutex::new(Some(stop)),
        stopped: stopped.shared(),
        time,
    });
    let inputs = 0..groups.input.output_partitioning().partition_count();
    let inputs = inputs.map(|i| groups.input.execute(i, Arc::clone(context)));
    let inputs: Vec<_> = inputs.collect::<Result<_>>()?;
    // All tasks start before the first is awaited.
    let tasks: Vec<_> = inputs
        .into_iter()
        .map(|input| SpawnedTask::spawn(Arc::clone(&shared).read(input)))
        .collect();
    let read = try_join_all(tasks.into_iter().map(|task| joined(task, "reading")));
    let read = read.await?;
    let mut key = shared.ascending.column().filter(|_| !shared.is_stopped());
    // A single partition has all groups in either case.
    if partitions > 1 {
        let batches = || read.iter().flat_map(|read| &read.batches);
        let assignment = key.map(|key| Assignment::new(batches(), key));
        if !first_assignment.allows(assignment.as_ref())? {
            key = None;
        }
    }
    match key {
        Some(key) => {
            unique_groups.add(1);
            let batches = read.into_iter().flat_map(|read| read.batches).collect();
            Ok(Grouping::Singletons(assign(batches, key, partitions)))
        }
        None => Ok(Grouping::Any(Replay::context(context, read))),
    }
}

/// State shared by the tasks that read one partition each.
struct SharedRead {
    ascending: AscendingColumns,
    memory: Arc<MemoryReservation>,
    /// The limit of the reserved bytes.
    max_bytes: usize,
    /// Taken and dropped when groups may have several rows, or when memory runs out.
    stop: Mutex<Option<oneshot::Sender<()>>>,
    stopped: Shared<oneshot::Receiver<()>>,
    time: Time,
}

impl SharedRead {
    /// Reads one partition.
    async fn read(self: Arc<Self>, mut input: SendableRecordBatchStream) -> Result<PartialRead> {
        let mut batches = vec![];
        let mut stopped = self.stopped.clone();
        loop {
            // A partition without a batch ready must notice when another one stops the read.
            let batch = match select(&mut stopped, input.next()).await {
                Either::Left(_) => break,
                Either::Right((Some(batch), _)) => batch?,
                Either::Right((None, _)) => {
                    let rest = None;
                    return Ok(PartialRead { batches, rest });
                }
            };
            if batch.num_rows() == 0 {
                continue;
            }
            let _timer = self.time.timer();
            let may_be_unique = self.ascending.add(&batch);
            let (held, granted) = ReservedBatch::new(batch, &self.memory, self.max_bytes);
            batches.push(held);
            if !may_be_unique || !granted {
                drop(self.sender().take());
                break;
            }
        }
        let rest = Some(input);
        Ok(PartialRead { batches, rest })
    }

    fn is_stopped(&self) -> bool {
        self.sender().is_none()
    }

    fn sender(&self) -> std::sync::MutexGuard<'_, Option<oneshot::Sender<()>>> {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The key of a batch's first row.
fn first_key(held: &ReservedBatch, key: usize) -> Option<(i128, i128)> {
    first_and_last(&held.batch.slice(0, 1), key)
}

/// Assigns batches to partitions, with about the same number of rows each. The result does not depend on the order in
/// which the batches were read.
fn assign(
    mut batches: Vec<ReservedBatch>,
    key: usize,
    partitions: usize,
) -> Vec<Mutex<VecDeque<ReservedBatch>>> {
    batches.sort_by_cached_key(|held| first_key(held, key));
    let rows = |held: &ReservedBatch| RecordBatch::num_rows(&held.batch);
    let all: usize = batches.iter().map(rows).sum();
    let mut shares: Vec<VecDeque<ReservedBatch>> =
        (0..partitions).map(|_| VecDeque::new()).collect();
    let mut before = 0;
    for held in batches {
        // Fewer rows are before a batch than there are in all, so this is a partition.
        let partition = before as u128 * partitions as u128 / all.max(1) as u128;
        before += rows(&held);
        let partition = usize::try_from(partition).map_or(0, |p| p.min(partitions - 1));
        shares[partition].push_back(held);
    }
    shares.into_iter().map(Mutex::new).collect()
}
