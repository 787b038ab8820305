//! The input of the partitions of a probe side, of which some may be read before the build side.
//!
//! Any partition's task may read any partition ahead: which one polls a [`SharedWork`] does not matter, so none depends
//! on another being polled.

use std::mem;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use futures::future::{Either, join_all, select};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::watch;

use crate::exec::common::once_per_run::{SharedWork, lock};
use crate::exec::common::plan_key::check_unchanged;
use rmq_arrow::common::array_bytes::arrays_bytes;

/// Batches of one partition.
pub(crate) type BatchStream = BoxStream<'static, Result<RecordBatch>>;

/// The most rows that are read ahead. Their windows are sorted.
pub(crate) const MAX_ROWS_AHEAD: usize = 1 << 20;

/// The input of one partition.
#[derive(Debug)]
pub(crate) struct ProbeInput {
    read: Arc<Mutex<ReadInput>>,
    first: SharedWork<bool>,
    ahead: SharedWork<bool>,
    budget: Arc<AheadBudget>,
}

/// What has been read of a partition, and the rest.
#[derive(Default)]
pub(crate) struct ReadInput {
    pub(crate) batches: Vec<RecordBatch>,
    /// Registers the batches that were read ahead.
    pub(crate) memory: Option<MemoryReservation>,
    /// `None` while it is read, and after its end.
    pub(crate) rest: Option<BatchStream>,
}

impl std::fmt::Debug for ReadInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadInput").finish_non_exhaustive()
    }
}

/// How much all partitions together may read ahead, and whether they shall stop.
#[derive(Debug)]
struct AheadBudget {
    rows: AtomicUsize,
    bytes: AtomicUsize,
    is_stopped: watch::Sender<bool>,
}

impl AheadBudget {
    fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            rows: AtomicUsize::new(MAX_ROWS_AHEAD),
            bytes: AtomicUsize::new(bytes),
            is_stopped: watch::Sender::new(bytes == 0),
        })
    }

    fn stop(&self) {
        self.is_stopped.send_replace(true);
    }

    /// Takes the memory of a batch from the budget. Returns whether that and the pool had so much.
    fn admits(&self, batch: &RecordBatch, memory: Option<&MemoryReservation>) -> bool {
        let take = |left: &AtomicUsize, count: usize| {
            let less = |left: usize| left.checked_sub(count);
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
                .is_ok()
        };
        let bytes = arrays_bytes(batch.columns());
        take(&self.rows, batch.num_rows())
            && take(&self.bytes, bytes)
            && memory.is_none_or(|memory| memory.try_grow(bytes).is_ok())
    }
}

impl ProbeInput {
    /// A partition that is not read ahead.
    pub(crate) fn new(input: SendableRecordBatchStream) -> Arc<Self> {
        Arc::new(Self::within(AheadBudget::new(0), input, None))
    }

    fn within(
        budget: Arc<AheadBudget>,
        input: SendableRecordBatchStream,
        memory: Option<MemoryReservation>,
    ) -> Self {
        Self {
            read: Arc::new(Mutex::new(ReadInput {
                batches: vec![],
                memory,
                rest: Some(input.fuse().boxed()),
            })),
            first: SharedWork::default(),
            ahead: SharedWork::default(),
            budget,
        }
    }

    /// Reads the first batch with rows. Returns whether there is one.
    ///
    /// # Errors
    /// The input's.
    pub(crate) async fn has_rows(&self) -> Result<bool> {
        let read = Arc::clone(&self.read);
        let first = || async move {
            let Some(mut rest) = lock(&read).rest.take() else {
                return Ok(false);
            };
            let batch = next_with_rows(&mut rest).await?;
            let mut read = lock(&read);
            let has_rows = batch.is_some();
            read.rest = Some(rest).filter(|_| has_rows);
            read.batches.extend(batch);
            Ok(has_rows)
        };
        Ok(*self.first.get(first).await?)
    }

    /// Reads until the partition ends, the budget is exhausted, or it is told to stop. Returns whether it has ended.
    async fn read_ahead(&self) -> Result<bool> {
        if !self.has_rows().await? {
            return Ok(true);
        }
        let (read, budget) = (Arc::clone(&self.read), Arc::clone(&self.budget));
        let ahead = || async move {
            let mut stop = budget.is_stopped.subscribe();
            let Some(mut rest) = lock(&read).rest.take() else {
                return Ok(true);
            };
            let first = lock(&read).batches.first().cloned();
            let admits = |batch: &RecordBatch| budget.admits(batch, lock(&read).memory.as_ref());
            if !*stop.borrow() && first.is_some_and(|first| !admits(&first)) {
                budget.stop();
            }
            loop {
                let next = {
                    let stopped = pin!(stop.wait_for(|is_stopped| *is_stopped));
                    match select(stopped, pin!(next_with_rows(&mut rest))).await {
                        Either::Left(_) => break,
                        Either::Right((next, _)) => next?,
                    }
                };
                let Some(batch) = next else {
                    return Ok(true);
                };
                if !admits(&batch) {
                    budget.stop();
                }
                lock(&read).batches.push(batch);
            }
            lock(&read).rest = Some(rest);
            Ok(false)
        };
        Ok(*self.ahead.get(ahead).await?)
    }

