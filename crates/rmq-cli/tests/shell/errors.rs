//! Errors, and how they are said.

use tempfile::tempdir;

use crate::process::{args, file, piped};

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

#[test]
fn a_refusal_does_not_name_the_rule_that_found_it() {
    let tables = "CREATE TABLE a AS SELECT 1 AS x; CREATE TABLE b AS SELECT 2 AS y;";
    let of_unnesting = "SELECT x, (WITH RECURSIVE r(n) AS (SELECT x UNION ALL SELECT max(n) + 1 FROM r) SELECT max(n) \
                        FROM r) FROM a";
    let of_analysis = "SELECT x IN (SELECT nullif(y, 3) + random()::INT FROM b WHERE y < x) FROM a";
    for (query, said) in [
        (of_unnesting, "and an aggregate without GROUP BY do"),
        (of_analysis, "has no plan with random()"),
    ] {
        let refused = args(&["-q", "-c", tables, "-c", query]);
        assert!(!refused.err.contains("caused by"), "{refused:?}");
        refused.fails(1, &["Error: Error during planning: a subquery ", said]);
    }
}
