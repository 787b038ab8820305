//! Runs scripts: SQL from -c, -f or a pipe, with backslash commands.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Write};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::string::FromUtf8Error;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use futures::FutureExt;
use tokio::sync::mpsc;

use crate::shell::Shell;
use crate::statements::Splitter;
use crate::{commands, errors};

/// A source of SQL.
pub enum Script {
    /// The argument of -c.
    Argument(String),
    /// A file, or '-' for standard input.
    File(PathBuf),
    /// Standard input, when there is neither -c nor -f.
    Pipe,
}

impl Script {
    pub fn is_stdin(&self) -> bool {
        match self {
            Self::Argument(_) => false,
            Self::File(path) => path == Path::new("-"),
            Self::Pipe => true,
        }
    }

    /// Adds the position of a statement to its error.
    fn locate(&self, line: u64, error: DataFusionError) -> DataFusionError {
        match self {
            Self::Argument(_) => error,
            Self::File(_) => error.context(format!("{self}, line {line}")),
            Self::Pipe => error.context(format!("line {line}")),
        }
    }

    /// Reads lines on a separate thread: a read may block forever, and a signal must not wait for it.
    fn lines(&self) -> Result<mpsc::Receiver<io::Result<Line>>> {
        let mut reader: Box<dyn BufRead + Send> = match self {
            Self::Argument(text) => Box::new(Cursor::new(text.clone())),
            Self::File(path) if !self.is_stdin() => Box::new(BufReader::new(
                File::open(path).map_err(|e| self.unreadable(e))?,
            )),
            _ => Box::new(BufReader::new(io::stdin())),
        };
        let (send, receive) = mpsc::channel(64);
        std::thread::Builder::new()
            .name("script".to_string())
            .spawn(move || {
                let mut is_first = true;
                loop {
                    let mut line = vec![];
                    let read = match reader.read_until(b'\n', &mut line) {
                        Ok(0) => break,
                        Ok(_) => {
                            let mark = line.starts_with(BYTE_ORDER_MARK) && is_first;
                            let bytes = if mark {
                                line.split_off(BYTE_ORDER_MARK.len())
                            } else {
                                line
                            };
                            Ok(Line::of(bytes))
                        }
                        Err(e) => Err(e),
                    };
                    is_first = false;
                    let failed = read.is_err();
                    if send.blocking_send(read).is_err() || failed {
                        break;
                    }
                }
            })?;
        Ok(receive)
    }

    fn unreadable(&self, error: io::Error) -> DataFusionError {
        DataFusionError::from(error).context(format!("can't read {self}"))
    }
}

/// How editors mark a file as UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A line of a script.
struct Line {
    /// With a replacement character for what is no UTF-8.
    text: String,
    /// What is no UTF-8, if something is.
    invalid: Option<DataFusionError>,
}

impl Line {
    fn of(bytes: Vec<u8>) -> Self {
        let invalid = |e: &FromUtf8Error| {
            let at = e.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(&e.as_bytes()[..at]);
            exec_datafusion_err!(
                "the byte {:#04x} after {} characters of the line is not UTF-8, which SQL is written in",
                e.as_bytes()[at],
                text.chars().count()
            )
        };
        match String::from_utf8(bytes) {
            Ok(text) => Self {
                text,
                invalid: None,
            },
            Err(e) => Self {
                text: String::from_utf8_lossy(e.as_bytes()).into_owned(),
                invalid: Some(invalid(&e)),
            },
        }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument(_) => f.write_str("-c"),
            Self::File(path) if !self.is_stdin() => path.display().fmt(f),
            Self::File(_) | Self::Pipe => f.write_str("stdin"),
        }
    }
}

/// Runs scripts one after another in one session.
pub struct Runner<'a> {
    shell: &'a mut Shell,
    /// Whether the next statement runs after an error.
    keep_going: bool,
    failed: bool,
}

impl<'a> Runner<'a> {
    pub fn new(shell: &'a mut Shell, keep_going: bool) -> Self {
        Self {
            shell,
            keep_going,
            failed: false,
        }
    }

    /// Runs scripts; returns whether all statements succeeded.
    ///
    /// # Errors
    /// The first error; with `keep_going`, only that of a closed standard output.
    pub async fn run_all(mut self, scripts: &[Script]) -> Result<bool> {
        for script in scripts {
            let echo = matches!(script, Script::File(_)) && !self.shell.print.quiet;
            let result = self.run(script, echo).await;
            self.settle(result)?;
        }
        Ok(!self.failed)
    }

    /// Runs a script up to its end or `\q`. With `echo`, prints each statement before its result.
    async fn run(&mut self, script: &Script, echo: bool) -> Result<()> {
        let mut lines = script.lines()?;
        let mut splitter = Splitter::default();
        let mut number = 0;
        // Of the statement that has begun.
        let mut invalid = None;
        while let Some(line) = lines.recv().await {
            let line = line.map_err(|e| script.unreadable(e))?;
            number += 1;
            invalid = invalid.or(line.invalid.map(|e| script.locate(number, e)));
            let line = line.text;
            let dialect = self.shell.dialect()?;
            if (line.starts_with('\\') || commands::is_foreign_command(&line))
                && let Some(number) = splitter.between_statements(&*dialect)
            {
                splitter.skip_line();
                let command = line.split_whitespace().collect::<Vec<_>>().join(" ");
                if command == "\\q" {
                    return Ok(());
                }
                let result = self.command(&command, echo).await;
                self.settle(result.map_err(|e| script.locate(number, e)))?;
                continue;
            }
            for (number, statement) in splitter.push(&line, &*dialect) {
                match invalid.take_if(|_| statement.contains(char::REPLACEMENT_CHARACTER)) {
                    Some(error) => self.settle(Err(error))?,
                    None => self.statement(script, number, &statement, echo).await?,
                }
            }
        }
        if let Some(error) = invalid {
            return Err(error);
        }
        let last = splitter.finish(&*self.shell.dialect()?);
        match last.map_err(|(line, e)| script.locate(line, e))? {
            Some((line, statement)) => self.statement(script, line, &statement, echo).await,
            None => Ok(()),
        }
    }

    async fn statement(&mut self, script: &Script, line: u64, sql: &str, echo: bool) -> Result<()> {
        self.shell.stop.check()?;
        if echo {
            writeln!(io::stdout(), "\n{sql}")?;
        }
        // A panic, such as that of a reader of files, is this statement's error: the session goes on.
        let run = AssertUnwindSafe(self.shell.run(sql)).catch_unwind();
        let result = run
            .await
            .unwrap_or_else(|panic| Err(errors::of_panic(panic)));
        self.settle(result.map_err(|e| script.locate(line, e)))
    }

    async fn command(&mut self, command: &str, echo: bool) -> Result<()> {
        if echo {
            writeln!(io::stdout(), "\n{command}")?;
        }
        match command.strip_prefix("\\i ") {
            Some(file) => Box::pin(self.run(&Script::File(file.into()), echo)).await,
            None => commands::run(self.shell, command).await,
        }
    }

    /// Reports an error if the runner keeps going, and returns it otherwise.
    fn settle(&mut self, result: Result<()>) -> Result<()> {
        if self.shell.stop.is_requested() {
            // The prompt may have gone on.
            return result;
        }
        self.shell.watch.finish();
        match result {
            Err(error) if self.keep_going && !errors::is_closed_stdout(&error) => {
                errors::report(&error);
                self.failed = true;
                Ok(())
            }
            result => result,
        }
    }
}
