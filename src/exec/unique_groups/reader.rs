//! Reads rows that are to be grouped, until it is known whether each is a group of its own.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{
    DataFusionError, Result, SharedResult, exec_err, internal_datafusion_err,
};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, Time};
use futures::channel::oneshot;
use futures::future::{BoxFuture, Either, Shared, select, try_join_all};
use futures::{FutureExt, StreamExt};

use crate::exec::unique_groups::ascending::{Ascending, ends};
use crate::exec::unique_groups::pattern::GroupsOfOne;
use crate::exec::unique_groups::replay::{Held, PartlyRead, Replay};

/// The consumer's name in the pool's reports.
const NAME: &str = "rmq unique groups";

/// What was found.
pub(crate) enum Groups {
    /// Each row is a group. The rows, dealt out to partitions.
    OfOne(Vec<Mutex<VecDeque<Held>>>),
    /// There may be groups of several rows. Those that were read are in this context.
    OfAny(Arc<TaskContext>),
}

impl Groups {
    /// The rows of a partition, where each is a group.
    pub(crate) fn take(shares: &[Mutex<VecDeque<Held>>], partition: usize) -> VecDeque<Held> {
        let share = shares.get(partition).map(|share| {
            let mut share = share.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *share)
        });
        share.unwrap_or_default()
    }
}

/// What the first run in a task context found, for those that begin in it before that ends: a caller may get partitions of several runs.
#[derive(Debug, Default)]
pub(crate) struct Dealt(OnceLock<Option<Dealing>>);

/// Of rows that are groups, what decides to which partitions they are dealt: the key, and of each batch its first row's key and
/// its length.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Dealing {
    key: usize,
    batches: Vec<(Option<(i128, i128)>, usize)>,
}

impl Dealing {
    fn new<'a>(batches: impl Iterator<Item = &'a Held>, key: usize) -> Self {
        let of_batch = |held: &Held| (first_key(held, key), held.batch.num_rows());
        let mut batches: Vec<_> = batches.map(of_batch).collect();
        batches.sort_unstable();
        Self { key, batches }
    }
}

