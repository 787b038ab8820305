//! Work on threads that may block, which ends when its query is cancelled, and the results of tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_err, internal_datafusion_err};

/// Tells work on a blocking thread whether its result is still awaited.
#[derive(Debug, Clone)]
pub(crate) struct Waiting(Arc<AtomicBool>);

impl Waiting {
    /// The result of this work is awaited to its end.
    pub(crate) fn forever() -> Self {
        Self(Arc::default())
    }

    /// Checks for cancellation. Work has to call it between steps, because a running thread can't be stopped from
    /// outside.
    ///
    /// # Errors
    /// An execution error once the query is cancelled.
    pub(crate) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            return exec_err!("the query was cancelled");
        }
        Ok(())
    }

    /// The flag that is set when the query is cancelled.
    pub(crate) fn stop(&self) -> &Arc<AtomicBool> {
        &self.0
    }
}

/// Sets the flag when the future that awaits the work is dropped.
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs work on a thread that may block. Dropping the future cancels the work at its next check.
///
/// # Errors
/// The work's.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce(Waiting) -> Result<T> + Send + 'static,
) -> Result<T> {
    let awaiting = SetOnDrop(Arc::default());
    let waiting = Waiting(Arc::clone(&awaiting.0));
    let task = SpawnedTask::spawn_blocking(move || work(waiting));
    let done = joined(task, "work on a thread of its own").await;
    drop(awaiting);
    done
}

/// The result of a task. A panic of the task goes on here. `what` says in an error what the task does.
///
/// # Errors
/// The task's; an internal error if it does not end.
pub(crate) async fn joined<T: Send + 'static>(
    task: SpawnedTask<Result<T>>,
    what: &str,
) -> Result<T> {
    let result = task.join_unwind().await;
    result.map_err(|e| internal_datafusion_err!("{what} did not end: {e}"))?
}
