//! Runs DataFusion's own SQL tests without the extension and with it, and tells what differs.
//!
//! `datafusion-slt FOLDER [NAME...]`: the folder of `datafusion-sqllogictest`, a copy, as the tests write into it;
//! parts of names of files, all where there are none. Records that fail without the extension, too, need data from
//! outside that folder: they must fail in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use datafusion::error::{DataFusionError, Result};
use datafusion_sqllogictest::{
    DataFusion, TestContext, TestFile, df_value_validator, read_dir_recursive, setup_scratch_dir,
    value_normalizer,
};
use futures::StreamExt;
use indicatif::ProgressBar;
use sqllogictest::{Record, Runner, parse_file, strict_column_validator};

const FOLDER: &str = "test_files/";

/// Files that do not even begin without data that the crate does not have, or without a feature.
const SKIPPED: [&str; 3] = ["avro.slt", "encrypted_parquet.slt", "tpch/"];

/// What lists all functions, options and rules, and so those of the extension.
const LISTS: [&str; 2] = ["explain.slt", "information_schema.slt"];

/// Records that differ by what the extension does, as its documentation says: the file, a part of the text, and why.
const MEANT: [(&str, &str, &str); 8] = [
    (
        "joins.slt",
        "not in",
        "NOT IN with a further condition is three-valued",
    ),
    (
        "subquery.slt",
        "not in",
        "NOT IN with a further condition is three-valued",
    ),
    (
        "null_aware_anti_join.slt",
        "NOT IN",
        "NOT IN beside OR is three-valued",
    ),
    (
        "pwmj.slt",
        "ORDER BY 1,2",
        "rows come in the order of ORDER BY, which DataFusion's merge join only claims",
    ),
    (
        "window.slt",
        "SUM(DISTINCT",
        "DISTINCT over a frame that slides has an answer",
    ),
    (
        "datetime/arith_interval_double.slt",
        "interval",
        "an interval can be multiplied by an integer",
    ),
    ("math.slt", "abs(", "abs of a text has another error"),
    (
        "cte.slt",
        "rmq_nullable(",
        "a correlated subquery is nullable",
    ),
];

/// Why a record differs, if that is meant.
fn meant(name: &str, text: &str) -> Option<&'static str> {
    let is_explain = text.to_lowercase().contains("[sql] explain");
    if is_explain && text.contains("IntervalMonthDayNano {") && text.contains("INTERVAL '") {
        return Some("EXPLAIN shows intervals as SQL writes them");
    }
    let mut all = MEANT.iter();
    let found = all.find(|(file, part, _)| *file == name && text.contains(part));
    found.map(|(.., why)| *why)
}