    /// The batches that have been read, and the rest. To be called once, after [`Self::has_rows`].
    ///
    /// # Errors
    /// The input's.
    pub(crate) async fn take(&self) -> Result<ReadInput> {
        self.budget.stop();
        self.read_ahead().await?;
        Ok(mem::take(&mut *lock(&self.read)))
    }
}

/// A probe side in files whose keys were read before its rows.
#[derive(Debug, Clone)]
pub(crate) struct ReadBefore {
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    pub(crate) context: Arc<TaskContext>,
}

impl ReadBefore {
    /// Its rows, and after them an error if a file has changed since the query was planned: then they may have other
    /// keys.
    pub(crate) fn still_there_after(&self, rows: BatchStream) -> BatchStream {
        let this = self.clone();
        let check = stream::once(async move {
            check_unchanged(&this.plan, &this.context).await?;
            Ok(None)
        });
        let rows = rows.map_ok(Some).chain(check);
        rows.try_filter_map(|batch| async { Ok(batch) }).boxed()
    }
}

impl ReadInput {
    /// The batches that have been read, and the rest, which keeps the memory of both.
    pub(crate) fn into_parts(self) -> (Vec<RecordBatch>, BatchStream) {
        let memory = self.memory;
        let rest = self.rest.unwrap_or_else(|| stream::empty().boxed());
        let rest = rest.inspect(move |_| {
            let _held = &memory;
        });
        (self.batches, rest.boxed())
    }
}

/// The partitions of a probe side that may be read before the build side.
#[derive(Debug, Default)]
pub(crate) struct ProbeInputs {
    known: Mutex<KnownInputs>,
}

#[derive(Debug, Default)]
struct KnownInputs {
    budget: Option<Arc<AheadBudget>>,
    partitions: Vec<Option<Arc<ProbeInput>>>,
}

impl ProbeInputs {
    /// The input of a partition, which `execute` makes unless that has been done. All together may read `bytes` ahead,
    /// which are registered in `pool`.
    ///
    /// # Errors
    /// Those of `execute`.
    pub(crate) fn partition(
        &self,
        partition: usize,
        bytes: usize,
        pool: &Arc<dyn MemoryPool>,
        execute: impl FnOnce() -> Result<SendableRecordBatchStream>,
    ) -> Result<Arc<ProbeInput>> {
        let mut known = lock(&self.known);
        if let Some(Some(input)) = known.partitions.get(partition) {
            return Ok(Arc::clone(input));
        }
        let budget = known.budget.get_or_insert_with(|| AheadBudget::new(bytes));
        let memory = MemoryConsumer::new(format!("RangeJoinProbe[{partition}]")).register(pool);
        let budget = Arc::clone(budget);
        let input = Arc::new(ProbeInput::within(budget, execute()?, Some(memory)));
        if known.partitions.len() <= partition {
            known.partitions.resize(partition + 1, None);
        }
        known.partitions[partition] = Some(Arc::clone(&input));
        Ok(input)
    }

    /// Tells all partitions together to read at most this many rows ahead, unless they have begun.
    pub(crate) fn limit_rows(&self, rows: usize) {
        if let Some(budget) = &lock(&self.known).budget {
            budget.rows.fetch_min(rows, Ordering::Relaxed);
        }
    }

    /// Tells all partitions to read no further ahead.
    pub(crate) fn stop(&self) {
        if let Some(budget) = &lock(&self.known).budget {
            budget.stop();
        }
    }

    /// The batches of each partition that have been read.
    pub(crate) fn read_so_far(&self) -> Vec<Vec<RecordBatch>> {
        let known = lock(&self.known);
        let inputs = known.partitions.iter().flatten();
        inputs
            .map(|input| lock(&input.read).batches.clone())
            .collect()
    }

    /// Reads all partitions ahead. Returns their batches if they have ended within the budget; `None` if one has not,
    /// or has failed, which its own task will find.
    pub(crate) async fn read_ahead(&self) -> Option<Vec<RecordBatch>> {
        let (inputs, budget) = {
            let known = lock(&self.known);
            let inputs = known.partitions.iter().flatten().cloned();
            (inputs.collect::<Vec<_>>(), known.budget.clone()?)
        };
        let mut stop = budget.is_stopped.subscribe();
        let all = join_all(inputs.iter().map(|input| input.read_ahead()));
        // A partition that waits for its first batch is told nothing.
        let stopped = pin!(stop.wait_for(|is_stopped| *is_stopped));
        let ended = match select(pin!(all), stopped).await {
            Either::Left((ended, _)) => ended,
            Either::Right(_) => return None,
        };
        if !ended.into_iter().all(|ended| ended.unwrap_or(false)) {
            budget.stop();
            return None;
        }
        let batches = inputs
            .iter()
            .flat_map(|input| lock(&input.read).batches.clone());
        Some(batches.collect())
    }
}

/// The next batch that has rows.
pub(crate) async fn next_with_rows(input: &mut BatchStream) -> Result<Option<RecordBatch>> {
    while let Some(batch) = input.try_next().await? {
        if batch.num_rows() > 0 {
            return Ok(Some(batch));
        }
    }
    Ok(None)
}
