//! The shell `rmq` as a process: arguments, exit statuses, pipes, signals.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::{TempDir, tempdir};

/// A range join that spills at once with a memory limit of 2 MB, and runs for many seconds.
const SPILLING: &str = "SELECT count(*), sum(lowest) FROM (
    SELECT (SELECT min(p.value) FROM generate_series(1, 1000000) AS p
            WHERE p.value BETWEEN (q.value * 7919) % 1000000 AND (q.value * 7919) % 1000000 + 100) AS lowest
    FROM generate_series(1, 100000000) AS q) AS t;\n";

/// A result larger than the buffer of a pipe.
const LONG: &str = "SELECT value, repeat('x', 100) AS text FROM generate_series(1, 100000)";

/// The longest time that a test waits for an event.
const LIMIT: Duration = Duration::from_secs(60);

/// The root of the workspace, in which the shell is started.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn rmq(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rmq"));
    command.args(args).current_dir(ROOT);
    command
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[derive(Debug)]
struct Output {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs a command with this input and waits for its end.
fn run(mut command: Command, input: &str) -> Output {
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

fn args(args: &[&str]) -> Output {
    run(rmq(args), "")
}

fn piped(args: &[&str], input: &str) -> Output {
    run(rmq(args), input)
}

impl Output {
    /// Returns the output of a run without errors.
    #[track_caller]
    fn ok(self) -> String {
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
    fn fails(self, code: i32, texts: &[&str]) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        for text in texts {
            assert!(self.err.contains(text), "no '{text}' in {self:?}");
        }
        self.out
    }
}

/// Creates a file with this text; returns its path.
fn file(directory: &TempDir, name: &str, text: &str) -> String {
    let path = directory.path().join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

#[track_caller]
fn wait(child: &mut Child) -> ExitStatus {
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

fn send(signal: &str, child: &Child) {
    let sent = Command::new("kill")
        .args([format!("-{signal}"), child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
}

/// Lists files and directories, recursively.
fn files(directory: &Path) -> Vec<String> {
    let mut found = vec![];
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        found.push(entry.path().display().to_string());
        found.extend(files(&entry.path()));
    }
    found
}

#[track_caller]
fn wait_for_spill_files(directory: &TempDir, child: &mut Child) {
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

fn read(mut from: impl Read) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).unwrap();
    text
}

// Arguments

#[test]
fn commands_run_one_after_another() {
    let out = args(&[
        "-q",
        "-c",
        "CREATE TABLE t AS SELECT 1 AS a; SELECT a FROM t",
        "-c",
        "SELECT a + 1 AS b FROM t;",
    ])
    .ok();
    assert_eq!(
        out,
        "+---+\n| a |\n+---+\n| 1 |\n+---+\n+---+\n| b |\n+---+\n| 2 |\n+---+\n"
    );
    assert_eq!(args(&["-q", "-c", ""]).ok(), "");
    assert_eq!(args(&["-q", "-c", "-- nothing", "-c", " ; ;"]).ok(), "");
}

#[test]
fn range_queries_are_registered() {
    let sql = "CREATE TABLE t AS SELECT * FROM (VALUES (5), (3), (8)) AS v(x);
               SELECT range_min('t.x', 0, 2) AS lowest;";
    assert_eq!(
        args(&["-q", "--format", "csv", "-c", sql]).ok(),
        "lowest\n3\n"
    );
}

/// The shell sees clauses that DataFusion's SQL planner drops, and drops an index by its name.
#[test]
fn indexes_are_created_and_dropped() {
    let created = piped(
        &["-q", "--format", "csv"],
        "CREATE TABLE q AS SELECT column1 AS s, column2 AS t FROM (VALUES ('A', 1), ('B', 2));
         CREATE INDEX by_time ON q USING rmq (s, t);
         CREATE INDEX lowest ON q (t);
         DROP INDEX by_time;
         SELECT DISTINCT name FROM rmq_indexes() WHERE name IS NOT NULL;
         SELECT extreme, rows FROM rmq.lowest ORDER BY extreme;
         DROP INDEX lowest;
         SELECT count(*) AS n FROM rmq_indexes() WHERE name IS NOT NULL;",
    );
    assert_eq!(created.code, Some(0), "{created:?}");
    let out: Vec<&str> = created.out.split_whitespace().collect();
    assert_eq!(
        out,
        ["name", "lowest", "extreme,rows", "max,2", "min,2", "n", "0"],
        "{created:?}"
    );
    for (statement, error) in [
        ("CREATE INDEX i ON q USING rmq (s t)", "is a comma missing?"),
        (
            "CREATE INDEX CONCURRENTLY i ON q USING rmq (s, t)",
            "no CONCURRENTLY",
        ),
        (
            "CREATE INDEX i ON q USING rmq (s, t) INCLUDE (s)",
            "no INCLUDE",
        ),
        (
            "CREATE INDEX i ON q USING rmq (s, t) WHERE t > 1",
            "no WHERE",
        ),
        (
            "CREATE INDEX i ON q USING rmq (s, t) WITH (x = 1)",
            "no WITH",
        ),
        ("DROP INDEX a.i", "the name a.i is qualified"),
        ("DROP INDEX i", "doesn't exist"),
    ] {
        let table = "CREATE TABLE q AS SELECT 'A' AS s, 1 AS t";
        let refused = args(&["-c", table, "-c", statement]);
        assert_eq!(refused.code, Some(1), "{statement}: {refused:?}");
        assert!(refused.err.contains(error), "{statement}: {refused:?}");
    }
}

#[test]
fn files_run_before_commands_and_show_their_statements() {
    let dir = tempdir().unwrap();
    let one = file(
        &dir,
        "one.sql",
        "-- The first.\nSELECT 1 AS a;\n\nSELECT 'x;\ny' AS b",
    );
    let two = file(&dir, "two.sql", "SELECT 3 AS c;");
    let quiet = args(&[
        "-q",
        "--format",
        "csv",
        "-f",
        &one,
        "-f",
        &two,
        "-c",
        "SELECT 4 AS d",
    ])
    .ok();
    assert_eq!(quiet, "a\n1\nb\n\"x;\ny\"\nc\n3\nd\n4\n");

    let shown = args(&["--format", "csv", "-f", &one, "-c", "SELECT 4 AS d"]).ok();
    for text in [
        "\n-- The first.\nSELECT 1 AS a;\na\n1\n1 row(s) fetched. \n",
        "\nSELECT 'x;\ny' AS b\nb\n",
    ] {
        assert!(shown.contains(text), "no '{text}' in {shown}");
    }
    assert!(!shown.contains("SELECT 4"), "{shown}");
}

#[test]
fn formats() {
    let sql = "SELECT * FROM (VALUES (1, 'x'), (2, NULL)) AS t(a, b)";
    let cases = [
        ("csv", "a,b\n1,x\n2,\n"),
        ("tsv", "a\tb\n1\tx\n2\t\n"),
        ("json", "[{\"a\":1,\"b\":\"x\"},{\"a\":2}]\n"),
        ("nd-json", "{\"a\":1,\"b\":\"x\"}\n{\"a\":2}\n"),
        (
            "table",
            "+---+------+\n| a | b    |\n+---+------+\n| 1 | x    |\n| 2 | NULL |\n+---+------+\n",
        ),
        (
            "automatic",
            "+---+------+\n| a | b    |\n+---+------+\n| 1 | x    |\n| 2 | NULL |\n+---+------+\n",
        ),
    ];
    for (format, shown) in cases {
        assert_eq!(
            args(&["-q", "--format", format, "-c", sql]).ok(),
            shown,
            "{format}"
        );
    }
}

#[test]
fn csv_has_lists_and_a_null_of_its_own() {
    let sql = "SELECT [1, NULL] AS l, named_struct('a', 1) AS s, CAST(NULL AS INT[]) AS e, NULL AS n, '' AS t, 1.5 AS f";
    let csv = |more: &[&str]| args(&[&["-q", "--format", "csv", "-c", sql], more].concat()).ok();
    assert_eq!(csv(&[]), "l,s,e,n,t,f\n\"[1, NULL]\",{a: 1},,,,1.5\n");
    assert_eq!(
        csv(&["--null", "-"]),
        "l,s,e,n,t,f\n\"[1, -]\",{a: 1},-,-,,1.5\n"
    );
    let set = "\\pset null \\N\n\\pset format tsv\nSELECT NULL AS n, '' AS t;\n";
    let shown = piped(&["-q"], set).ok();
    assert_eq!(shown, "Output format is Tsv.\nn\tt\n\\N\t\n");
    let table = args(&["-q", "--null", "(none)", "-c", "SELECT NULL AS n"]);
    assert!(table.ok().contains("| (none) |"));
}

#[test]
fn functions_are_described() {
    let csv = |input: &str| piped(&["-q", "--format", "csv"], input).ok();
    let all = csv("SHOW FUNCTIONS;\n");
    for ours in [
        "range_min,SCALAR,",
        "range_min,TABLE,",
        "range_max,TABLE,",
        "range_argmax,SCALAR,",
        "range_last_at_least,SCALAR,",
        "frame_min,WINDOW,",
        "frame_first_at_most,WINDOW,",
        "arg_min,AGGREGATE,",
        "max_by,AGGREGATE,",
        "range_join,TABLE,",
        "rmq_indexes,TABLE,",
        "rmq_devices,TABLE,",
        "abs,SCALAR,",
        "generate_series,TABLE",
    ] {
        let lines: Vec<&str> = all.lines().filter(|line| line.starts_with(ours)).collect();
        assert_eq!(lines.len(), 1, "{ours}: {lines:?}");
        assert!(
            lines[0].len() > ours.len() + 20 || ours.starts_with("gen"),
            "{lines:?}"
        );
    }
    let some = csv("SHOW FUNCTIONS LIKE 'frame_m%';\n");
    let names: Vec<&str> = some
        .lines()
        .filter_map(|line| line.split(',').next())
        .collect();
    assert_eq!(names, ["name", "frame_max", "frame_min"]);
    assert!(csv("\\df at_most\n").contains("frame_last_at_most,WINDOW,"));
    let help = csv("\\h range_min\n");
    for part in [
        "scalar function",
        "table function",
        "range_min('table.column', l, r)",
        "Example:",
    ] {
        assert!(help.contains(part), "{help}");
    }
    assert!(csv("\\h MAX_BY\n").contains("where y is greatest"));
    piped(&["-q"], "\\h range_mim\n")
        .fails(1, &["no function or statement 'range_mim'", "range_min"]);
    piped(&["-q"], "SELECT frame_min(1, 0, 0);\n").fails(1, &["add OVER (PARTITION BY"]);
}

#[test]
fn a_missing_file_is_said_to_be_missing() {
    let select = args(&["-q", "-c", "SELECT * FROM 'data/nosuch.parquet'"]);
    select.fails(1, &["no such file: 'data/nosuch.parquet'"]);
    let table = args(&["-q", "-c", "SELECT * FROM nosuch"]);
    table.fails(1, &["table 'datafusion.public.nosuch' not found"]);
}

#[test]
fn tables_leave_rows_out_and_other_formats_do_not() {
    let sql = "SELECT value FROM generate_series(1, 50)";
    let lines = |more: &[&str]| {
        args(&[&["-q", "-c", sql], more].concat())
            .ok()
            .lines()
            .count()
    };
    assert_eq!(lines(&["--maxrows", "2"]), 3 + 2 + 3 + 1);
    assert_eq!(lines(&[]), 3 + 40 + 3 + 1);
    assert_eq!(lines(&["--maxrows", "inf"]), 3 + 50 + 1);
    assert_eq!(lines(&["--maxrows", "2", "--format", "csv"]), 1 + 50);

    let shown = piped(&["-q"], &format!("{sql};\n\\pset format csv\n{sql};\n")).ok();
    assert_eq!(shown.lines().count(), 3 + 40 + 3 + 1 + 1 + 1 + 50);
}

#[test]
fn settings_of_the_session() {
    let setting = |more: &[&str], name: &str| {
        let sql = format!("SELECT value FROM information_schema.df_settings WHERE name = '{name}'");
        args(&[&["-q", "--format", "csv", "-c", &sql], more].concat()).ok()
    };
    assert_eq!(
        setting(&["-b", "77"], "datafusion.execution.batch_size"),
        "value\n77\n"
    );
    assert_eq!(
        setting(&["--batch-size", "78"], "datafusion.execution.batch_size"),
        "value\n78\n"
    );
    assert_eq!(
        setting(&["-m", "3M"], "datafusion.runtime.memory_limit"),
        "value\n3M\n"
    );
    assert_eq!(
        setting(&["--memory-limit", "4G"], "datafusion.runtime.memory_limit"),
        "value\n4G\n"
    );
}

#[test]
fn memory_is_limited() {
    let sql = "SET datafusion.runtime.max_temp_directory_size = '1K';
               SELECT count(*) FROM (SELECT DISTINCT value FROM generate_series(1, 1000000)) AS t";
    args(&["-q", "-m", "1M", "-c", sql]).fails(1, &["Error: "]);
    args(&["-q", "-m", "1G", "-c", sql]).ok();
}

/// What the session keeps gives way to DataFusion's operators, also where the limit is set later.
#[test]
fn indexes_give_way_to_other_operators() {
    let sql = "SET datafusion.execution.target_partitions = 1; SET datafusion.execution.batch_size = 1024;
               CREATE TABLE t AS SELECT value AS v, value % 7 AS w FROM range(0, 20000);
               SELECT range_min('t.v', 5, 9), range_max('t.w', 5, 9);
               SELECT count(*) FROM rmq_indexes();
               SELECT count(*), sum(v) FROM (SELECT DISTINCT v, w FROM t);";
    let later = format!("SET datafusion.runtime.memory_limit = '450K'; {sql}");
    for options in [["-m", "450K", "-c", sql], ["-m", "1G", "-c", &later]] {
        let args_of = [&["-q", "--format", "csv"][..], &options].concat();
        let out = args(&args_of).ok();
        assert!(
            out.contains("\n2\n") && out.ends_with("\n20000,199990000\n"),
            "{out}"
        );
    }
}

/// A panic is the error of its statement.
#[test]
fn a_session_survives_a_panic() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    // The writer of Parquet files does not expect this type.
    let copy = format!(
        "COPY (SELECT arrow_cast(arrow_cast(NULL, 'Utf8View'), 'Dictionary(Int32, Utf8View)') AS a) TO '{}'",
        path.display()
    );
    let after = "SELECT 7 AS after";
    let quiet = ["-q", "--format", "csv"];
    let kept = [&quiet[..], &["-k", "-c", &copy, "-c", after]].concat();
    let out = args(&kept).fails(1, &["\nError: ", "cannot downcast Utf8View"]);
    assert_eq!(out, "after\n7\n");
    let ended = [&quiet[..], &["-c", &copy, "-c", after]].concat();
    let out = args(&ended).fails(1, &["\nError: ", "cannot downcast Utf8View"]);
    assert_eq!(out, "");
}

#[test]
fn relative_paths_start_from_the_data_path() {
    let dir = tempdir().unwrap();
    file(&dir, "t.csv", "a\n7\n");
    file(&dir, "t.sql", "SELECT a FROM 't.csv';");
    let path = dir.path().to_str().unwrap();
    assert_eq!(
        args(&["-q", "--format", "csv", "-p", path, "-f", "t.sql"]).ok(),
        "a\n7\n"
    );
    let missing = dir.path().join("missing");
    args(&["-q", "-p", missing.to_str().unwrap(), "-c", "SELECT 1"])
        .fails(1, &["can't read", "missing"]);
}

#[test]
fn help_and_version() {
    let help = args(&["--help"]).ok();
    for option in [
        "--command",
        "--file",
        "--keep-going",
        "--format",
        "--quiet",
        "--maxrows",
        "--color",
        "--memory-limit",
        "--batch-size",
        "--data-path",
        "Exit status",
    ] {
        assert!(help.contains(option), "no '{option}' in {help}");
    }
    let version = format!("rmq {} on DataFusion 55.", env!("CARGO_PKG_VERSION"));
    assert!(args(&["--version"]).ok().starts_with(&version));
    assert!(args(&["-c", ""]).ok().starts_with(&version));
}

#[test]
fn wrong_arguments() {
    let cases: [&[&str]; 9] = [
        &["--format", "nope"],
        &["--maxrows", "nope"],
        &["--memory-limit", "nope"],
        &["-m", "-1"],
        &["--batch-size", "nope"],
        &["--nope"],
        &["nope"],
        &["-c"],
        &["-f"],
    ];
    for case in cases {
        let out = args(case).fails(2, &["error: ", case.last().unwrap()]);
        assert_eq!(out, "", "{case:?}");
    }
}

// Errors

#[test]
fn an_error_ends_commands() {
    let out = args(&[
        "-q",
        "--format",
        "csv",
        "-c",
        "SELECT 1 AS a; SELECT nope; SELECT 2",
        "-c",
        "SELECT 3",
    ]);
    assert_eq!(out.fails(1, &["Error: ", "nope"]), "a\n1\n");
    args(&["-q", "-c", "SELEC 1"]).fails(1, &["Error: ", "SELEC"]);
    args(&["-q", "-c", "SELECT 1 / 0"]).fails(1, &["Error: ", "Divide by zero"]);
}

#[test]
fn an_error_ends_a_file_and_says_where() {
    let dir = tempdir().unwrap();
    let bad = file(
        &dir,
        "bad.sql",
        "SELECT 1 AS a; SELECT 2 AS b;\n\n-- The bad one.\nSELECT\n  nope;\nSELECT 3 AS c;\n",
    );
    let out = args(&["-q", "--format", "csv", "-f", &bad, "-c", "SELECT 4 AS d"]);
    assert_eq!(
        out.fails(1, &["Error: ", "bad.sql, line 4\n", "nope"]),
        "a\n1\nb\n2\n"
    );

    let open = file(&dir, "open.sql", "SELECT 1 AS a;\nSELECT 'x;\nSELECT 2;\n");
    let out = args(&["-q", "--format", "csv", "-f", &open]);
    assert_eq!(
        out.fails(1, &["open.sql, line 2\n", "Unterminated string literal"]),
        "a\n1\n"
    );

    args(&["-q", "-f", "missing.sql"]).fails(1, &["can't read missing.sql"]);
    args(&["-q", "-f", dir.path().to_str().unwrap()]).fails(1, &["can't read "]);
}

#[test]
fn keep_going_reports_all_errors() {
    let dir = tempdir().unwrap();
    let bad = file(
        &dir,
        "bad.sql",
        "SELECT 1 AS a;\nSELECT nope1;\nSELECT 2 AS b;\n",
    );
    let out = args(&[
        "-q",
        "--keep-going",
        "--format",
        "csv",
        "-f",
        "missing.sql",
        "-f",
        &bad,
        "-c",
        "SELECT nope2; SELECT 3 AS c",
    ]);
    let out = out.fails(
        1,
        &[
            "can't read missing.sql",
            "bad.sql, line 2\n",
            "nope1",
            "nope2",
        ],
    );
    assert_eq!(out, "a\n1\nb\n2\nc\n3\n");

    let out = piped(
        &["-qk", "--format", "csv"],
        "SELECT 1 AS a;\nSELECT nope1;\n\\nope\nSELECT 2 AS b;\nSELECT 'open",
    );
    let out = out.fails(
        1,
        &[
            "line 2\n",
            "nope1",
            "line 3\n",
            "\\nope",
            "line 5\n",
            "Unterminated",
        ],
    );
    assert_eq!(out, "a\n1\nb\n2\n");
    assert_eq!(
        piped(&["-qk", "--format", "csv"], "SELECT 1 AS a;\n").ok(),
        "a\n1\n"
    );
}

// Pipes

#[test]
fn an_error_ends_a_pipe_and_says_where() {
    let out = piped(
        &["-q", "--format", "csv"],
        "SELECT 1 AS a;\nSELECT nope;\nSELECT 2 AS b;\n",
    );
    assert_eq!(out.fails(1, &["Error: line 2\n", "nope"]), "a\n1\n");
    let out = piped(
        &["-q", "--format", "csv"],
        "SELECT 1 AS a;\n\n/* two\nlines */ SELECT\n2 AS b; SELECT\nnope;\n",
    );
    assert_eq!(out.fails(1, &["Error: line 5\n", "nope"]), "a\n1\nb\n2\n");
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let directory = tempdir().unwrap();
    let script = file(&directory, "marked.sql", "\u{feff}SELECT 1 AS one;\n");
    assert!(args(&["-q", "-f", &script]).ok().contains("| one |"));
    let out = piped(&["-q", "--format", "csv"], "\u{feff}SELECT 1 AS one;\n").ok();
    assert_eq!(out, "one\n1\n");
}

#[test]
fn bytes_that_are_no_text_are_an_error_of_their_statement() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("latin1.sql");
    let script = b"SELECT 1 AS one;\nSELECT 'ab\xff'\n AS two;\nSELECT '\xef\xbf\xbd' AS three;\n";
    fs::write(&path, script).unwrap();
    let script = path.to_str().unwrap();
    let error = ["line 2", "0xff after 10 characters"];
    let out = args(&["-q", "-f", script]).fails(1, &error);
    assert!(out.contains("one") && !out.contains("three"), "{out}");
    let out = args(&["-q", "-k", "-f", script]).fails(1, &error);
    assert!(out.contains("three") && !out.contains("two |"), "{out}");
    let mut piped = rmq(&["-q"]);
    piped.stdin(fs::File::open(script).unwrap());
    let output = piped.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let shown = String::from_utf8(output.stderr).unwrap();
    assert!(
        shown.contains("line 2: ") || shown.contains("line 2"),
        "{shown}"
    );
}

#[test]
fn a_missing_table_has_a_suggestion() {
    let create = "CREATE TABLE prices AS SELECT 1 AS a; CREATE TABLE trades AS SELECT 1 AS a; SELECT * FROM pricse";
    args(&["-c", create]).fails(1, &["there is no table 'pricse'. Did you mean 'prices'?"]);
    args(&["-c", "SELECT * FROM quotes"]).fails(1, &["table 'datafusion.public.quotes' not found"]);
}

#[test]
fn a_function_says_which_arguments_it_wants() {
    let wrong = args(&["-c", "SELECT range_min('t.c', 0)"]);
    let wanted =
        "takes 3 arguments (a column, the first position and the last), but 2 were given.\n";
    assert!(!wrong.err.contains("Candidate"), "{wrong:?}");
    wrong.fails(1, &[wanted]);
}

#[test]
fn commands_of_other_shells_name_ours() {
    piped(&["-q"], ".tables\n").fails(1, &["no command '.tables': \\dt is that of rmq"]);
}

#[test]
fn lines_of_a_value_are_below_one_another_and_x_says_what_it_takes() {
    let output = piped(
        &["-q"],
        "\\x on\nSELECT 'a\nb' AS text, NULL AS n, 7 AS longer;\n",
    )
    .ok();
    let expected = "text   | a\n       | b\nn      | NULL\nlonger | 7\n";
    assert!(output.contains(expected), "{output}");
    piped(&["-q"], "\\x perhaps\n").fails(1, &["\\x takes on, off or auto, not 'perhaps'"]);
}

/// Each line of `\h SELECT` that tells how rows are read, as a statement.
#[test]
fn what_is_said_of_select_runs() {
    let help = piped(&["-q"], "\\h SELECT\n").ok();
    let tables = "CREATE TABLE t (id INT, sym VARCHAR, ts INT) AS VALUES (1, 'a', 3), (2, 'b', 4);\n\
                  CREATE TABLE q (sym VARCHAR, ts INT, v INT) AS VALUES ('a', 1, 7), ('a', 3, 8), ('b', 9, 9);\n";
    let statements = [
        (
            "WITH [ RECURSIVE ]",
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT max(i) FROM n",
        ),
        (
            "DISTINCT [ ON",
            "SELECT DISTINCT ON (sym) sym, v FROM q ORDER BY sym, v",
        ),
        (
            "GROUP BY { ALL",
            "SELECT sym, count(*) FROM q WHERE v > 1 GROUP BY ALL HAVING count(*) > 0",
        ),
        (
            "WINDOW name AS",
            "SELECT sum(v) OVER w FROM q WINDOW w AS (PARTITION BY sym ORDER BY ts)",
        ),
        (
            "QUALIFY condition",
            "SELECT v FROM q QUALIFY row_number() OVER (PARTITION BY sym ORDER BY ts) = 1",
        ),
        (
            "{ UNION | INTERSECT | EXCEPT }",
            "SELECT sym FROM t UNION ALL SELECT sym FROM q EXCEPT SELECT 'c'",
        ),
        (
            "LIMIT { count | ALL }",
            "SELECT v FROM q ORDER BY v DESC NULLS LAST LIMIT 2 OFFSET 1",
        ),
        ("table [ [ AS ] alias", "SELECT a.x FROM t AS a(x, y, z)"),
        (
            "[ LATERAL ] ( select )",
            "SELECT x.n FROM t CROSS JOIN LATERAL (SELECT count(*) FROM q WHERE q.ts <= t.ts) AS x(n)",
        ),
        (
            "function ( argument",
            "SELECT f.value FROM range(0, 3) AS f",
        ),
        ("[ NATURAL ]", "SELECT v FROM t NATURAL JOIN q"),
        (
            "[ INNER | LEFT | RIGHT | FULL ]",
            "SELECT v FROM t FULL JOIN q USING (sym, ts)",
        ),
        ("CROSS JOIN", "SELECT v FROM t CROSS JOIN q"),
        (
            "{ SEMI | ANTI } JOIN",
            "SELECT sym FROM t LEFT SEMI JOIN q ON q.ts = t.ts",
        ),
        (
            "{ LEFT | RIGHT }",
            "SELECT v FROM t RIGHT ANTI JOIN q ON q.ts = t.ts",
        ),
        (
            "MATCH_CONDITION ( comparison )",
            "SELECT v FROM t ASOF JOIN q MATCH_CONDITION (t.ts >= q.ts) USING (sym)",
        ),
        (
            "ASOF [ LEFT | SEMI | ANTI ]",
            "SELECT t.ts, q.ts FROM t ASOF LEFT JOIN q USING (sym, ts)",
        ),
        (
            "ON equality AND ... comparison",
            "SELECT t.id FROM t ASOF ANTI JOIN q ON q.sym = t.sym AND t.ts >= q.ts",
        ),
        (
            "ASOF { RIGHT | FULL }",
            "SELECT t.id, q.v FROM t ASOF FULL JOIN q ON q.sym = t.sym AND t.ts >= q.ts",
        ),
        (
            "NEAREST [ count ] BY",
            "SELECT t.id, q.v FROM t LEFT JOIN q NEAREST 2 BY DISTANCE abs(q.ts - t.ts)",
        ),
    ];
    let mut script = tables.to_string();
    for (form, statement) in statements {
        assert!(help.contains(form), "{form}: {help}");
        script.push_str(statement);
        script.push_str(";\n");
    }
    piped(&["-q"], &script).ok();
}

#[test]
fn a_table_has_a_column_a_line_on_demand() {
    let input = "\\x on\nSELECT 1 AS a, 'b' AS other;\n\\x off\n\\pset maxrows 1\nSELECT value FROM range(0, 3);\n";
    let out = piped(&[], input).ok();
    assert!(out.contains("-[ row 1 ]"), "{out}");
    assert!(out.contains("a     | 1\nother | b\n"), "{out}");
    assert!(out.contains("First 1 displayed: \\pset maxrows N"), "{out}");
}

#[test]
fn a_table_that_is_created_tells_its_rows() {
    let out = args(&["-c", "CREATE TABLE t AS SELECT * FROM range(0, 120)"]).ok();
    assert!(out.contains("120 row(s)"), "{out}");
    assert!(!out.contains("displayed"), "{out}");
}

#[test]
fn a_pipe_shows_results_alone() {
    let csv = |input| piped(&["-q", "--format", "csv"], input).ok();
    assert_eq!(csv("select 1 as a;"), "a\n1\n");
    assert_eq!(csv("select 1 as a"), "a\n1\n");
    assert_eq!(
        csv("select 1 as a; select\n2 as b;;\n-- the end\n"),
        "a\n1\nb\n2\n"
    );
    assert_eq!(
        csv("select 'x;\n-- y;\n' as a;\r\nselect 2 as b;\r\n"),
        "a\n\"x;\n-- y;\n\"\nb\n2\n"
    );
    assert_eq!(csv(""), "");
    assert_eq!(csv("\n\n"), "");

    let shown = piped(&["--format", "csv"], "select 1 as a;\n").ok();
    assert!(
        shown.starts_with("rmq ") && shown.contains("\na\n1\n1 row(s) fetched. \n"),
        "{shown}"
    );
}

#[test]
fn a_pipe_is_not_a_table() {
    let dir = tempdir().unwrap();
    let sql = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/dev/stdin';";
    piped(&["-q"], sql).fails(1, &["stdin"]);
    piped(&["-q", "-f", "-"], sql).fails(1, &["stdin"]);
    let sql = file(&dir, "t.sql", &format!("{sql} SELECT * FROM t;"));
    assert_eq!(
        piped(&["-q", "--format", "csv", "-f", &sql], "a\n1\n").ok(),
        "a\n1\n"
    );
}

#[test]
fn a_file_may_be_standard_input() {
    let out = piped(
        &["-q", "--format", "csv", "-f", "-", "-c", "SELECT 2 AS b"],
        "SELECT 1 AS a;\n",
    )
    .ok();
    assert_eq!(out, "a\n1\nb\n2\n");
    let out = piped(&["-q", "-f", "-"], "\nSELECT nope;\n");
    out.fails(1, &["Error: stdin, line 2\n", "nope"]);
}

#[test]
fn statements_run_as_they_come() {
    let mut child = rmq(&["-q", "--format", "csv"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for i in 1..=3 {
        writeln!(stdin, "SELECT\n{i} AS a;").unwrap();
        for expected in ["a".to_string(), i.to_string()] {
            assert_eq!(lines.next().unwrap().unwrap(), expected);
        }
    }
    drop(stdin);
    assert_eq!(wait(&mut child).code(), Some(0));
}

#[test]
fn a_long_statement_takes_linear_time() {
    let rows: String = (0..20_000).map(|i| format!("('a;b', {i}),\n")).collect();
    let sql =
        format!("SELECT count(*) AS n FROM (VALUES\n{rows}('c', 0)) AS t(a, b);\nSELECT 1 / 0;");
    let out = piped(&["-q", "--format", "csv"], &sql).fails(1, &["line 20003\n"]);
    assert_eq!(out, "n\n20001\n");
}

#[test]
fn backslash_commands_work_on_a_pipe() {
    let dir = tempdir().unwrap();
    let csv = |input: &str| piped(&["-q", "--format", "csv"], input);
    assert_eq!(csv("SELECT 1 AS a;\n\\q\nSELECT 2 AS b;\n").ok(), "a\n1\n");
    assert!(
        csv("CREATE TABLE t AS SELECT 1 AS a;\n-- all\n\\d\n")
            .ok()
            .contains("datafusion,public,t,BASE TABLE\n")
    );
    assert!(
        csv("CREATE TABLE t AS SELECT 1 AS a;\n\\d t\n")
            .ok()
            .contains("datafusion,public,t,a,Int64,NO\n")
    );
    assert!(csv("\\?\n").ok().contains("\\q,quit\n"));
    assert!(csv("\\h\n").ok().contains("SELECT"));
    assert!(csv("\\h SELECT\n").ok().contains("SELECT"));
    assert_eq!(
        csv("\\pset\n\\pset format tsv\nSELECT 1 AS a, 2 AS b;\n").ok(),
        "Output format is Csv.\nOutput format is Tsv.\na\tb\n1\t2\n"
    );
    assert!(
        csv("\\quiet false\nSELECT 1 AS a;\n")
            .ok()
            .contains("Quiet mode set to false\na\n1\n1 row(s) fetched. \n")
    );

    assert_eq!(
        csv("CREATE TABLE t AS SELECT 1 AS a;\n\\dt\n").ok(),
        "table_schema,table_name,table_type\npublic,t,BASE TABLE\n"
    );
    assert!(
        csv("\\timing on\nSELECT 1 AS a;\n\\timing\nSELECT 2 AS b;\n")
            .ok()
            .ends_with(" seconds.\n\nTiming is off.\nb\n2\n")
    );

    // Only where a statement begins.
    assert_eq!(csv("SELECT 'x\n\\q\n' AS a;\n").ok(), "a\n\"x\n\\q\n\"\n");

    let included = file(&dir, "included.sql", "SELECT 2 AS b;\n\\q\nSELECT nope;");
    assert_eq!(
        csv(&format!("\\i {included}\nSELECT 3 AS c;\n")).ok(),
        "b\n2\nc\n3\n"
    );
    let bad = file(&dir, "bad.sql", "\nSELECT nope;");
    csv(&format!("\n\\i {bad}\n")).fails(1, &["Error: line 2\n", "bad.sql, line 2\n", "nope"]);
    csv("\\i\n").fails(1, &["line 1\n", "filename"]);
    csv("\\pset format nope\n").fails(1, &["line 1\n", "nope"]);

    let out = csv("SELECT 1 AS a;\n\\nope x\nSELECT 2 AS b;\n");
    assert_eq!(
        out.fails(1, &["line 2\n", "'\\nope x' is not a valid command"]),
        "a\n1\n"
    );
    assert_eq!(
        args(&[
            "-q",
            "--format",
            "csv",
            "-c",
            "\\pset",
            "-c",
            "SELECT 1 AS a"
        ])
        .ok(),
        "Output format is Csv.\na\n1\n"
    );
}

#[test]
fn a_closed_pipe_ends_the_shell_silently() {
    for format in ["csv", "tsv", "json", "nd-json", "table"] {
        for going in ["-q", "-qk"] {
            let flags = [
                going,
                "--format",
                format,
                "--maxrows",
                "inf",
                "-c",
                LONG,
                "-c",
                LONG,
            ];
            let mut child = rmq(&flags).spawn().unwrap();
            let mut first = String::new();
            BufReader::new(child.stdout.take().unwrap())
                .read_line(&mut first)
                .unwrap();
            assert_ne!(first, "");
            assert_eq!(wait(&mut child).code(), Some(141), "{format}");
            assert_eq!(read(child.stderr.take().unwrap()), "", "{format}");
        }
    }
    for input in [
        "\\h\n",
        "\\?\n",
        "\\pset\n",
        "\\quiet\n",
        "\\h SELECT\n",
        "SELECT 1;\n",
    ] {
        let mut child = rmq(&["-q"]).stdin(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        assert_eq!(wait(&mut child).code(), Some(141), "{input}");
        assert_eq!(read(child.stderr.take().unwrap()), "", "{input}");
    }
}

#[test]
fn a_closed_pipe_leaves_no_files() {
    let temp = tempdir().unwrap();
    let spilled = SPILLING.replace("100000000", "1000");
    let mut child = rmq(&["-q", "-m", "2M"])
        .env("TMPDIR", temp.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdin.write_all(spilled.as_bytes()).unwrap();
    stdout.read_line(&mut String::new()).unwrap();
    assert_ne!(
        files(temp.path()),
        [""; 0],
        "the directory stays for the next query"
    );
    drop(stdout);
    stdin.write_all(b"\\h\n\\h\n").unwrap();
    assert_eq!(wait(&mut child).code(), Some(141));
    assert_eq!(files(temp.path()), [""; 0]);
}

#[test]
fn a_closed_stderr_does_not_matter() {
    let mut child = rmq(&["-qk", "-c", "SELECT nope", "-c", "SELECT 1"])
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    assert_eq!(wait(&mut child).code(), Some(1));
    assert!(read(child.stdout.take().unwrap()).contains("| 1 "));
}

// Signals

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

// Documentation

/// Returns the tables in a text.
fn tables(text: &str) -> Vec<String> {
    let mut tables = vec![];
    let mut table = String::new();
    for line in text.lines().chain([""]) {
        if line.starts_with("+-") || (line.starts_with("| ") && !table.is_empty()) {
            table += line;
            table += "\n";
        } else if !table.is_empty() {
            tables.push(std::mem::take(&mut table));
        }
    }
    tables
}

#[test]
fn the_readme_shows_what_its_first_command_prints() {
    let readme = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let first = readme
        .split("```sh\n")
        .nth(1)
        .unwrap()
        .lines()
        .next()
        .unwrap();
    let arguments = first.strip_prefix("cargo run --bin rmq -- ").expect(first);
    let printed = tables(&args(&arguments.split(' ').collect::<Vec<_>>()).ok());
    let until_next_command = readme.split("```sh\n").nth(1).unwrap();
    let shown = tables(until_next_command);
    assert!(!shown.is_empty());
    for table in shown {
        assert!(printed.contains(&table), "this is not printed:\n{table}");
    }
}

#[test]
fn an_example_script_runs() {
    args(&["-q", "-f", "examples/plain_sql.sql"]).ok();
}

/// Scripts may have ASOF joins outside of parentheses, which DataFusion's shell can't plan.
#[test]
fn asof_joins_are_planned() {
    let tables = "CREATE TABLE p AS SELECT value * 2 AS k FROM range(0, 5);
        CREATE TABLE q AS SELECT value AS a FROM range(0, 3);";
    let join = "SELECT a, k FROM q -- each row once
        AsOf JOIN p MATCH_CONDITION (q.a > p.k)";
    let expected = "a,k\n0,\n1,0\n2,0\n";
    let script = format!("{tables}\n{join} ORDER BY a;");
    assert_eq!(piped(&["-q", "--format", "csv"], &script).ok(), expected);
    // As DuckDB writes it, also in a COPY, whose text DataFusion parses once more.
    let join = "SELECT a, k FROM q -- each row once
        ASOF /* all rows */ LEFT JOIN (SELECT * FROM p) AS p ON q.a > p.k";
    let script = format!(
        "{tables}\n{join} ORDER BY a; SELECT count(*) AS n FROM q ASOF JOIN p ON p.k < q.a;"
    );
    let both = format!("{expected}n\n2\n");
    assert_eq!(piped(&["-q", "--format", "csv"], &script).ok(), both);
    let temp = tempdir().unwrap();
    let file = temp.path().join("it's.csv").display().to_string();
    let file = file.replace('\'', "''");
    let copied =
        format!("SELECT * FROM ({join}) WHERE a IS NOT DISTINCT FROM a AND a < 3 ORDER BY a");
    let copy = format!(
        "{tables}\nCOPY ({copied}) TO '{file}' STORED AS CSV OPTIONS ('format.delimiter' ';');
        CREATE EXTERNAL TABLE f STORED AS CSV LOCATION '{file}' OPTIONS ('format.delimiter' ';');
        SELECT * FROM f ORDER BY a;"
    );
    let out = piped(&["-q", "--format", "csv"], &copy).ok();
    assert_eq!(out, format!("count\n3\n{expected}"));
    let table = format!("CREATE TABLE t AS {join}");
    let explain = format!("EXPLAIN FORMAT INDENT {join}");
    let arguments = ["-q", "--format", "csv", "-c", tables, "-c", &table];
    let rest = ["-c", &explain, "-c", "SELECT * FROM t ORDER BY a"];
    let out = args(&[&arguments[..], &rest[..]].concat()).ok();
    assert!(out.contains("rightmost(p.k)"), "{out}");
    assert!(out.ends_with(expected), "{out}");
    let bad = args(&["-q", "-c", tables, "-c", "SELECT * FROM q ASOF JOIN p"]);
    assert!(bad.err.contains("MATCH_CONDITION"), "{}", bad.err);
}
