//! The prompt of `rmq`, at a terminal that `script` of util-linux makes.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::tempdir;

/// The longest time that a test waits for an event.
const LIMIT: Duration = Duration::from_secs(60);

struct Terminal {
    child: Child,
    keys: ChildStdin,
    /// All that was shown.
    shown: Arc<Mutex<String>>,
    /// The length of what a test has waited for.
    seen: usize,
}

impl Terminal {
    /// Starts a shell whose history is in this folder. `None` where there is no `script`.
    fn start(state: &Path) -> Option<Self> {
        Self::start_with(state, &[], None)
    }

    /// With these variables, at a terminal of this many columns and rows if there are any.
    fn start_with(
        state: &Path,
        variables: &[(&str, &str)],
        size: Option<(u16, u16)>,
    ) -> Option<Self> {
        let size = size.map_or_else(String::new, |(columns, rows)| {
            format!("stty columns {columns} rows {rows}; ")
        });
        // Without `exec`, some shells stay, and exit with 130 after a Ctrl-C that was not for them.
        let command = format!("{size}exec {}", env!("CARGO_BIN_EXE_rmq"));
        let started = Command::new("script")
            .args(["-qefc", &command, "/dev/null"])
            .current_dir(state)
            .env("SHELL", "/bin/sh")
            .env("XDG_STATE_HOME", state)
            .env("TERM", "xterm")
            .env_remove("RUST_LOG")
            .env_remove("PAGER")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = started else {
            println!("skipped: there is no program 'script'");
            return None;
        };
        let keys = child.stdin.take().unwrap();
        let mut output = child.stdout.take().unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let all = Arc::clone(&shown);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
                all.lock().unwrap().push_str(&text);
            }
        });
        let seen = 0;
        let mut terminal = Self {
            child,
            keys,
            shown,
            seen,
        };
        terminal.sees("> ");
        Some(terminal)
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Waits until this text is shown after what was seen before.
    #[track_caller]
    fn sees(&mut self, text: &str) {
        let begin = Instant::now();
        loop {
            {
                let shown = self.shown.lock().unwrap();
                if let Some(at) = shown[self.seen..].find(text) {
                    self.seen += at + text.len();
                    return;
                }
                assert!(
                    begin.elapsed() < LIMIT,
                    "no '{text}' in {:?}",
                    &shown[self.seen..]
                );
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What was seen already has this text.
    #[track_caller]
    fn sees_before(&self, text: &str) {
        let shown = self.shown.lock().unwrap();
        assert!(shown[..self.seen].contains(text), "{shown}");
    }

    /// Waits for the end; returns the exit status.
    #[track_caller]
    fn ends(mut self) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begin.elapsed() < LIMIT, "{:?}", self.shown.lock().unwrap());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn words_are_completed_and_the_history_is_kept() {
    let state = tempdir().unwrap();
    let Some(mut terminal) = Terminal::start(state.path()) else {
        return;
    };
    terminal.types("CREATE TABLE prices AS SELECT 1 AS walk_key, 'a' AS sym;\r");
    terminal.sees("Elapsed");
    terminal.sees("> ");
    terminal.types("SELECT walk\t, range_argmi\t'prices.walk_key', 0, 0) FROM pri\t;\r");
    terminal.sees("| walk_key | ");
    terminal.sees("| 1        | 0 ");
    terminal.sees("> ");
    // Several lines.
    terminal.types("SELECT 'a;\r b' AS\r text;\r");
    terminal.sees("| text ");
    terminal.sees("> ");
    // An error does not end the shell.
    terminal.types("SELECT nope;\r");
    terminal.sees("Error: ");
    terminal.sees("> ");
    terminal.types("SELECT * FROM (SELECT 2 AS a) t ASOF JOIN (SELECT 1 AS b) u MATCH_CONDITION (t.a >= u.b);\r");
    terminal.sees("| 2 | 1 |");
    terminal.sees("> ");
    let history = fs::read_to_string(state.path().join("rmq/history")).unwrap();
    assert!(history.contains("SELECT nope;"), "{history}");
    terminal.types("help\r");
    terminal.sees("\\timing");
    terminal.sees("> ");
    terminal.types("quit\r");
    assert_eq!(terminal.ends(), Some(0));

    let mut terminal = Terminal::start(state.path()).unwrap();
    // The last line but two: help, quit.
    terminal.types("\x1b[A\x1b[A\x1b[A\r");
    terminal.sees("| 2 | 1 |");
    terminal.sees("> ");
    terminal.types("\x04");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn work_of_ours_stops_when_cancelled() {
    let state = tempdir().unwrap();
    let Some(mut terminal) = Terminal::start(state.path()) else {
        return;
    };
    terminal.types("CREATE TABLE p AS SELECT value AS k FROM range(0, 300000);\r");
    terminal.sees("Elapsed");
    terminal.sees("> ");
    let frame = "ORDER BY k ROWS BETWEEN 20000 PRECEDING AND 20000 FOLLOWING";
    let lists = "SELECT min(array_length(range_smallest('p.k', 0, 299999, 200000))) FROM p";
    for query in [
        &format!(
            "SELECT min(x) FROM (SELECT string_agg(CAST(k AS VARCHAR), '') OVER ({frame}) AS x FROM p)"
        ),
        lists,
    ] {
        terminal.types(&format!("{query};\r"));
        terminal.sees(" s\r");
        let before = terminal.seen;
        terminal.types("\x03");
        terminal.sees("Cancelled.");
        let shown = terminal.shown.lock().unwrap()[before..].to_string();
        assert!(!shown.contains("still computes"), "{query}: {shown}");
        terminal.sees("> ");
    }
    terminal.types("quit\r");
    assert_eq!(terminal.ends(), Some(0));
}

/// Cancels what runs; the prompt is back within two seconds.
#[track_caller]
fn cancel(terminal: &mut Terminal) {
    thread::sleep(Duration::from_millis(300));
    let begin = Instant::now();
    terminal.types("\x03");
    terminal.sees("Cancelled.");
    terminal.sees("> ");
    let waited = begin.elapsed();
    assert!(waited < Duration::from_secs(3), "{waited:?}");
}

#[test]
fn the_prompt_is_back_at_once_and_the_tables_stay() {
    let state = tempdir().unwrap();
    let Some(mut terminal) = Terminal::start(state.path()) else {
        return;
    };
    terminal.types("CREATE TABLE p AS SELECT value AS k, value % 2 AS g FROM range(0, 200000);\r");
    terminal.sees("Elapsed");
    terminal.sees("> ");
    for query in [
        // A nested loop join, a hash join with a further condition, a merge join, and joins without conditions.
        "SELECT count(*) FROM p x JOIN p y ON x.k + y.k < 0",
        "SELECT count(*) FROM p x JOIN p y ON x.g = y.g AND x.k + y.k < 0",
        "SELECT count(*) FROM p x LEFT JOIN p y ON x.g = y.g AND x.k + y.k < 0",
        "SELECT * FROM p x WHERE EXISTS (SELECT FROM p y WHERE x.g = y.g AND x.k + y.k < 0)",
        "SELECT sum(x.k + y.k) FROM p x, p y",
        "SELECT sum(x.k + y.k) FROM p x JOIN p y ON x.g = y.g",
        // A function that computes for long in one call.
        "SELECT count(*) FROM range(0, 4) WHERE levenshtein(repeat('ab', 40000 + value), repeat('ba', 40000)) = 7",
    ] {
        terminal.types(&format!("{query};\r"));
        terminal.sees(" s\r");
        cancel(&mut terminal);
        // Impatience does no harm.
        for _ in 0..2 {
            terminal.types("\x03");
            terminal.sees("> ");
        }
        terminal.types("SELECT count(*) + 1 AS n FROM p;\r");
        terminal.sees("| 200001 |");
        terminal.sees("> ");
    }
    terminal.types("quit\r");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn what_is_left_behind_writes_nothing() {
    let state = tempdir().unwrap();
    let Some(mut terminal) = Terminal::start(state.path()) else {
        return;
    };
    // A call takes about as long as this waits.
    let slow = "levenshtein(repeat('ab', 10000 + value), repeat('ba', 10000))";
    terminal.types(&format!("SELECT {slow} AS slow FROM range(0, 3);\r"));
    thread::sleep(Duration::from_millis(200));
    terminal.types("\x03");
    terminal.sees("Cancelled.");
    terminal.sees("> ");
    let before = terminal.seen;
    thread::sleep(Duration::from_secs(8));
    let shown = terminal.shown.lock().unwrap()[before..].to_string();
    assert!(
        !shown.contains("slow") && !shown.contains("rror"),
        "{shown}"
    );
    terminal.types("quit\r");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn a_statement_goes_on_after_another_prompt_and_commands_run_within_it() {
    let state = tempdir().unwrap();
    let Some(mut terminal) = Terminal::start(state.path()) else {
        return;
    };
    terminal.types("CREATE TABLE prices AS SELECT value AS k FROM range(0, 50);\r");
    // Its rows are told.
    terminal.sees("50 row(s)");
    terminal.sees("> ");
    terminal.types("SELECT count(*) + 7 AS n\r");
    terminal.sees("-> ");
    terminal.types("\\dt\r");
    terminal.sees("prices");
    terminal.sees("-> ");
    terminal.types(".tables\r");
    terminal.sees("\\dt");
    terminal.sees("-> ");
    // A table of a line before is known.
    terminal.types("FROM pri\t\r");
    terminal.sees("prices");
    terminal.sees("-> ");
    terminal.types(";\r");
    terminal.sees("| 57 ");
    terminal.sees("> ");
    // Within a string a line is no command, and the prompt says so.
    terminal.types("SELECT 'a\r");
    terminal.sees("'> ");
    terminal.types("\\dt\r");
    terminal.sees("'> ");
    terminal.types("b' AS text;\r");
    terminal.sees("| text ");
    terminal.sees("> ");
    // Ctrl-C drops what was typed, and the history has it.
    terminal.types("SELECT 77 AS\r");
    terminal.sees("-> ");
    terminal.types("\x03");
    terminal.sees("> ");
    terminal.types("SELECT 1 AS one;\r");
    terminal.sees("| one |");
    terminal.sees("> ");
    terminal.types(".tables\r");
    terminal.sees("\\dt");
    terminal.sees("> ");
    terminal.types("quit\r");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn wide_and_long_results_can_be_read() {
    let state = tempdir().unwrap();
    let pager = [("PAGER", "sed s/^/paged:/")];
    let Some(mut terminal) = Terminal::start_with(state.path(), &pager, None) else {
        return;
    };
    terminal.sees_before("\\? lists commands");
    terminal.types("SELECT value, repeat('x', 100) AS long FROM range(0, 60);\r");
    terminal.sees("paged:");
    terminal.sees("\\pset maxrows");
    terminal.sees("> ");
    terminal.types("\\pset maxrows 2\r");
    terminal.sees("> ");
    let before = terminal.seen;
    terminal.types("SELECT value AS v FROM range(0, 60);\r");
    terminal.sees("First 2");
    let shown = terminal.shown.lock().unwrap()[before..].to_string();
    assert!(!shown.contains("paged:"), "{shown}");
    terminal.sees("> ");
    terminal.types("\\x\r");
    terminal.sees("> ");
    terminal.types("SELECT 7 AS first, 'a' AS other;\r");
    terminal.sees("first | 7");
    terminal.sees("other | a");
    terminal.sees("> ");
    terminal.types("quit\r");
    assert_eq!(terminal.ends(), Some(0));
}

/// What is shown between a statement and the next prompt.
#[track_caller]
fn shown_by(terminal: &mut Terminal, statement: &str) -> String {
    terminal.types(&format!("{statement}\r"));
    // After the echo.
    terminal.sees("\n");
    let before = terminal.seen;
    terminal.sees("> ");
    terminal.shown.lock().unwrap()[before..terminal.seen].to_string()
}

#[test]
fn results_that_do_not_fit_are_paged_and_auto_is_by_width() {
    let state = tempdir().unwrap();
    let pager = [("PAGER", "sed s/^/paged:/")];
    let Some(mut terminal) = Terminal::start_with(state.path(), &pager, Some((60, 12))) else {
        return;
    };
    // Four lines of a table besides its rows, and four below it.
    for (rows, is_paged) in [(4, false), (5, true)] {
        let shown = shown_by(
            &mut terminal,
            &format!("SELECT value FROM range(0, {rows});"),
        );
        assert_eq!(shown.contains("paged:| 3 "), is_paged, "{rows}: {shown}");
        assert!(
            shown.contains(&format!("| {} ", rows - 1)),
            "{rows}: {shown}"
        );
    }
    // Short and wide: 4 characters are the frame's.
    for (width, is_paged) in [(56, false), (57, true)] {
        let shown = shown_by(&mut terminal, &format!("SELECT repeat('x', {width}) AS w;"));
        assert_eq!(shown.contains("paged:| xxx"), is_paged, "{width}: {shown}");
    }
    let shown = shown_by(&mut terminal, "\\x auto");
    assert!(shown.contains("wider than the terminal"), "{shown}");
    for (width, is_record) in [(56, false), (57, true)] {
        let shown = shown_by(&mut terminal, &format!("SELECT repeat('x', {width}) AS w;"));
        assert_eq!(shown.contains("w | xxx"), is_record, "{width}: {shown}");
        assert_eq!(shown.contains("+----"), !is_record, "{width}: {shown}");
    }
    // Long records are paged, too.
    let wide = "SELECT repeat('x', 60) AS w FROM range(0, 9);";
    let shown = shown_by(&mut terminal, wide);
    assert!(shown.contains("paged:-[ row 9 ]"), "{shown}");
    // Without an argument, auto is switched off.
    let shown = shown_by(&mut terminal, "\\x");
    assert!(shown.contains("a row a line"), "{shown}");
    // Other formats are not paged.
    shown_by(&mut terminal, "\\pset format csv");
    let shown = shown_by(&mut terminal, "SELECT value FROM range(0, 30);");
    assert!(shown.contains("29") && !shown.contains("paged:"), "{shown}");
    terminal.types("quit\r");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn a_result_is_shown_without_the_pager_that_is_missing() {
    let state = tempdir().unwrap();
    let pager = [("PAGER", "no-such-pager-anywhere")];
    let Some(mut terminal) = Terminal::start_with(state.path(), &pager, Some((60, 12))) else {
        return;
    };
    let shown = shown_by(&mut terminal, "SELECT value FROM range(0, 30);");
    assert!(shown.contains("| 29 "), "{shown}");
    terminal.types("quit\r");
    assert_eq!(terminal.ends(), Some(0));
    // One that ends before it has read all is no error.
    let pager = [("PAGER", "head -n 4")];
    let mut terminal = Terminal::start_with(state.path(), &pager, Some((60, 12))).unwrap();
    terminal.types("\\pset maxrows inf\r");
    terminal.sees("> ");
    let shown = shown_by(&mut terminal, "SELECT value FROM range(0, 100000);");
    assert!(shown.contains("| 0 ") && !shown.contains("rror"), "{shown}");
    assert!(shown.contains("100000 row(s)"), "{shown}");
    terminal.types("quit\r");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn joins_of_unknown_size_are_announced_and_the_busiest_operator_is_shown() {
    let state = tempdir().unwrap();
    let rows: String = (0..60_000).map(|row| format!("{row}\n")).collect();
    fs::write(state.path().join("p.csv"), format!("k\n{rows}")).unwrap();
    let Some(mut terminal) = Terminal::start(state.path()) else {
        return;
    };
    terminal.types(
        "SELECT max(x) FROM (SELECT unnest(range(0, 3000)) AS x FROM range(0, 100000000));\r",
    );
    terminal.sees(" rows from ");
    terminal.types("\x03");
    terminal.sees("> ");
    terminal.types("SELECT count(*) FROM 'p.csv' x JOIN 'p.csv' y ON x.k + y.k < 0;\r");
    terminal.sees("compares every pair of rows of both sides: x.k + y.k < 0 mixes the sides");
    cancel(&mut terminal);
    terminal.types("quit\r");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn long_statements_are_announced_shown_and_cancelled() {
    let state = tempdir().unwrap();
    let Some(mut terminal) = Terminal::start(state.path()) else {
        return;
    };
    terminal.types("CREATE TABLE p AS SELECT value AS k FROM range(0, 200000);\r");
    terminal.sees("Elapsed");
    terminal.sees("> ");
    // A query that stops.
    terminal.types("SELECT count(*) FROM range(0, 100000000000);\r");
    terminal.sees(" s\r");
    terminal.types("\x03");
    terminal.sees("Cancelled.");
    terminal.sees("> ");
    terminal.types("SELECT 1 + 1 AS two;\r");
    terminal.sees("| 2 ");
    terminal.sees("> ");
    // One that does not.
    terminal.types("SELECT count(*) FROM p x JOIN p y ON x.k + y.k < 0;\r");
    terminal.sees("compares 40.0 billion pairs of rows: x.k + y.k < 0 mixes the sides");
    terminal.sees(" s\r");
    cancel(&mut terminal);
    terminal.types("quit\r");
    assert_eq!(terminal.ends(), Some(0));
}
