//! The shell as a process.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A range join that spills at once with a memory limit of 2 MB, and runs for many seconds.
pub const SPILLING: &str = "SELECT count(*), sum(lowest) FROM (
    SELECT (SELECT min(p.value) FROM generate_series(1, 1000000) AS p
            WHERE p.value BETWEEN (q.value * 7919) % 1000000 AND (q.value * 7919) % 1000000 + 100) AS lowest
    FROM generate_series(1, 100000000) AS q) AS t;\n";

/// A result larger than the buffer of a pipe.
pub const LONG: &str = "SELECT value, repeat('x', 100) AS text FROM generate_series(1, 100000)";

/// The longest time that a test waits for an event.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The root of the workspace, in which the shell is started.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

pub fn rmq(args: &[&str]) -> Command {
    // Signals that the caller ignores, as `nohup` does, would stay ignored.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,HUP,TERM", env!("CARGO_BIN_EXE_rmq")]);
    command.args(args).current_dir(ROOT);
    command
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[derive(Debug)]
pub struct Output {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs a command with this input and waits for its end.
pub fn run(mut command: Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_string();
    let writing = thread::spawn(move || {
        // The shell may exit before it has read everything.
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap();
    Output {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

pub fn args(args: &[&str]) -> Output {
    run(rmq(args), "")
}

pub fn piped(args: &[&str], input: &str) -> Output {
    run(rmq(args), input)
}

impl Output {
    /// Returns the output of a run without errors.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(
            (self.code, self.err.as_str()),
            (Some(0), ""),
            "{}",
            self.out
        );
        self.out
    }

    /// Returns the output of a run with this exit status and an error that contains these texts.
    #[track_caller]
    pub fn fails(self, code: i32, texts: &[&str]) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        for text in texts {
            assert!(self.err.contains(text), "no '{text}' in {self:?}");
        }
        self.out
    }
}

/// Creates a file with this text; returns its path.
pub fn file(directory: &TempDir, name: &str, text: &str) -> String {
    let path = directory.path().join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

#[track_caller]
pub fn wait(child: &mut Child) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begin.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("the shell does not end");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

pub fn send(signal: &str, child: &Child) {
    let sent = Command::new("kill")
        .args([format!("-{signal}"), child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
}

/// Lists files and directories, recursively.
pub fn files(directory: &Path) -> Vec<String> {
    let mut found = vec![];
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        found.push(entry.path().display().to_string());
        found.extend(files(&entry.path()));
    }
    found
}

#[track_caller]
pub fn wait_for_spill_files(directory: &TempDir, child: &mut Child) {
    let begin = Instant::now();
    while files(directory.path()).len() < 5 {
        assert!(begin.elapsed() < LIMIT, "no spill files");
        assert!(
            child.try_wait().unwrap().is_none(),
            "the query ended: {}",
            read(child.stderr.take().unwrap())
        );
        thread::sleep(Duration::from_millis(5));
    }
}

pub fn read(mut from: impl Read) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).unwrap();
    text
}
