//! Runs what was typed at the prompt: on a thread and a runtime that are left behind when it is cancelled and computes
//! on, so that the prompt is back at once.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use datafusion::common::Result;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::script::{Runner, Script};
use crate::shell::Shell;

/// The time after which the progress of a statement is shown.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// How often progress is shown.
const INTERVAL: Duration = Duration::from_millis(200);

/// How often is asked whether a cancelled statement has ended.
const CANCEL_INTERVAL: Duration = Duration::from_millis(20);

/// The time after which a cancelled statement that computes on is left behind.
const LEFT_AFTER: Duration = Duration::from_secs(1);

/// What happens while a statement runs.
pub enum Event {
    Done,
    Interrupt,
    Stop(u8),
}

/// Runs a line of the prompt. Returns the exit status if the shell ends.
///
/// An operator may compute for long without a pause, on the thread that waits for its rows, or on those of the runtime.
/// Where that does not end in time, the thread keeps the runtime and a session that shares tables, settings and memory
/// with the shell's; both go when it ends, and the shell goes on with others.
///
/// # Errors
/// If a thread cannot be started, or standard output is closed.
pub fn run_line(
    shell: &mut Shell,
    runtime: &mut Arc<Runtime>,
    send: &Sender<Event>,
    events: &Receiver<Event>,
    line: &str,
) -> Result<Option<u8>> {
    let watch = shell.watch.clone();
    let stop = watch.begin();
    let tasks = runtime.handle().metrics();
    let tasks_before = tasks.num_alive_tasks();
    let begin = Instant::now();
    let (cancel, is_cancelled) = oneshot::channel::<()>();
    let mut cancel = Some(cancel);
    let running = {
        let (send, runtime) = (send.clone(), Arc::clone(runtime));
        let mut shell = shell.clone();
        shell.stop = stop.clone();
        let scripts = [Script::Argument(line.to_string())];
        let run = move || {
            let done = runtime.block_on(async {
                tokio::select! {
                    biased;
                    _ = is_cancelled => Ok(false),
                    done = Runner::new(&mut shell, true).run_all(&scripts) => done,
                }
            });
            drop(runtime);
            let _ = send.send(Event::Done);
            (shell, done)
        };
        thread::Builder::new()
            .name("statement".to_string())
            .spawn(run)?
    };
    let mut cancelled: Option<Instant> = None;
    let mut code = None;
    let is_left = loop {
        // A cancelled statement ends when its last operator has.
        if running.is_finished() && (cancelled.is_none() || tasks.num_alive_tasks() <= tasks_before)
        {
            break false;
        }
        if cancelled.is_some_and(|at| at.elapsed() > LEFT_AFTER) {
            break true;
        }
        let interval = if cancelled.is_some() {
            CANCEL_INTERVAL
        } else {
            INTERVAL
        };
        match events.recv_timeout(interval) {
            // The thread is about to end.
            Ok(Event::Done) => thread::sleep(Duration::from_millis(1)),
            // A pager has the terminal, and interrupts are its own.
            Ok(Event::Interrupt) if cancelled.is_some() || watch.is_paging() => {}
            Ok(event) => {
                if let Event::Stop(stop) = event {
                    code = Some(stop);
                }
                cancelled = Some(Instant::now());
                stop.request();
                watch.finish();
                // Dropped, it cancels, too.
                let _ = cancel.take().map(|cancel| cancel.send(()));
            }
            Err(_) if cancelled.is_none() && begin.elapsed() >= SHOWN_AFTER => {
                watch.show(begin.elapsed());
            }
            Err(_) => {}
        }
    };
    watch.finish();
    if is_left {
        let old = std::mem::replace(runtime, Arc::new(Runtime::new()?));
        // Its thread may have ended before its tasks.
        if let Some(old) = Arc::into_inner(old) {
            old.shutdown_background();
        }
    }
    if cancelled.is_some() && code.is_none() {
        let rest = if is_left {
            " One of its operators computes on in the background, and keeps its memory until it looks up."
        } else {
            ""
        };
        let _ = writeln!(io::stderr(), "Cancelled.{rest}");
    }
    if !is_left {
        let (ended, done) = running
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        *shell = ended;
        if cancelled.is_none() {
            done?;
        }
    }
    Ok(code)
}
