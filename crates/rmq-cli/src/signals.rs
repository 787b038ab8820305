//! Signals that end the shell: the session is dropped and its spill files are removed, then it exits with 128 and the signal's
//! number.

use std::io::ErrorKind;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use datafusion::execution::DiskManager;
use tokio::runtime::Runtime;

/// How long work that can't be dropped, such as a batch that is being sorted, may take to end once its query is dropped.
/// Then the spill files are removed without waiting for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits for what still runs after the session is dropped, and removes the spill files. `interrupted` says that queries may
/// have been dropped.
pub fn wind_down(runtime: Runtime, disk: &DiskManager, interrupted: bool) {
    let end = Instant::now() + PATIENCE;
    // Tasks that write a file remove it when they are dropped, by a task that a runtime which shuts down would not run.
    while interrupted && runtime.metrics().num_alive_tasks() > 0 && Instant::now() < end {
        sleep(Duration::from_millis(1));
    }
    runtime.shutdown_timeout(end.saturating_duration_since(Instant::now()));
    remove_spill_files(disk);
}

/// Removes the directories of spill files. Work that still runs can't make files in them afterwards.
fn remove_spill_files(disk: &DiskManager) {
    for directory in disk.temp_dir_paths() {
        // Removing it fails if a file is made in it meanwhile.
        for _ in 0..100 {
            match std::fs::remove_dir_all(&directory) {
                Err(e) if e.kind() != ErrorKind::NotFound => sleep(Duration::from_millis(1)),
                _ => break,
            }
        }
    }
}

#[cfg(unix)]
pub use unix::listen;

#[cfg(unix)]
mod unix {
    use std::future::poll_fn;
    use std::io;
    use std::process::exit;
    use std::task::Poll;

    use tokio::runtime::Builder;
    use tokio::signal::unix::{Signal, SignalKind, signal};
    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;

    /// Returns a channel that gives the exit status when a signal asks the shell to end. A second signal ends the process at
    /// once. `disk` returns what manages the session's spill files.
    ///
    /// At a terminal only SIGHUP counts: Ctrl-C ends a query there, which DataFusion's shell sees to, and SIGTERM keeps its
    /// default, as only a process that dies of a signal gets its terminal reset.
    ///
    /// # Errors
    /// If there is no thread to be had, or no handler.
    pub fn listen(
        terminal: bool,
        disk: impl FnOnce() -> Option<Arc<DiskManager>> + Send + 'static,
    ) -> io::Result<oneshot::Receiver<u8>> {
        let kinds: &[SignalKind] = if terminal {
            &[SignalKind::hangup()]
        } else {
            &[
                SignalKind::interrupt(),
                SignalKind::terminate(),
                SignalKind::hangup(),
            ]
        };

        // A runtime of its own: a query may keep all threads of the other busy.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut signals = {
            let _runtime = runtime.enter();
            let heeded = kinds.iter().filter(|kind| !is_ignored(**kind));
            heeded
                .map(|kind| Ok((*kind, signal(*kind)?)))
                .collect::<io::Result<Vec<_>>>()?
        };

        let (stop, stopped) = oneshot::channel();
        let listening = async move {
            let code = next(&mut signals).await;
            let disk = disk();
            // The main thread drops the session and exits.
            let _ = stop.send(code);
            // It can't while it writes to a pipe that nobody reads, or computes for long.
            let code = timeout(2 * PATIENCE, next(&mut signals))
                .await
                .unwrap_or_else(|_| {
                    if let Some(disk) = disk {
                        remove_spill_files(&disk);
                    }
                    code
                });
            exit(code.into())
        };
        std::thread::Builder::new()
            .name("signals".to_string())
            .spawn(move || {
                runtime.block_on(listening);
            })?;
        Ok(stopped)
    }

    /// Waits for a signal, and returns the exit status that it gives.
    async fn next(signals: &mut [(SignalKind, Signal)]) -> u8 {
        poll_fn(|context| {
            for (kind, signal) in &mut *signals {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(128 + kind.as_raw_value() as u8);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Whether the process was started with this signal ignored, as `nohup` does. A handler would end that. Systems without
    /// /proc don't tell.
    fn is_ignored(kind: SignalKind) -> bool {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        ignored
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .is_some_and(|mask| mask & (1 << (kind.as_raw_value() - 1)) != 0)
    }
}

/// Returns a channel that never gives anything: there are no such signals here.
#[cfg(not(unix))]
pub fn listen(
    _: bool,
    _: impl FnOnce() -> Option<Arc<DiskManager>>,
) -> std::io::Result<tokio::sync::oneshot::Receiver<u8>> {
    Ok(tokio::sync::oneshot::channel().1)
}
