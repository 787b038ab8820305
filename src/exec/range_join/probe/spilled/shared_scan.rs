//! One scan of the runs that serves all partitions: a run in memory is probed for every partition that waits.
//!
//! ```text
//!   runs               0   1   2   3   4   5   0   1   2   3 ...    one is built at a time
//!   partition A        └───────────────────┘
//!   partition B                └───────────────────────┘            joins at the current run
//! ```
//!
//! 1. A partition submits the rows that it has buffered, and waits.
//! 2. A task reads the runs in a circle. Before each run, the partitions that have submitted rows join the scan.
//! 3. A partition whose rows have visited each run once gets its aggregates. The task ends when no partition is left;
//!    the last run stays in memory.
//!
//! If all partitions submit rows at the same time, the runs are read as often as if one partition had all rows.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use futures::future::{Either, join_all, select};
use tokio::sync::oneshot;

use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::spilled::request::{ProbeRequest, RowSelection};
use crate::exec::range_join::probe::spilled::run_loader::RunLoader;
use crate::exec::range_join::spill::reader::RunReader;
use crate::exec::range_join::spill::row_position::RowPosition;
use crate::exec::range_join::spill::run::BuildRun;

/// The scan of one build side.
pub(crate) struct SharedScan {
    loader: Arc<RunLoader>,
    state: Mutex<State>,
    /// Locked by the task while it runs.
    loaded: tokio::sync::Mutex<Loaded>,
}

#[derive(Default)]
struct State {
    /// Requests that join the scan at the next run.
    submitted: Vec<Visitor>,
    /// Whether the task is running.
    is_running: bool,
    /// The task that scans the runs. Dropping it would abort it.
    task: Option<SpawnedTask<()>>,
}

/// What the scan has in memory.
struct Loaded {
    /// Memory for building a run, or a part of it.
    build_bytes: usize,
    /// The index of the run that was probed last, if it was built as a whole.
    last_run: Option<(usize, Arc<BuildSide>)>,
}

/// A run that is being read, and its next part; none at the end.
struct OpenRun {
    reader: RunReader,
    part: Option<(Arc<BuildSide>, RowPosition)>,
    /// Memory for building a part.
    build_bytes: usize,
}

impl OpenRun {
    /// Opens a run and builds its first part.
    async fn open(loader: &RunLoader, run: usize, build_bytes: usize) -> Result<Self> {
        let mut open = Self {
            reader: loader.runs()[run].read()?,
            part: None,
            build_bytes,
        };
        open.build_next(loader).await?;
        Ok(open)
    }

    /// Frees the part and builds the next one.
    async fn build_next(&mut self, loader: &RunLoader) -> Result<()> {
        self.part = None;
        let build_bytes = &mut self.build_bytes;
        let part = loader
            .load(&mut self.reader, build_bytes, usize::MAX)
            .await?;
        self.part = part;
        Ok(())
    }
}

/// A request on its way through the runs.
struct Visitor {
    request: ProbeRequest,
    /// Whether it has visited each run.
    visited: Vec<bool>,
    reply: oneshot::Sender<Result<ProbeRequest>>,
}

/// The requests that probe the current run, with the rows that may match it.
type RunVisitors = Vec<(Visitor, Arc<[RowSelection]>)>;

impl Visitor {
    /// Selects the rows that may match a run; `None` if the partition has been dropped.
    async fn select_rows(&mut self, run: &BuildRun) -> Option<Result<Option<Vec<RowSelection>>>> {
        unless(self.reply.closed(), self.request.select_rows(run)).await
    }

    /// Probes a part of a run; `None` if the partition has been dropped.
    async fn probe(
        &mut self,
        selections: &[RowSelection],
        part: &Arc<BuildSide>,
        first_row: RowPosition,
    ) -> Option<Result<()>> {
        let probed = self.request.probe(selections, part, first_row);
        unless(self.reply.closed(), probed).await
    }
}

impl fmt::Debug for SharedScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedScan").finish_non_exhaustive()
    }
}

