//! Runs DataFusion's futures for Python threads: on one tokio runtime that all sessions share, without the
//! interpreter's lock, until they are done or the main thread gets a signal.

use std::future::Future;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::available_parallelism;
use std::time::Duration;

use datafusion::error::Result;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tokio::runtime::{Builder, Handle, Runtime};

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
        // A query has a partition for each core by default, and some operators hold a worker for long. One more plans
        // and stops queries meanwhile, and looks for these before it goes on with others.
        let cores = available_parallelism().map_or(1, usize::from);
        builder.worker_threads(cores + 1).global_queue_interval(1);
        let runtime = builder.thread_stack_size(STACK_BYTES).build()?;
        PyResult::Ok((runtime, std::process::id()))
    })?;
    check_process(*process)?;
    Ok(runtime)
}

/// The shared runtime, for what other libraries call.
pub fn handle(py: Python<'_>) -> PyResult<Handle> {
    Ok(runtime(py)?.handle().clone())
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
    // Dropped when the task ends. Its receiver waits without the runtime, whose workers may all be busy.
    let (running, mut ended) = mpsc::channel::<()>();
    let task = runtime.spawn(async move {
        let _running = running;
        future.await
    });
    loop {
        let waiting = &mut ended;
        let waited = py.detach(move || waiting.recv_timeout(INTERVAL));
        if waited == Err(RecvTimeoutError::Timeout) {
            let go_on = py.check_signals().and_then(|()| look());
            go_on.inspect_err(|_| task.abort())?;
            continue;
        }
        let done = py.detach(|| runtime.block_on(task));
        let failed =
            |failed| OperationalError::new_err(format!("a query ended unexpectedly: {failed}"));
        return done.map_err(failed)?.map_err(from_datafusion);
    }
}
