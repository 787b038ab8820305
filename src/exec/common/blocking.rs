//! Work on threads that may wait, which ends when nobody waits for it any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_err, internal_datafusion_err};

/// Whether somebody still waits for a piece of work.
#[derive(Debug, Clone)]
pub(crate) struct Waiting(Arc<AtomicBool>);

impl Waiting {
    /// To be asked between steps, as what has begun on a thread can't be stopped from outside.
    ///
    /// # Errors
    /// An execution error once the query was cancelled.
    pub(crate) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            return exec_err!("the query was cancelled");
        }
        Ok(())
    }

    /// What is set once nobody waits.
    pub(crate) fn stop(&self) -> &Arc<AtomicBool> {
        &self.0
    }
}

/// Tells the work when whoever waits for it is gone.
struct Here(Arc<AtomicBool>);

impl Drop for Here {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs work on a thread that may wait.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce(Waiting) -> Result<T> + Send + 'static,
) -> Result<T> {
    let here = Here(Arc::default());
    let waiting = Waiting(Arc::clone(&here.0));
    let done = SpawnedTask::spawn_blocking(move || work(waiting))
        .join_unwind()
        .await;
    drop(here);
    done.map_err(|e| internal_datafusion_err!("work on a thread of its own did not end: {e}"))?
}
