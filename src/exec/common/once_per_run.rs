//! Work that the partitions of a run share: done once, by whoever needs it first.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use datafusion::common::{DataFusionError, Result, SharedResult};
use datafusion::execution::TaskContext;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

/// What each run of a plan makes once. The partitions of a run share a task context, and each is executed once: where one
/// is executed again, so is the plan, and makes it again.
///
/// Runs at once in one context can't be told apart: a partition goes to the latest that lacks it, so that one caller may get
/// partitions of several runs. They must fit together.
pub(crate) struct OncePerRun<T>(Mutex<Vec<Begun<T>>>);

/// A run of which not all partitions have been executed.
struct Begun<T> {
    context: Weak<TaskContext>,
    executed: Vec<bool>,
    run: Weak<Run<T>>,
    /// Partitions may be executed one after another, so the latest run of a context waits for those that are to come. Earlier ones, of
    /// which these may never come, go with their streams.
    kept: Option<Arc<Run<T>>>,
}

/// What all runs in one task context share.
pub(crate) struct PerContext<T>(Mutex<Vec<(Weak<TaskContext>, Weak<T>)>>);

/// What the partitions of a run share; it lives as long as they do.
pub(crate) struct Run<T> {
    /// Whoever waits drives the work, so none depends on another's being polled. It stays while nobody waits, as an input may be
    /// executed only once, and goes with the run.
    making: Mutex<Option<Shared<BoxFuture<'static, Made<T>>>>>,
    made: Arc<OnceLock<Made<T>>>,
}

type Made<T> = SharedResult<Arc<T>>;

impl<T> Default for OncePerRun<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> fmt::Debug for OncePerRun<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OncePerRun").finish_non_exhaustive()
    }
}

impl<T> OncePerRun<T> {
    /// The run that executes this partition of so many.
    pub(crate) fn run(
        &self,
        context: &Arc<TaskContext>,
        partition: usize,
        partitions: usize,
    ) -> Arc<Run<T>> {
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        begun.retain(|begun| begun.context.strong_count() > 0 && begun.run.strong_count() > 0);
        let here = Arc::downgrade(context);
        let mut of_context = begun.iter_mut().filter(|b| b.context.ptr_eq(&here));
        // The latest that this partition is not part of yet.
        let lacking = of_context.rfind(|begun| begun.executed.get(partition) == Some(&false));
        if let Some((lacking, run)) = lacking.and_then(|b| b.run.upgrade().map(|run| (b, run))) {
            lacking.executed[partition] = true;
            if lacking.executed.iter().all(|executed| *executed) {
                begun.retain(|begun| !begun.run.ptr_eq(&Arc::downgrade(&run)));
            }
            return run;
        }
        for earlier in begun.iter_mut().filter(|b| b.context.ptr_eq(&here)) {
            earlier.kept = None;
        }
        let run = Arc::default();
        let mut executed = vec![false; partitions.max(partition + 1)];
        executed[partition] = true;
        if executed.contains(&false) {
            begun.push(Begun {
                context: here,
                executed,
                run: Arc::downgrade(&run),
                kept: Some(Arc::clone(&run)),
            });
        }
        run
    }
}

impl<T> Default for PerContext<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> fmt::Debug for PerContext<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerContext").finish_non_exhaustive()
    }
}

impl<T: Default> PerContext<T> {
    /// What runs in this context share, as long as one of them lives.
    pub(crate) fn get(&self, context: &Arc<TaskContext>) -> Arc<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(context, shared)| context.strong_count() > 0 && shared.strong_count() > 0);
        let here = Arc::downgrade(context);
        let known = all.iter().find(|(context, _)| context.ptr_eq(&here));
        if let Some(shared) = known.and_then(|(_, shared)| shared.upgrade()) {
            return shared;
        }
        let shared = Arc::<T>::default();
        all.push((here, Arc::downgrade(&shared)));
        shared
    }
}

impl<T> Default for Run<T> {
    fn default() -> Self {
        Self {
            making: Mutex::default(),
            made: Arc::default(),
        }
    }
}

impl<T> fmt::Debug for Run<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> Run<T> {
    /// What this run has made, or what the work that `start` begins gives.
    ///
    /// # Errors
    /// What the making came to; all who wait get it.
    pub(crate) async fn get<F>(&self, start: impl FnOnce() -> F) -> Result<Arc<T>>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let making = {
            let mut known = self.making.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(made) = self.made.get() {
                return made.clone().map_err(DataFusionError::Shared);
            }
            match known.as_ref() {
                Some(making) => making.clone(),
                None => {
                    let (work, done) = (start(), Arc::clone(&self.made));
                    let making = async move {
                        let made = work.await.map(Arc::new).map_err(Arc::new);
                        done.get_or_init(|| made).clone()
                    };
                    let making = making.boxed().shared();
                    *known = Some(making.clone());
                    making
                }
            }
        };
        making.await.map_err(DataFusionError::Shared)
    }
}
