//! State that belongs to one run of a plan.
//!
//! DataFusion has no object for a run: a plan, or a part of it, can be executed several times, also at once. Two things
//! identify a run, and they differ in scope:
//!
//! - **The task context** is shared by all operators of a run. [`PerContext`] keeps state that several operators share,
//!   such as the indexes of a relation.
//! - **The partitions of one operator**: each is executed once per run. [`OncePerRun`] keeps state that the partitions
//!   of one operator share, and begins anew when a partition is executed again, in whatever context.
//!
//! A plan that another process has sent is executed once, and engines may give each partition a context of its own.
//! Then all contexts are of one run: [`PerContext::of_one_run`], [`OncePerRun::of_one_run`].
//!
//! State that takes work to compute is a [`SharedWork`] in either scope.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use datafusion::common::{DataFusionError, Result, SharedResult};
use datafusion::execution::TaskContext;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};

/// Work that is done once and whose result several streams share.
///
/// Every stream that awaits the work drives it, so none depends on another being polled.
pub(crate) struct SharedWork<T> {
    pending: Mutex<Option<Pending<T>>>,
    done: Arc<OnceLock<Outcome<T>>>,
}

type Outcome<T> = SharedResult<Arc<T>>;

type SharedFuture<T> = Shared<BoxFuture<'static, Outcome<T>>>;

/// Work that has begun.
enum Pending<T> {
    /// Kept until its owner is dropped.
    Kept(SharedFuture<T>),
    /// Dropped with the last stream that awaits it.
    Awaited(WeakShared<BoxFuture<'static, Outcome<T>>>),
}

impl<T> Default for SharedWork<T> {
    fn default() -> Self {
        Self {
            pending: Mutex::default(),
            done: Arc::default(),
        }
    }
}

impl<T> fmt::Debug for SharedWork<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWork").finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> SharedWork<T> {
    /// Returns the result of the work, which the first call begins with `start`. Work that no stream awaits any longer
    /// is kept, as its input may be executed only once, and is dropped with `self`.
    ///
    /// # Errors
    /// The work's; all callers get the same.
    pub(crate) async fn get<F>(&self, start: impl FnOnce() -> F) -> Result<Arc<T>>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let pending = |work: &SharedFuture<T>| Some(Pending::Kept(work.clone()));
        self.run(start, pending).await
    }

    /// As [`Self::get`], but work that no stream awaits any longer is dropped, and begins anew with the next call.
    ///
    /// # Errors
    /// The work's; all callers get the same.
    pub(crate) async fn get_or_restart<F>(&self, start: impl FnOnce() -> F) -> Result<Arc<T>>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let pending = |work: &SharedFuture<T>| work.downgrade().map(Pending::Awaited);
        self.run(start, pending).await
    }

    async fn run<F>(
        &self,
        start: impl FnOnce() -> F,
        keep: impl FnOnce(&SharedFuture<T>) -> Option<Pending<T>>,
    ) -> Result<Arc<T>>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let work = {
            let mut pending = lock(&self.pending);
            if let Some(done) = self.done.get() {
                return done.clone().map_err(DataFusionError::Shared);
            }
            let begun = pending.as_ref().and_then(|pending| match pending {
                Pending::Kept(work) => Some(work.clone()),
                Pending::Awaited(work) => work.upgrade(),
            });
            match begun {
                Some(work) => work,
                None => {
                    let (work, done) = (start(), Arc::clone(&self.done));
                    let work = async move {
                        let outcome = work.await.map(Arc::new).map_err(Arc::new);
                        done.get_or_init(|| outcome).clone()
                    };
                    let work = work.boxed().shared();
                    *pending = keep(&work);
                    work
                }
            }
        };
        work.await.map_err(DataFusionError::Shared)
    }
}

/// State that all operators of a run share: one `T` per task context.
pub(crate) struct PerContext<T> {
    states: Mutex<Vec<ContextState<T>>>,
    /// The state of all contexts, if these are of one run.
    only: Option<Arc<T>>,
}

struct ContextState<T> {
    context: Weak<TaskContext>,
    state: Weak<T>,
    /// Keeps the state as long as its context exists.
    _retained: Option<Arc<T>>,
}

impl<T> Default for PerContext<T> {
    fn default() -> Self {
        Self {
            states: Mutex::default(),
            only: None,
        }
    }
}

impl<T> fmt::Debug for PerContext<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerContext").finish_non_exhaustive()
    }
}