/// What came of the records of one file: how many there are, and the failed ones by their place.
#[derive(Default)]
struct Outcome {
    records: usize,
    failed: BTreeMap<(String, u32), String>,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    env_logger::init();
    let mut arguments = std::env::args().skip(1);
    let Some(folder) = arguments.next() else {
        eprintln!("usage: datafusion-slt FOLDER [NAME...]");
        return Ok(ExitCode::FAILURE);
    };
    let names: Vec<String> = arguments.collect();
    std::env::set_current_dir(folder)?;
    let mut files: Vec<TestFile> = read_dir_recursive(FOLDER)?
        .into_iter()
        .map(|path| TestFile::new(path, &[FOLDER]))
        .filter(|file| file.is_slt_file() && is_named(file, &names))
        .collect();
    files.sort();
    let (skipped, files): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| {
        let path = file.relative_path.to_string_lossy();
        SKIPPED.iter().any(|skipped| path.starts_with(skipped))
    });
    for file in skipped {
        println!("skipped: {}", file.relative_path.display());
    }

    let (mut records, mut lacking, mut planned, mut listing) = (0, 0, 0, 0);
    let (mut numbered, mut refused, mut intended, mut differing) = (0, 0, 0, 0);
    let threads = std::thread::available_parallelism()?.get();
    let runs = futures::stream::iter(files).map(|file| async move {
        let both = run_twice(file.path.clone(), file.relative_path.clone());
        let both = tokio::spawn(both).await;
        (file.relative_path, both)
    });
    let mut runs = runs.buffered(threads);
    while let Some((name, both)) = runs.next().await {
        let name = name.display();
        let Ok(both) = both else {
            println!("PANIC in {name}");
            differing += 1;
            continue;
        };
        let Some((without, with)) = both? else {
            println!("skipped: {name}");
            continue;
        };
        records += without.records;
        if !without.failed.is_empty() {
            let count = without.failed.len();
            println!(
                "{name}: {count} of {} records fail without the extension, too",
                without.records
            );
            lacking += count;
        }
        let places: BTreeSet<_> = without.failed.keys().chain(with.failed.keys()).collect();
        for place in places {
            let (file, line) = place;
            let (before, after) = (without.failed.get(place), with.failed.get(place));
            if before == after {
                continue;
            }
            let (text, sql) = (after.map_or("", String::as_str), |sql: &str| {
                after
                    .or(before)
                    .is_some_and(|text| text.to_lowercase().contains(sql))
            });
            let is_timed = sql("[sql] explain analyze") || sql("[sql] explain (analyze");
            if before.is_some() && after.is_some() && is_timed {
                continue;
            }
            let shown = [
                "RangeJoin",
                "WindowFrame",
                "NoteExec",
                "TableScan: constants_",
            ];
            let is_shown = shown.iter().any(|ours| text.contains(ours));
            // An error that has DataFusion's own at its end.
            let is_explained = text.contains("It would have to become a range join");
            if sql("[sql] explain") && is_shown || is_explained {
                println!(
                    "{name}: {file}:{line} shows an operator of the extension, or why there is none"
                );
                planned += 1;
                continue;
            }
            let is_ours = text.contains("rmq_") || text.contains("rmq.");
            if LISTS.contains(&name.to_string().as_str()) && is_ours {
                println!("{name}: {file}:{line} lists what the extension adds");
                listing += 1;
                continue;
            }
            if after.is_some_and(|text| differs_in_numbers(text)) {
                println!("{name}: {file}:{line} numbers a subquery otherwise");
                numbered += 1;
                continue;
            }
            if sql("[sql] explain delete") && text.contains("and drops LIMIT") {
                println!("{name}: {file}:{line} is a DELETE with LIMIT, which is refused");
                refused += 1;
                continue;
            }
            if let Some(why) = after.and_then(|text| meant(&name.to_string(), text)) {
                println!("{name}: {file}:{line} is meant to differ: {why}");
                intended += 1;
                continue;
            }
            differing += 1;
            println!(
                "DIFFERS {name}: {file}:{line}\nwithout: {}\nwith: {}\n",
                before.map_or("passes", String::as_str),
                after.map_or("passes", String::as_str)
            );
        }
    }
    println!(
        "{records} records: {lacking} fail without the extension, {planned} show an operator of the extension or why there is none, {listing} list what the \
         extension adds, {numbered} number subqueries otherwise, {refused} are refused, {intended} are meant to differ, {differing} differ otherwise"
    );
    Ok(if differing == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Whether the lines that are missing and those that came instead differ only in the numbers of names, which
/// count the names given before, used or not.
fn differs_in_numbers(text: &str) -> bool {
    let lines = |sign: char| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(sign));
        let unnumbered = lines.map(|line| {
            let names = ["__correlated_sq_", "__scalar_sq_", "__common_expr_"];
            names.iter().fold(line.to_string(), |line, name| {
                let parts = line.split(name);
                let parts = parts.map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
                parts.collect::<Vec<_>>().join(name)
            })
        });
        unnumbered.collect()
    };
    let missing = lines('-');
    !missing.is_empty() && missing == lines('+')
}

fn is_named(file: &TestFile, names: &[String]) -> bool {
    let path = file.relative_path.to_string_lossy();
    names.is_empty() || names.iter().any(|name| path.contains(name.as_str()))
}

/// A file without the extension, then with it; `None` where DataFusion does not run it.
async fn run_twice(path: PathBuf, name: PathBuf) -> Result<Option<(Outcome, Outcome)>> {
    let Some(without) = run(&path, &name, false).await? else {
        return Ok(None);
    };
    let with = run(&path, &name, true).await?;
    Ok(with.map(|with| (without, with)))
}

async fn run(path: &Path, name: &Path, extended: bool) -> Result<Option<Outcome>> {
    let Some(context) = TestContext::try_new_for_test_file(name).await else {
        return Ok(None);
    };
    if extended {
        datafusion_rmq::register(context.session_ctx());
    }
    setup_scratch_dir(name)?;
    let mut runner = Runner::new(|| async {
        let session = context.session_ctx().clone();
        Ok(DataFusion::new(
            session,
            name.to_path_buf(),
            ProgressBar::hidden(),
        ))
    });
    runner.add_label("Datafusion");
    runner.with_column_validator(strict_column_validator);
    runner.with_normalizer(value_normalizer);
    runner.with_validator(df_value_validator);
    let records =
        parse_file(path.canonicalize()?).map_err(|e| DataFusionError::External(Box::new(e)))?;
    let mut outcome = Outcome::default();
    for record in records {
        if matches!(record, Record::Halt { .. }) {
            break;
        }
        outcome.records += usize::from(matches!(
            record,
            Record::Statement { .. } | Record::Query { .. }
        ));
        if let Err(error) = runner.run_async(record).await {
            let place = error.location();
            // Files include others.
            let file = place.file().rsplit('/').next().unwrap_or_default();
            let place = (file.to_string(), place.line());
            outcome
                .failed
                .insert(place, error.display(false).to_string());
        }
    }
    runner.shutdown_async().await;
    Ok(Some(outcome))
}