impl SharedScan {
    /// A scan that has read nothing. It builds runs in this much memory.
    pub(crate) fn new(loader: RunLoader, build_bytes: usize) -> Self {
        Self {
            loader: Arc::new(loader),
            state: Mutex::default(),
            loaded: tokio::sync::Mutex::new(Loaded {
                build_bytes,
                last_run: None,
            }),
        }
    }

    /// Probes all runs, and returns the request with the aggregates.
    pub(crate) async fn probe(self: &Arc<Self>, request: ProbeRequest) -> Result<ProbeRequest> {
        let (reply, answer) = oneshot::channel();
        let visitor = Visitor {
            request,
            visited: vec![false; self.loader.runs().len()],
            reply,
        };
        {
            let mut state = self.state();
            state.submitted.push(visitor);
            if !state.is_running {
                state.is_running = true;
                state.task = Some(SpawnedTask::spawn(Arc::clone(self).run()));
            }
        }
        let ended =
            |_| internal_datafusion_err!("the scan of a range join's build side ended early");
        answer.await.map_err(ended)?
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned state is consistent: no update of it can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current requests whose partitions still wait, and those submitted since. If there are none, the task has to
    /// end.
    fn admit(&self, mut visitors: Vec<Visitor>) -> Vec<Visitor> {
        let mut state = self.state();
        visitors.append(&mut state.submitted);
        visitors.retain(|visitor| !visitor.reply.is_closed());
        state.is_running = !visitors.is_empty();
        visitors
    }

    /// The task: scans the runs until no request is left.
    async fn run(self: Arc<Self>) {
        let mut unfinished = Unfinished(Some(&self));
        let mut loaded = self.loaded.lock().await;
        self.scan(&mut loaded).await;
        unfinished.0 = None;
        self.loader.release_memory();
    }

    async fn scan(&self, loaded: &mut Loaded) {
        let runs = self.loader.runs().len();
        let (mut next, mut visitors) = (0, vec![]);
        loop {
            visitors = self.admit(visitors);
            if visitors.is_empty() {
                return;
            }
            // New requests probe the run in memory before the next one is read.
            let last = loaded.last_run.as_ref().map(|(last, _)| *last);
            let is_wanted = |run: &usize| visitors.iter().any(|v: &Visitor| !v.visited[*run]);
            let run = last.filter(is_wanted).unwrap_or(next);
            next = (run + 1) % runs.max(1);
            visitors = self.visit_run(loaded, run, visitors).await;
            let (done, others): (Vec<_>, Vec<_>) = visitors
                .into_iter()
                .partition(|visitor| visitor.visited.iter().all(|visited| *visited));
            visitors = others;
            if !done.is_empty() {
                self.loader.release_memory();
            }
            for visitor in done {
                // Fails only if the partition has been dropped.
                let _ = visitor.reply.send(Ok(visitor.request));
            }
        }
    }

    /// Probes one run for all requests that have not visited it. Requests that fail get their error and are left out of
    /// the result.
    async fn visit_run(
        &self,
        loaded: &mut Loaded,
        index: usize,
        visitors: Vec<Visitor>,
    ) -> Vec<Visitor> {
        let Some(run) = self.loader.runs().get(index) else {
            return visitors;
        };
        let (mut unselected, mut others) = (vec![], vec![]);
        for mut visitor in visitors {
            if std::mem::replace(&mut visitor.visited[index], true) {
                others.push(visitor);
            } else {
                unselected.push(visitor);
            }
        }
        let mut here: RunVisitors = vec![];
        for (visitor, selections) in select_rows(unselected, &self.loader, index).await {
            match selections {
                Some(selections) => here.push((visitor, selections)),
                None => others.push(visitor),
            }
        }
        if here.is_empty() {
            return others;
        }
        if let Some((last, part)) = &loaded.last_run
            && *last == index
        {
            here = probe_part(here, part, run.first_row).await;
        } else {
            // There is memory for one run at a time.
            loaded.last_run = None;
            let open = OpenRun::open(&self.loader, index, loaded.build_bytes);
            let mut open = match unless_dropped(open, &mut here).await {
                None => return others,
                Some(Ok(open)) => open,
                Some(Err(error)) => return fail(here, error, others),
            };
            while let Some((part, first_row)) = &open.part {
                if open.reader.is_done() {
                    loaded.build_bytes = open.build_bytes;
                    if *first_row == run.first_row {
                        loaded.last_run = Some((index, Arc::clone(part)));
                    }
                }
                here = probe_part(here, part, *first_row).await;
                match unless_dropped(open.build_next(&self.loader), &mut here).await {
                    None => return others,
                    Some(Ok(())) => {}
                    Some(Err(error)) => return fail(here, error, others),
                }
            }
        }
        others.extend(here.into_iter().map(|(visitor, _)| visitor));
        others
    }
}

/// Awaits work for requests; `None` if all their partitions have been dropped.
async fn unless_dropped<T>(work: impl Future<Output = T>, visitors: &mut RunVisitors) -> Option<T> {
    let dropped = join_all(visitors.iter_mut().map(|(v, _)| v.reply.closed()));
    unless(dropped, work).await
}

/// Awaits work; `None` if `dropped` ends before.
async fn unless<T>(dropped: impl Future, work: impl Future<Output = T>) -> Option<T> {
    match select(pin!(work), pin!(dropped)).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

/// Drops the waiting requests if the scan ends early, by a panic or because the runtime shuts down: their partitions
/// get an error, and nothing keeps the build side in memory.
struct Unfinished<'a>(Option<&'a SharedScan>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(scan) = self.0 {
            let mut state = scan.state();
            state.is_running = false;
            state.submitted.clear();
        }
    }
}

