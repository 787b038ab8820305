//! What documents show.

use std::fs;
use std::path::Path;

use tempfile::tempdir;

use crate::process::{ROOT, args, piped};

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
    let from_first = readme.split("```sh\n").nth(1).unwrap();
    let first = from_first.lines().next().unwrap();
    let arguments = first.strip_prefix("cargo run --bin rmq -- ").expect(first);
    let printed = tables(&args(&arguments.split(' ').collect::<Vec<_>>()).ok());
    let shown = tables(from_first.split("\n## ").next().unwrap());
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
    // Where DataFusion's parser refuses the join, its text is another one than what was typed.
    let nearest = "SELECT a, k FROM q JOIN p NEAREST 1 BY DISTANCE abs(p.k - q.a) WHERE a <> 1";
    let copy = format!(
        "{tables}\nCOPY ({nearest}) TO '{file}' STORED AS CSV;
        CREATE EXTERNAL TABLE f STORED AS CSV LOCATION '{file}'; SELECT * FROM f ORDER BY a;"
    );
    let out = piped(&["-q", "--format", "csv"], &copy).ok();
    assert_eq!(out, "count\n2\na,k\n0,0\n2,2\n");
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
