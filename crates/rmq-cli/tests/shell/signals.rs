//! Signals.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::{TempDir, tempdir};

use crate::process::{
    LIMIT, LONG, SPILLING, file, files, read, rmq, send, wait, wait_for_spill_files,
};

/// The source of the shell's SQL.
#[derive(Clone, Copy, Debug)]
enum Source {
    Command,
    File,
    Pipe,
}

/// Starts a shell and waits until its query spills to `temp`.
fn spilling(source: Source, temp: &TempDir, sql: &TempDir) -> Child {
    let path = file(sql, "spilling.sql", SPILLING);
    let mut command = match source {
        Source::Command => rmq(&["-q", "-m", "2M", "-c", SPILLING]),
        Source::File => rmq(&["-q", "-m", "2M", "-f", &path]),
        Source::Pipe => rmq(&["-q", "-m", "2M"]),
    };
    let mut child = command
        .env("TMPDIR", temp.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    if let Source::Pipe = source {
        // The pipe stays open: the shell must not wait for its end.
        child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(SPILLING.as_bytes())
            .unwrap();
    }
    wait_for_spill_files(temp, &mut child);
    child
}

fn a_signal_leaves_no_files(signal: &str, code: i32) {
    let sql = tempdir().unwrap();
    for source in [Source::Command, Source::File, Source::Pipe] {
        let temp = tempdir().unwrap();
        let mut child = spilling(source, &temp, &sql);
        send(signal, &child);
        assert_eq!(wait(&mut child).code(), Some(code), "{source:?}");
        assert_eq!(files(temp.path()), [""; 0], "{source:?}");
        assert_eq!(read(child.stdout.take().unwrap()), "", "{source:?}");
        assert_eq!(read(child.stderr.take().unwrap()), "", "{source:?}");
    }
}

#[test]
fn an_interrupt_leaves_no_files() {
    a_signal_leaves_no_files("INT", 130);
}

#[test]
fn a_termination_leaves_no_files() {
    a_signal_leaves_no_files("TERM", 143);
}

#[test]
fn a_hangup_leaves_no_files() {
    a_signal_leaves_no_files("HUP", 129);
}

#[test]
fn a_signal_leaves_no_files_of_a_directory_that_was_set() {
    let temp = tempdir().unwrap();
    let set = format!(
        "SET datafusion.runtime.temp_directory = '{}'",
        temp.path().display()
    );
    let mut child = rmq(&["-q", "-m", "2M", "-c", &set, "-c", SPILLING])
        .spawn()
        .unwrap();
    wait_for_spill_files(&temp, &mut child);
    send("TERM", &child);
    assert_eq!(wait(&mut child).code(), Some(143));
    assert_eq!(files(temp.path()), [""; 0]);
}

#[test]
fn a_signal_leaves_no_half_written_output() {
    let temp = tempdir().unwrap();
    let copy = format!(
        "COPY ({}) TO '{}/out.csv'",
        LONG.replace("100000", "1000000000"),
        temp.path().display()
    );
    let mut child = rmq(&["-q", "-c", &copy]).spawn().unwrap();
    let begin = Instant::now();
    while files(temp.path()).is_empty() {
        assert!(begin.elapsed() < LIMIT && child.try_wait().unwrap().is_none());
        thread::sleep(Duration::from_millis(5));
    }
    send("INT", &child);
    assert_eq!(wait(&mut child).code(), Some(130));
    assert_eq!(files(temp.path()), [""; 0]);
}

#[test]
fn a_signal_ends_a_shell_that_waits_for_sql() {
    let mut child = rmq(&["-q"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"SELECT 1;\n").unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    send("TERM", &child);
    assert_eq!(wait(&mut child).code(), Some(143));
}

/// Starts a shell that has spilled to `temp` and blocks on a full pipe, so that it can't drop its session.
fn stuck(temp: &TempDir) -> Child {
    let spilled = SPILLING
        .replace("100000000", "1000")
        .replace("1000000)", "3000000)");
    let mut child = rmq(&[
        "-q", "-m", "30M", "--format", "csv", "-c", &spilled, "-c", LONG,
    ])
    .env("TMPDIR", temp.path())
    .spawn()
    .unwrap();
    let mut start = [0; 100];
    let stdout = child.stdout.as_mut().unwrap();
    if stdout.read_exact(&mut start).is_err() {
        panic!("{}", read(child.stderr.take().unwrap()));
    }
    assert_ne!(
        files(temp.path()),
        [""; 0],
        "the directory stays for the next query"
    );
    child
}

#[test]
fn a_signal_ends_a_shell_whose_output_is_not_read() {
    let temp = tempdir().unwrap();
    let mut child = stuck(&temp);
    send("TERM", &child);
    assert_eq!(wait(&mut child).code(), Some(143));
    assert_eq!(files(temp.path()), [""; 0]);
}

#[test]
fn a_second_signal_ends_the_shell_at_once() {
    let temp = tempdir().unwrap();
    let mut child = stuck(&temp);
    send("TERM", &child);
    // Signals that arrive together may be handled in any order.
    thread::sleep(Duration::from_millis(300));
    send("INT", &child);
    assert_eq!(wait(&mut child).code(), Some(130));
}

#[test]
fn a_signal_that_was_ignored_stays_so() {
    let temp = tempdir().unwrap();
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "trap '' HUP; exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_rmq"),
        "-q",
        "-m",
        "2M",
        "-c",
        SPILLING,
    ]);
    shell
        .env("TMPDIR", temp.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    wait_for_spill_files(&temp, &mut child);
    send("HUP", &child);
    thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none());
    send("TERM", &child);
    assert_eq!(wait(&mut child).code(), Some(143));
    assert_eq!(files(temp.path()), [""; 0]);
}
