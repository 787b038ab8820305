//! Work on threads that may wait, which ends when nobody waits for it any more.

use std::sync::{Arc, Weak};

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_err, internal_datafusion_err};

/// Whether somebody still waits for a piece of work.
#[derive(Debug, Clone)]
pub(super) struct Waiting(Weak<()>);

impl Waiting {
    /// To be asked between steps, as what has begun on a thread can't be stopped from outside.
    ///
    /// # Errors
    /// An execution error once the query was cancelled.
    pub(super) fn check(&self) -> Result<()> {
        if self.0.strong_count() == 0 {
            return exec_err!("the query was cancelled");
        }
        Ok(())
    }
}

/// Runs work on a thread that may wait.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce(Waiting) -> Result<T> + Send + 'static,
) -> Result<T> {
    let here = Arc::new(());
    let waiting = Waiting(Arc::downgrade(&here));
    let done = SpawnedTask::spawn_blocking(move || work(waiting))
        .join_unwind()
        .await;
    drop(here);
    done.map_err(|e| internal_datafusion_err!("a range join's work did not end: {e}"))?
}
