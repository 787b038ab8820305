//! The prompt: lines from the terminal, with history, completion, progress and Ctrl-C.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::exit;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use datafusion::common::{DataFusionError, Result};
use datafusion_cli::highlighter::{NoSyntaxHighlighter, SyntaxHighlighter};
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Context, Editor, Helper};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::completion::Names;
use crate::script::{Runner, Script};
use crate::shell::Shell;
use crate::signals;
use crate::statements::Splitter;

/// The time after which the progress of a statement is shown.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// How often progress is shown.
const INTERVAL: Duration = Duration::from_millis(200);

/// The time after which a cancelled statement is said to run on.
const CANCELLED_IN: Duration = Duration::from_secs(2);

/// The exit status after a second Ctrl-C: that of a process killed by SIGINT.
const INTERRUPTED: u8 = 128 + 2;

/// What happens while a statement runs.
enum Event {
    Done,
    Interrupt,
    Stop(u8),
}

/// Reads and runs lines until the user quits. Returns the exit status.
///
/// # Errors
/// If the terminal cannot be read.
pub fn run(shell: &mut Shell, runtime: &Runtime, stopped: oneshot::Receiver<u8>) -> Result<u8> {
    let (send, events) = channel();
    listen(&send, stopped)?;
    let failed = |e: ReadlineError| DataFusionError::External(Box::new(e));
    let config = Config::builder()
        .completion_type(CompletionType::List)
        .build();
    let mut editor: Editor<PromptHelper, FileHistory> =
        Editor::with_config(config).map_err(failed)?;
    let history = history_file();
    if let Some(file) = &history {
        // A first session has none.
        let _ = editor.load_history(file);
    }
    let mut is_first = true;
    loop {
        let names = runtime.block_on(Names::of(&shell.ctx)).unwrap_or_default();
        editor.set_helper(Some(PromptHelper::new(names, shell, is_first)));
        is_first = false;
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(failed(error)),
        };
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let _ = editor.add_history_entry(line);
        if let Some(file) = &history {
            // At once: the shell may be killed. A history that cannot be written is none.
            let _ = editor.append_history(file);
        }
        let line = match line.trim_end_matches(';').trim().to_lowercase().as_str() {
            "\\q" | "quit" | "exit" => break,
            "help" => "\\?",
            _ => line,
        };
        // Interrupts from before this statement are not about it.
        while let Ok(event) = events.try_recv() {
            if let Event::Stop(code) = event {
                return Ok(code);
            }
        }
        if let Some(code) = run_line(shell, runtime, &send, &events, line)? {
            return Ok(code);
        }
    }
    Ok(0)
}

/// Sends signals as events.
fn listen(send: &Sender<Event>, stopped: oneshot::Receiver<u8>) -> io::Result<()> {
    let (interrupt, stop) = (send.clone(), send.clone());
    signals::on_interrupt(move || {
        let _ = interrupt.send(Event::Interrupt);
    })?;
    thread::Builder::new()
        .name("stop".to_string())
        .spawn(move || {
            if let Ok(code) = stopped.blocking_recv() {
                let _ = stop.send(Event::Stop(code));
            }
        })?;
    Ok(())
}