impl Dealt {
    /// Whether a run that found this may give its rows as groups. Else the ordinary aggregate runs.
    ///
    /// # Errors
    /// If the first run has dealt out other rows, or this one found none to deal out.
    fn allows(&self, found: Option<&Dealing>) -> Result<bool> {
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

/// Reading, which goes on until this is dropped, whoever waits for it.
pub(crate) struct Reading(Shared<BoxFuture<'static, SharedResult<Arc<Groups>>>>);

impl Reading {
    /// Begins to read, for so many partitions of groups.
    pub(crate) fn begin(
        groups: Arc<GroupsOfOne>,
        partitions: usize,
        dealt: Arc<Dealt>,
        context: Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Self {
        let builder = || MetricBuilder::new(metrics);
        let unique_groups = builder().counter("unique_groups", 0);
        let time = builder().elapsed_compute(0);
        let reading = SpawnedTask::spawn(async move {
            read(&groups, partitions, &dealt, &context, &unique_groups, time).await
        });
        let found = async move {
            let found = reading.join_unwind().await;
            let found = found.map_err(|e| internal_datafusion_err!("reading did not end: {e}"));
            found.flatten().map(Arc::new).map_err(Arc::new)
        };
        Self(found.boxed().shared())
    }

    /// # Errors
    /// What reading came to; all who wait get it.
    pub(crate) async fn groups(&self) -> Result<Arc<Groups>> {
        self.0.clone().await.map_err(DataFusionError::Shared)
    }
}

/// Reads all partitions of the rows.
async fn read(
    groups: &GroupsOfOne,
    partitions: usize,
    dealt: &Dealt,
    context: &Arc<TaskContext>,
    unique_groups: &Count,
    time: Time,
) -> Result<Groups> {
    // What does not fit makes the ordinary aggregate run, so a fair pool gives it its share.
    let memory = MemoryConsumer::new(NAME).with_can_spill(true);
    let pool = context.memory_pool();
    // The aggregate begins while the rows are still held, and needs memory, too.
    let most = match pool.memory_limit() {
        MemoryLimit::Finite(limit) => limit.saturating_sub(pool.reserved()) / 2,
        MemoryLimit::Infinite | MemoryLimit::Unknown => usize::MAX,
    };
    let memory = memory.register(pool);
    let (stop, stopped) = oneshot::channel();
    let search = Arc::new(Search {
        ascending: Ascending::new(&groups.keys),
        memory: Arc::new(memory),
        most,
        stop: Mutex::new(Some(stop)),
        stopped: stopped.shared(),
        time,
    });
    let inputs = 0..groups.input.output_partitioning().partition_count();
    let inputs = inputs.map(|i| groups.input.execute(i, Arc::clone(context)));
    let inputs: Vec<_> = inputs.collect::<Result<_>>()?;
    // All are begun before one is waited for.
    let tasks: Vec<_> = inputs
        .into_iter()
        .map(|input| SpawnedTask::spawn(Arc::clone(&search).read(input)))
        .collect();
    let read = try_join_all(tasks.into_iter().map(|task| async move {
        let read = task.join_unwind().await;
        read.map_err(|e| internal_datafusion_err!("reading did not end: {e}"))?
    }));
    let read = read.await?;
    let mut key = search.ascending.place().filter(|_| !search.is_stopped());
    // One partition holds all groups, whichever way they were found.
    if partitions > 1 {
        let batches = || read.iter().flat_map(|read| &read.batches);
        let dealing = key.map(|key| Dealing::new(batches(), key));
        if !dealt.allows(dealing.as_ref())? {
            key = None;
        }
    }
    match key {
        Some(key) => {
            unique_groups.add(1);
            let batches = read.into_iter().flat_map(|read| read.batches).collect();
            Ok(Groups::OfOne(deal(batches, key, partitions)))
        }
        None => Ok(Groups::OfAny(Replay::context(context, read))),
    }
}

/// What the tasks that read have in common.
struct Search {
    ascending: Ascending,
    memory: Arc<MemoryReservation>,
    /// So many bytes are held at most.
    most: usize,
    /// Dropped when it is known that groups may have several rows, or that there is no memory to find out.
    stop: Mutex<Option<oneshot::Sender<()>>>,
    stopped: Shared<oneshot::Receiver<()>>,
    time: Time,
}

impl Search {
    /// Reads one partition.
    async fn read(self: Arc<Self>, mut input: SendableRecordBatchStream) -> Result<PartlyRead> {
        let mut batches = vec![];
        let mut stopped = self.stopped.clone();
        loop {
            // A partition that has no rows for now must not keep the others waiting.
            let batch = match select(&mut stopped, input.next()).await {
                Either::Left(_) => break,
                Either::Right((Some(batch), _)) => batch?,
                Either::Right((None, _)) => {
                    let rest = None;
                    return Ok(PartlyRead { batches, rest });
                }
            };
            if batch.num_rows() == 0 {
                continue;
            }
            let _timer = self.time.timer();
            let may_be_unique = self.ascending.add(&batch);
            let (held, granted) = Held::new(batch, &self.memory, self.most);
            batches.push(held);
            if !may_be_unique || !granted {
                drop(self.sender().take());
                break;
            }
        }
        let rest = Some(input);
        Ok(PartlyRead { batches, rest })
    }

    fn is_stopped(&self) -> bool {
        self.sender().is_none()
    }

    fn sender(&self) -> std::sync::MutexGuard<'_, Option<oneshot::Sender<()>>> {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The key of a batch's first row.
fn first_key(held: &Held, key: usize) -> Option<(i128, i128)> {
    ends(&held.batch.slice(0, 1), key)
}

/// Deals batches out to so many partitions, about as many rows to each. Whenever the same rows come in the same batches, each
/// partition gets the same, whichever came first.
fn deal(mut batches: Vec<Held>, key: usize, partitions: usize) -> Vec<Mutex<VecDeque<Held>>> {
    batches.sort_by_cached_key(|held| first_key(held, key));
    let rows = |held: &Held| RecordBatch::num_rows(&held.batch);
    let all: usize = batches.iter().map(rows).sum();
    let mut shares: Vec<VecDeque<Held>> = (0..partitions).map(|_| VecDeque::new()).collect();
    let mut before = 0;
    for held in batches {
        let place = before as u128 * partitions as u128 / all.max(1) as u128;
        before += rows(&held);
        let place = usize::try_from(place).unwrap_or_default();
        if let Some(share) = shares.get_mut(place) {
            share.push_back(held);
        }
    }
    shares.into_iter().map(Mutex::new).collect()
}
