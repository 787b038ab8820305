//! The prompt: lines from the terminal, with history and completion.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use datafusion::common::{DataFusionError, Result};
use datafusion_cli::highlighter::{NoSyntaxHighlighter, SyntaxHighlighter};
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::commands::is_foreign_command;
use crate::completion::Names;
use crate::running::{Event, run_line};
use crate::shell::Shell;
use crate::signals;
use crate::statements::{Ends, Splitter};

/// Reads and runs lines until the user quits. Returns the exit status.
///
/// # Errors
/// If the terminal cannot be read.
pub fn run(
    shell: &mut Shell,
    runtime: &mut Arc<Runtime>,
    stopped: oneshot::Receiver<u8>,
) -> Result<u8> {
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
    let remember = |editor: &mut Editor<PromptHelper, FileHistory>, text: &str| {
        let _ = editor.add_history_entry(text);
        if let Some(file) = &history {
            // At once: the shell may be killed. A history that cannot be written is none.
            let _ = editor.append_history(file);
        }
    };
    // The lines of a statement that has not ended.
    let mut begun = String::new();
    loop {
        let names = runtime.block_on(Names::of(&shell.ctx)).unwrap_or_default();
        // A dialect that is not known is an error of the statement.
        let dialect = shell.dialect().ok();
        let ends = |text: &str| match &dialect {
            Some(dialect) => Splitter::ends(text, &**dialect),
            None => Ends::Complete,
        };
        let before = ends(&begun);
        let prompt = match before {
            _ if begun.is_empty() => "> ",
            Ends::InToken => "'> ",
            Ends::Complete | Ends::InStatement => "-> ",
        };
        editor.set_helper(Some(PromptHelper::new(names, shell, begun.clone())));
        let line = match editor.readline(prompt) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted | ReadlineError::Eof) if !begun.is_empty() => {
                remember(&mut editor, begun.trim());
                begun.clear();
                continue;
            }
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(failed(error)),
        };
        let word = line.trim().trim_end_matches(';').trim().to_lowercase();
        let is_command =
            before != Ends::InToken && (line.trim().starts_with('\\') || is_foreign_command(&word));
        let line = if is_command {
            remember(&mut editor, line.trim());
            if word == "\\q" {
                break;
            }
            line.trim().to_string()
        } else {
            let is_first = begun.is_empty();
            begun.push_str(&line);
            if begun.trim().is_empty() {
                begun.clear();
                continue;
            }
            let is_word = is_first && ["quit", "exit", "help"].contains(&word.as_str());
            if !is_word && ends(begun.trim_end()) != Ends::Complete {
                begun.push('\n');
                continue;
            }
            let text = std::mem::take(&mut begun);
            remember(&mut editor, text.trim());
            match word.as_str() {
                "help" if is_word => "\\?".to_string(),
                _ if is_word => break,
                _ => text.trim().to_string(),
            }
        };
        // Interrupts from before this statement are not about it.
        while let Ok(event) = events.try_recv() {
            if let Event::Stop(code) = event {
                return Ok(code);
            }
        }
        shell.terminal = editor
            .dimensions()
            .map(|(columns, rows)| (columns.into(), rows.into()));
        if let Some(code) = run_line(shell, runtime, &send, &events, &line)? {
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

/// Completion and highlighting.
struct PromptHelper {
    names: Names,
    highlighter: Box<dyn Highlighter>,
    /// The lines before of the same statement.
    begun: String,
}

impl PromptHelper {
    fn new(names: Names, shell: &Shell, begun: String) -> Self {
        let config = shell.ctx.copied_config();
        let highlighter: Box<dyn Highlighter> = if shell.print.color {
            Box::new(SyntaxHighlighter::new(&config.options().sql_parser.dialect))
        } else {
            Box::new(NoSyntaxHighlighter {})
        };
        Self {
            names,
            highlighter,
            begun,
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
        self.names.complete(&self.begun, line, pos, ctx)
    }
}

impl Validator for PromptHelper {}

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
}

impl Helper for PromptHelper {}
