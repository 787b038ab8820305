//! Arguments, what a session keeps, and what is printed.

use tempfile::tempdir;

use crate::process::{args, file, piped};

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
         SELECT kind, rows FROM rmq.lowest ORDER BY kind;
         DROP INDEX lowest;
         SELECT count(*) AS n FROM rmq_indexes() WHERE name IS NOT NULL;",
    );
    assert_eq!(created.code, Some(0), "{created:?}");
    let out: Vec<&str> = created.out.split_whitespace().collect();
    assert_eq!(
        out,
        ["name", "lowest", "kind,rows", "max,2", "min,2", "n", "0"],
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
