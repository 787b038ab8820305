//! Runs DataFusion's futures for Python threads: on one tokio runtime that all sessions share, without the
//! interpreter's lock, until they are done or the main thread gets a signal.

use std::future::Future;
use std::time::Duration;

use datafusion::error::Result;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::errors::{OperationalError, from_datafusion};

/// How long a signal may wait until its handler runs.
const INTERVAL: Duration = Duration::from_millis(50);

/// DataFusion's planner is recursive, and debug builds have large frames.
const STACK_BYTES: usize = 16 << 20;

/// The runtime and the process that started its threads.
static RUNTIME: PyOnceLock<(Runtime, u32)> = PyOnceLock::new();

fn runtime(py: Python<'_>) -> PyResult<&'static Runtime> {
    let (runtime, process) = RUNTIME.get_or_try_init(py, || {
        let mut builder = Builder::new_multi_thread();
        builder.enable_time().thread_name("datafusion_rmq");
        let runtime = builder.thread_stack_size(STACK_BYTES).build()?;
        PyResult::Ok((runtime, std::process::id()))
    })?;
    check_process(*process)?;
    Ok(runtime)
}

/// Fails in a process that was forked from the one in which a thing was made.
pub fn check_process(made_in: u32) -> PyResult<()> {
    if made_in == std::process::id() {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(format!(
        "datafusion_rmq was used in process {made_in}, and this one was forked from it: the threads that run queries, \
         and indexes on a GPU, do not exist here. Start processes with multiprocessing's method 'spawn' or \
         'forkserver', or use datafusion_rmq only after the fork"
    )))
}

/// Runs a future on the shared runtime. Other Python threads run meanwhile. A signal whose handler raises, such as
/// Ctrl-C in the main thread, stops it.
pub fn run<T: Send + 'static>(
    py: Python<'_>,
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> PyResult<T> {
    run_watched(py, future, || Ok(()))
}

/// Runs a future as [`run`] does, and calls `look` twenty times a second. An error of it stops the future.
pub fn run_watched<T: Send + 'static>(
    py: Python<'_>,
    future: impl Future<Output = Result<T>> + Send + 'static,
    mut look: impl FnMut() -> PyResult<()>,
) -> PyResult<T> {
    let runtime = runtime(py)?;
    let mut task = runtime.spawn(future);
    loop {
        let waited = py.detach(|| runtime.block_on(async { timeout(INTERVAL, &mut task).await }));
        match waited {
            Ok(Ok(result)) => return result.map_err(from_datafusion),
            Ok(Err(failed)) => {
                let text = format!("a query ended unexpectedly: {failed}");
                return Err(OperationalError::new_err(text));
            }
            Err(_) => {
                let go_on = py.check_signals().and_then(|()| look());
                go_on.inspect_err(|_| task.abort())?;
            }
        }
    }
}