impl<T: Default> PerContext<T> {
    /// State of a plan that is executed once. It is kept as long as the plan.
    pub(crate) fn of_one_run() -> Self {
        Self {
            only: Some(Arc::default()),
            ..Self::default()
        }
    }

    /// Returns the state of this context, which is dropped with its last user.
    pub(crate) fn get(&self, context: &Arc<TaskContext>) -> Arc<T> {
        self.find(context, false)
    }

    /// Returns the state of this context, which is kept as long as the context exists.
    pub(crate) fn get_retained(&self, context: &Arc<TaskContext>) -> Arc<T> {
        self.find(context, true)
    }

    fn find(&self, context: &Arc<TaskContext>, retain: bool) -> Arc<T> {
        if let Some(only) = &self.only {
            return Arc::clone(only);
        }
        let mut states = lock(&self.states);
        states.retain(|known| known.context.strong_count() > 0 && known.state.strong_count() > 0);
        let context = Arc::downgrade(context);
        let known = states.iter().find(|known| known.context.ptr_eq(&context));
        if let Some(state) = known.and_then(|known| known.state.upgrade()) {
            return state;
        }
        let state = Arc::<T>::default();
        states.push(ContextState {
            context,
            state: Arc::downgrade(&state),
            _retained: retain.then(|| Arc::clone(&state)),
        });
        state
    }
}

/// State that the partitions of one operator share, a new one for each run.
///
/// Runs at once in one context can't be told apart: a partition joins the latest run that lacks it, so that one caller
/// may get partitions of several runs. Their results must be interchangeable.
pub(crate) struct OncePerRun<T> {
    open: Mutex<Vec<OpenRun<T>>>,
    /// Whether all contexts are of one run.
    is_one_run: bool,
}

/// A run whose partitions have not all been executed.
struct OpenRun<T> {
    context: Weak<TaskContext>,
    executed: Vec<bool>,
    state: Weak<T>,
    /// Partitions may be executed one after another, so the latest run of a context is retained for the partitions that
    /// are still to be executed. Those of earlier runs may never be, so earlier runs are dropped with their streams.
    retained: Option<Arc<T>>,
}

impl<T> Default for OncePerRun<T> {
    fn default() -> Self {
        Self {
            open: Mutex::default(),
            is_one_run: false,
        }
    }
}

impl<T> fmt::Debug for OncePerRun<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OncePerRun").finish_non_exhaustive()
    }
}

impl<T: Default> OncePerRun<T> {
    /// State of a plan that is executed once.
    pub(crate) fn of_one_run() -> Self {
        Self {
            is_one_run: true,
            ..Self::default()
        }
    }

    /// The same for other inputs.
    pub(crate) fn renewed(&self) -> Self {
        Self {
            is_one_run: self.is_one_run,
            ..Self::default()
        }
    }

    /// Whether the plan is executed once.
    pub(crate) fn is_one_run(&self) -> bool {
        self.is_one_run
    }

    /// Returns the state of the run that executes `partition`, one of `partitions`.
    pub(crate) fn run(
        &self,
        context: &Arc<TaskContext>,
        partition: usize,
        partitions: usize,
    ) -> Arc<T> {
        let mut open = lock(&self.open);
        let is_one_run = self.is_one_run;
        open.retain(|run| {
            let may_go_on = is_one_run || run.context.strong_count() > 0;
            may_go_on && run.state.strong_count() > 0
        });
        let context = Arc::downgrade(context);
        let is_of_context = |run: &OpenRun<T>| is_one_run || run.context.ptr_eq(&context);
        let mut of_context = open.iter_mut().filter(|run| is_of_context(run));
        let lacking = of_context.rfind(|run| run.executed.get(partition) == Some(&false));
        if let Some((run, state)) =
            lacking.and_then(|run| run.state.upgrade().map(|state| (run, state)))
        {
            run.executed[partition] = true;
            if run.executed.iter().all(|executed| *executed) {
                open.retain(|run| !run.state.ptr_eq(&Arc::downgrade(&state)));
            }
            return state;
        }
        for earlier in open.iter_mut().filter(|run| is_of_context(run)) {
            earlier.retained = None;
        }
        let state = Arc::default();
        let mut executed = vec![false; partitions.max(partition + 1)];
        executed[partition] = true;
        if executed.contains(&false) {
            open.push(OpenRun {
                context,
                executed,
                state: Arc::downgrade(&state),
                retained: Some(Arc::clone(&state)),
            });
        }
        state
    }
}

/// Locks a mutex. A poisoned lock is safe to use: no panic leaves the state inconsistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
