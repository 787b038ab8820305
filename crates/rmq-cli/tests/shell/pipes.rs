//! Standard input and output that are pipes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use tempfile::tempdir;

use crate::process::{LONG, SPILLING, args, file, files, piped, read, rmq, wait};

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
    for missing in ["DROP TABLE trads", "\\d trads"] {
        let script = format!("CREATE TABLE trades AS SELECT 1 AS a;\n{missing};\n");
        let said = "there is no table 'trads'. Did you mean 'trades'?";
        piped(&["-q"], &script).fails(1, &[said]);
    }
    let short = "CREATE TABLE q AS SELECT 1 AS a; SELECT * FROM qq";
    args(&["-c", short]).fails(1, &["there is no table 'qq'. Did you mean 'q'?"]);
    args(&["-c", "DROP TABLE quotes"]).fails(1, &["Table 'quotes' doesn't exist."]);
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