/// Runs a line of the prompt on a thread of its own: an operator may compute for long without a pause, and Ctrl-C must
/// not wait for it. Returns the exit status if the shell ends.
fn run_line(
    shell: &mut Shell,
    runtime: &Runtime,
    send: &Sender<Event>,
    events: &Receiver<Event>,
    line: &str,
) -> Result<Option<u8>> {
    let (watch, disk) = (shell.watch.clone(), signals::disk_of(&shell.ctx));
    let tasks = || runtime.metrics().num_alive_tasks();
    let tasks_before = tasks();
    let begin = Instant::now();
    let mut cancelled: Option<Instant> = None;
    let mut code = None;
    let done = thread::scope(|scope| {
        let (cancel, is_cancelled) = oneshot::channel::<()>();
        let mut cancel = Some(cancel);
        let running = scope.spawn(|| {
            let scripts = [Script::Argument(line.to_string())];
            let done = runtime.block_on(async {
                tokio::select! {
                    biased;
                    _ = is_cancelled => Ok(false),
                    done = Runner::new(shell, true).run_all(&scripts) => done,
                }
            });
            let _ = send.send(Event::Done);
            done
        });
        let mut is_done = false;
        let mut is_told = false;
        // A cancelled statement ends when its last operator has.
        while !is_done || cancelled.is_some() && tasks() > tasks_before {
            match events.recv_timeout(INTERVAL) {
                Ok(Event::Done) => is_done = true,
                Ok(Event::Interrupt) if cancelled.is_some() => {
                    if let Some(disk) = disk() {
                        signals::remove_spill_files(&disk);
                    }
                    exit(INTERRUPTED.into());
                }
                Ok(event) => {
                    if let Event::Stop(stop) = event {
                        code = Some(stop);
                    }
                    cancelled = Some(Instant::now());
                    watch.finish();
                    // Dropped, it cancels, too.
                    let _ = cancel.take().map(|cancel| cancel.send(()));
                }
                Err(RecvTimeoutError::Timeout) if cancelled.is_none() => {
                    if begin.elapsed() >= SHOWN_AFTER {
                        watch.show(begin.elapsed());
                    }
                }
                Err(_) => {
                    if !is_told && cancelled.is_some_and(|at| at.elapsed() > CANCELLED_IN) {
                        is_told = true;
                        let _ = writeln!(
                            io::stderr(),
                            "The statement is cancelled, but an operator still computes. Ctrl-C again ends rmq."
                        );
                    }
                }
            }
        }
        // It has sent its last event.
        running
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    watch.finish();
    if cancelled.is_some() && code.is_none() {
        let _ = writeln!(io::stderr(), "Cancelled.");
    }
    done?;
    Ok(code)
}

/// The file of the history, in the user's state folder, which is created.
fn history_file() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = set("XDG_STATE_HOME").map(PathBuf::from);
    let home = || {
        set("HOME")
            .or_else(|| set("USERPROFILE"))
            .map(PathBuf::from)
    };
    let state = state.or_else(|| Some(home()?.join(".local").join("state")))?;
    let folder = state.join("rmq");
    fs::create_dir_all(&folder).ok()?;
    let file = folder.join("history");
    if !file.exists() {
        fs::File::create(&file).ok()?;
    }
    Some(file)
}

/// Completion, highlighting and the end of statements.
struct PromptHelper {
    names: Names,
    highlighter: Box<dyn Highlighter>,
    /// `None` if the session has a dialect that is not known.
    dialect: Option<Box<dyn datafusion::sql::sqlparser::dialect::Dialect>>,
    is_first: bool,
}

impl PromptHelper {
    fn new(names: Names, shell: &Shell, is_first: bool) -> Self {
        let config = shell.ctx.copied_config();
        let highlighter: Box<dyn Highlighter> = if shell.print.color {
            Box::new(SyntaxHighlighter::new(&config.options().sql_parser.dialect))
        } else {
            Box::new(NoSyntaxHighlighter {})
        };
        Self {
            names,
            highlighter,
            dialect: shell.dialect().ok(),
            is_first,
        }
    }
}

impl Completer for PromptHelper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        ctx: &Context<'_>,
    ) -> Result<(usize, Vec<Pair>), ReadlineError> {
        self.names.complete(line, pos, ctx)
    }
}

impl Validator for PromptHelper {
    fn validate(&self, ctx: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let text = ctx.input().trim();
        let words = ["quit", "exit", "help", ""];
        let is_command =
            text.starts_with('\\') || words.iter().any(|word| text.eq_ignore_ascii_case(word));
        let is_complete = |dialect| Splitter::is_complete(text, dialect);
        if is_command || self.dialect.as_deref().is_none_or(is_complete) {
            Ok(ValidationResult::Valid(None))
        } else {
            Ok(ValidationResult::Incomplete)
        }
    }
}

impl Highlighter for PromptHelper {
    fn highlight<'l>(&self, line: &'l str, pos: usize) -> Cow<'l, str> {
        self.highlighter.highlight(line, pos)
    }

    fn highlight_char(&self, line: &str, pos: usize, kind: CmdKind) -> bool {
        self.highlighter.highlight_char(line, pos, kind)
    }
}

impl Hinter for PromptHelper {
    type Hint = String;

    fn hint(&self, line: &str, _pos: usize, _ctx: &Context<'_>) -> Option<String> {
        let hint = " \\? for help, \\q to quit";
        (self.is_first && line.is_empty()).then(|| hint.to_string())
    }
}

impl Helper for PromptHelper {}
