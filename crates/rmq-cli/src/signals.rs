//! Signals that end the shell: the session is dropped, its spill files are removed, and the exit status is 128 plus the
//! signal's number.

use std::io::ErrorKind;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use datafusion::execution::DiskManager;
use datafusion::prelude::SessionContext;
use tokio::runtime::{Builder, Runtime};

/// The time after which spill files are removed although work still runs. Some work, such as sorting a batch, continues
/// for a while after its query is dropped.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// Waits for work that still runs after the session is dropped, and removes the spill files. `interrupted` means that
/// queries may have been dropped. There is no runtime where a thread still has it.
pub fn wind_down(runtime: Option<Runtime>, disk: &DiskManager, interrupted: bool) {
    let end = Instant::now() + GRACE_PERIOD;
    let Some(runtime) = runtime else {
        return remove_spill_files(disk);
    };
    // A task that writes a file spawns another one to remove it when it is dropped, which a runtime that shuts down
    // does not run.
    while interrupted && runtime.metrics().num_alive_tasks() > 0 && Instant::now() < end {
        sleep(Duration::from_millis(1));
    }
    runtime.shutdown_timeout(end.saturating_duration_since(Instant::now()));
    remove_spill_files(disk);
}

/// Returns a function that returns the disk manager of a session. It is looked up late, because SET may replace it. It
/// does not keep the session.
pub fn disk_of(ctx: &SessionContext) -> impl Fn() -> Option<Arc<DiskManager>> + Send + 'static {
    let state = ctx.state_weak_ref();
    move || {
        Some(Arc::clone(
            &state.upgrade()?.read().runtime_env().disk_manager,
        ))
    }
}

/// Calls a function at each SIGINT from now on, which then has no other effect.
///
/// # Errors
/// If a thread or a handler cannot be created.
pub fn on_interrupt(call: impl Fn() + Send + 'static) -> std::io::Result<()> {
    // A separate runtime: a query may block all threads of the other.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    // Before this function returns: rustyline restores, at the end of a line, the handler that it found at its
    // beginning, and would restore the default action if the handler came between.
    let mut interrupts = {
        let _runtime = runtime.enter();
        #[cfg(unix)]
        let handled = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt());
        #[cfg(windows)]
        let handled = tokio::signal::windows::ctrl_c();
        handled?
    };
    std::thread::Builder::new()
        .name("interrupts".to_string())
        .spawn(move || {
            runtime.block_on(async {
                while interrupts.recv().await.is_some() {
                    call();
                }
            });
        })?;
    Ok(())
}

/// Removes the directories of spill files, so that work that still runs can't create files in them.
pub fn remove_spill_files(disk: &DiskManager) {
    for directory in disk.temp_dir_paths() {
        // Removal fails if a file is created in it meanwhile.
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

    use tokio::signal::unix::{Signal, SignalKind, signal};
    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;

    /// Returns a channel that receives the exit status when a signal ends the shell. A second signal ends the process
    /// at once. `disk` returns the disk manager of the session.
    ///
    /// At a terminal only SIGHUP is handled: Ctrl-C cancels a statement there, as the prompt sees to, and SIGTERM
    /// keeps its default action, because the terminal is only reset for a process killed by a signal.
    ///
    /// # Errors
    /// If a thread or a handler cannot be created.
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

        // A separate runtime: a query may block all threads of the other.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut signals = {
            let _runtime = runtime.enter();
            let handled = kinds.iter().filter(|kind| !is_ignored(**kind));
            handled
                .map(|kind| Ok((*kind, signal(*kind)?)))
                .collect::<io::Result<Vec<_>>>()?
        };

        let (stop, stopped) = oneshot::channel();
        let listening = async move {
            let code = next(&mut signals).await;
            let disk = disk();
            // The main thread drops the session and exits.
            let _ = stop.send(code);
            // It can't while it is blocked on a full pipe or in a long computation.
            let code = timeout(2 * GRACE_PERIOD, next(&mut signals))
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

    /// Waits for a signal and returns its exit status.
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

    /// Whether the process was started with this signal ignored, as by `nohup`, which a handler would undo. False on
    /// systems without /proc.
    fn is_ignored(kind: SignalKind) -> bool {
        is_in_mask("SigIgn:", kind)
    }

    /// Whether a signal is in this mask of /proc/self/status.
    fn is_in_mask(mask: &str, kind: SignalKind) -> bool {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix(mask));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .is_some_and(|mask| mask & (1 << (kind.as_raw_value() - 1)) != 0)
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn interrupts_are_handled_before_the_first_line_is_read() {
        let is_caught = || is_in_mask("SigCgt:", SignalKind::interrupt());
        assert!(!is_caught());
        on_interrupt(|| {}).unwrap();
        assert!(is_caught());
    }
}

/// Returns a channel that receives nothing: the system has no such signals.
#[cfg(not(unix))]
pub fn listen(
    _: bool,
    _: impl FnOnce() -> Option<Arc<DiskManager>>,
) -> std::io::Result<tokio::sync::oneshot::Receiver<u8>> {
    Ok(tokio::sync::oneshot::channel().1)
}