/// Selects the rows that may match a run, each request in a task of its own; `None` if no row does. Requests of dropped
/// partitions are left out, and those that fail, which get their error.
async fn select_rows(
    visitors: Vec<Visitor>,
    loader: &Arc<RunLoader>,
    index: usize,
) -> Vec<(Visitor, Option<Arc<[RowSelection]>>)> {
    in_tasks(visitors, |mut visitor| {
        let loader = Arc::clone(loader);
        async move {
            match visitor.select_rows(&loader.runs()[index]).await? {
                Ok(selections) => Some((visitor, selections.map(Arc::from))),
                Err(error) => {
                    let _ = visitor.reply.send(Err(error));
                    None
                }
            }
        }
    })
    .await
}

/// Probes a part of a run, each request in a task of its own. Requests that fail get their error and are left out of
/// the result.
async fn probe_part(
    visitors: RunVisitors,
    part: &Arc<BuildSide>,
    first_row: RowPosition,
) -> RunVisitors {
    in_tasks(visitors, |(mut visitor, selections)| {
        let part = Arc::clone(part);
        async move {
            match visitor.probe(&selections, &part, first_row).await? {
                Ok(()) => Some((visitor, selections)),
                Err(error) => {
                    let _ = visitor.reply.send(Err(error));
                    None
                }
            }
        }
    })
    .await
}

/// Does work on each item in a task of its own. Returns those results that there are.
async fn in_tasks<T, R: Send + 'static, W>(items: Vec<T>, work: impl Fn(T) -> W) -> Vec<R>
where
    W: Future<Output = Option<R>> + Send + 'static,
{
    // All tasks are spawned before the first is awaited. A task that the runtime aborted took its request along.
    let tasks = items
        .into_iter()
        .map(|item| SpawnedTask::spawn(work(item)).join_unwind());
    let tasks: Vec<_> = tasks.collect();
    let done = join_all(tasks).await.into_iter();
    done.filter_map(|task| task.ok().flatten()).collect()
}

/// Sends the error of reading or building a run to all requests that probe it. Returns the others.
fn fail(visitors: RunVisitors, error: DataFusionError, others: Vec<Visitor>) -> Vec<Visitor> {
    let error = Arc::new(error);
    for (visitor, _) in visitors {
        let error = DataFusionError::Shared(Arc::clone(&error));
        let _ = visitor.reply.send(Err(error));
    }
    others
}
