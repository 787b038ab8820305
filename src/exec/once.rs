//! Work that the partitions of a run share: done once, by whoever needs it first.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use datafusion::common::{DataFusionError, Result, SharedResult};
use datafusion::execution::TaskContext;
use futures::FutureExt;
use futures::future::{BoxFuture, WeakShared};

/// What each run of a plan makes once. A run is known by its task context, which all its operators share, so a
/// plan that runs again makes it again.
pub(super) struct OncePerRun<T>(Mutex<Vec<Run<T>>>);

struct Run<T> {
    context: Weak<TaskContext>,
    /// Whoever waits drives the work, so none depends on another's being polled; when all who wait are gone, so is the
    /// work.
    making: Option<WeakShared<BoxFuture<'static, Made<T>>>>,
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

impl<T: Send + Sync + 'static> OncePerRun<T> {
    /// What this run has made, or what the work that `start` begins gives.
    ///
    /// # Errors
    /// What the making came to; all who wait get it.
    pub(super) async fn get<F>(
        &self,
        context: &Arc<TaskContext>,
        start: impl FnOnce() -> F,
    ) -> Result<Arc<T>>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let making = {
            let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            runs.retain(|run| run.context.strong_count() > 0);
            let here = Arc::downgrade(context);
            let place = runs.iter().position(|run| run.context.ptr_eq(&here));
            let place = place.unwrap_or_else(|| {
                runs.push(Run {
                    context: here,
                    making: None,
                    made: Arc::default(),
                });
                runs.len() - 1
            });
            let run = &mut runs[place];
            if let Some(made) = run.made.get() {
                return made.clone().map_err(DataFusionError::Shared);
            }
            match run.making.as_ref().and_then(WeakShared::upgrade) {
                Some(making) => making,
                None => {
                    let (work, done) = (start(), Arc::clone(&run.made));
                    let making = async move {
                        let made = work.await.map(Arc::new).map_err(Arc::new);
                        done.get_or_init(|| made).clone()
                    };
                    let making = making.boxed().shared();
                    run.making = making.downgrade();
                    making
                }
            }
        };
        making.await.map_err(DataFusionError::Shared)
    }
}
