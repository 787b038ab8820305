//! Joins of which only the rows nearest to a bound count, over files that are read in slices, compared with the same
//! joins over all rows.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one pair of tables; `RMQ_CASES` makes it longer.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::physical_plan::{collect, execute_stream_partitioned};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::{StreamExt, TryStreamExt};
use tempfile::TempDir;

use crate::pruning::{Files, Layout, ROWS, SMALL, pruned_answer, register};
use crate::range_join::{answer, is_refusal, lines};
use crate::support::{run, set, with_extension};
use rmq_testing::{Random, cases_with_queries, is_usual};

/// The number of queries of the random test, unless `RMQ_CASES` overrides it.
const CASES: usize = 240;

/// Seeds of cases that once failed.
const FAILED: [u64; 3] = [7401670113229467263, 745773478048735981, 262876002420881294];

/// Queries over the same pair of tables.
const QUERIES: usize = 8;

/// Queries over `q`, with the bound `a`, and `p`, with the range key `k`. `<=` is any comparison that fits.
const BELOW: [&str; 7] = [
    "SELECT q.id, (SELECT p.v FROM p WHERE p.s = q.s AND p.k <= q.a ORDER BY p.k DESC LIMIT 1) FROM q",
    "SELECT q.id, (SELECT last_value(p.v ORDER BY p.k) FROM p WHERE p.s = q.s AND p.k <= q.a) FROM q",
    "SELECT q.id, (SELECT max(p.k) FROM p WHERE p.s = q.s AND p.k <= q.a) FROM q",
    "SELECT q.id, x.k, x.v FROM q CROSS JOIN LATERAL (SELECT p.k, p.v FROM p WHERE p.s = q.s AND p.k <= q.a ORDER BY p.k DESC LIMIT 2 OFFSET 1) x",
    "SELECT q.id, x.k FROM q LEFT JOIN LATERAL (SELECT p.k FROM p WHERE p.k <= q.a ORDER BY p.k DESC LIMIT 3) x ON true",
    "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.s = q.s AND p.k <= q.a)",
    "SELECT q.id FROM q WHERE NOT EXISTS (SELECT 1 FROM p WHERE p.s = q.s AND p.k <= q.a)",
];

/// The same with a further condition on pairs.
const BELOW_AND: [&str; 5] = [
    "SELECT q.id, (SELECT p.v FROM p WHERE p.s = q.s AND p.k <= q.a AND p.v < 5000 - q.id * 100 ORDER BY p.k DESC LIMIT 1) FROM q",
    "SELECT q.id, x.k, x.v FROM q CROSS JOIN LATERAL (SELECT p.k, p.v FROM p WHERE p.s = q.s AND p.k <= q.a AND p.v % 7 <> q.id % 7 ORDER BY p.k DESC LIMIT 2 OFFSET 1) x",
    "SELECT q.id, x.k FROM q LEFT JOIN LATERAL (SELECT p.k FROM p WHERE p.k <= q.a AND (p.v + q.id) % 3 = 1 ORDER BY p.k DESC LIMIT 3) x ON true",
    "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.s = q.s AND p.k <= q.a AND (p.v + q.id) % 11 = 3)",
    "SELECT q.id FROM q WHERE NOT EXISTS (SELECT 1 FROM p WHERE p.k <= q.a AND (p.v + q.id) % 97 = 3)",
];

/// Nearest rows on both sides of a point.
const AROUND: [&str; 5] = [
    "SELECT q.id, x.k, x.v FROM q LEFT JOIN LATERAL (SELECT p.k, p.v FROM p WHERE p.s = q.s ORDER BY abs(p.k - q.a) LIMIT 1) x ON true",
    "SELECT q.id, x.k, x.v FROM q CROSS JOIN LATERAL (SELECT p.k, p.v FROM p WHERE p.s = q.s AND p.k IS NOT NULL ORDER BY abs(p.k - q.a) LIMIT 3 OFFSET 1) x",
    "SELECT q.id, x.k FROM q CROSS JOIN LATERAL (SELECT p.k FROM p WHERE p.k IS NOT NULL ORDER BY abs(p.k - q.a) LIMIT 2) x",
    "SELECT q.id, x.k FROM q CROSS JOIN LATERAL (SELECT p.k FROM p WHERE p.s = q.s AND p.k IS NOT NULL AND p.v % 7 <> q.id % 7 ORDER BY abs(p.k - q.a) LIMIT 2) x",
    "SELECT q.id, x.k, x.v FROM q CROSS JOIN LATERAL (SELECT p.k, p.v FROM p WHERE p.k IS NOT NULL ORDER BY abs(p.k - q.a), p.v LIMIT 2) x",
];

/// The same above the bound.
fn above(sql: &str) -> String {
    let sql = sql.replace("<=", ">=").replace("DESC ", "");
    sql.replace("last_value", "first_value")
        .replace("max(", "min(")
}

/// Windows with the row that is in force at their start.
const PREVAILING: [&str; 2] = [
    "SELECT id, n, low, peak FROM range_join('q', 'p', 's', 'k BETWEEN a AND b', 'count(*) AS n, min(v) AS low, max(k) AS peak', 'include prevailing')",
    "SELECT id, n, low FROM range_join('q', 'p', 's', 'k >= a', 'count(*) AS n, min(v) AS low', 'include prevailing')",
];

/// Rows `k`, `s`, `v` with gaps of different lengths; `v` depends on the others, so rows with equal keys are equal.
fn rows(random: &mut Random, count: usize) -> RecordBatch {
    let symbols = [1, 3, 20][random.below(3)];
    let mut key = 1000;
    let mut columns: [Vec<Option<i64>>; 3] = Default::default();
    for _ in 0..count {
        let gap = [1, 3, 100, 2000][random.below(4)];
        key += random.below(gap) as i64;
        // The last symbols are seldom.
        let symbol = random.below(symbols).min(random.below(symbols)) as i64;
        let value = (key * 7919 + symbol * 31) % 1009;
        columns[0].push((random.below(15) > 0).then_some(key));
        columns[1].push((random.below(15) > 0).then_some(symbol));
        columns[2].push((value % 9 > 0).then_some(value));
    }
    let columns = columns.map(|column| Arc::new(Int64Array::from(column)) as ArrayRef);
    RecordBatch::try_from_iter_with_nullable(
        ["number", "s", "v"]
            .into_iter()
            .zip(columns)
            .map(|(name, column)| (name, column, true)),
    )
    .expect("columns of one length")
}

/// Two sessions, one of which reads all rows, with `p` in files and a few rows `q` whose bounds are close together.
/// Returns also the distance of their keys, if there is one.
async fn sessions(
    random: &mut Random,
    folder: &std::path::Path,
) -> ([SessionContext; 2], Option<&'static str>) {
    let count = [1, 40, 300][random.below(3)];
    let all = rows(random, count);
    let types = [
        "BIGINT",
        "INT",
        "SMALLINT UNSIGNED",
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP(0)",
        "TIMESTAMPTZ",
        "DOUBLE",
        "BIGINT UNSIGNED",
        "DECIMAL(20, 3)",
    ];
    let key = types[random.below(types.len())];
    let distance = match key {
        "DECIMAL(20, 3)" => None,
        time if time.starts_with("TIME") => Some("abs(extract(epoch FROM (p.k - q.a)))"),
        _ => Some("abs(p.k - q.a)"),
    };
    let layout = Layout::draw(random);
    let partitions = 1 + random.below(3);
    let session = || {
        with_extension(SessionContext::new_with_config(
            SessionConfig::new().with_target_partitions(partitions),
        ))
    };
    let [with, without] = [session(), session()];
    without.register_batch("raw", all).expect("a table");
    let as_key = |number: &str| match key {
        "DATE" => format!("({number})::INT::DATE"),
        "TIMESTAMPTZ" => {
            format!("arrow_cast({number}, 'Timestamp(Millisecond, Some(\"+01:00\"))')")
        }
        "SMALLINT UNSIGNED" => format!("({number} % 60000)::SMALLINT UNSIGNED"),
        _ => format!("({number})::{key}"),
    };
    let p = format!(
        "SELECT {} AS k, s, v FROM raw ORDER BY {}",
        as_key("number"),
        ["number", "v"][random.below(2)]
    );
    let p = run(&without, &p).await.expect(&p);
    let half = p.num_rows() / 2;
    std::fs::create_dir(folder.join("p")).expect("a new folder");
    for (name, rows) in [
        ("a", p.slice(0, half)),
        ("b", p.slice(half, p.num_rows() - half)),
    ] {
        layout
            .write(&folder.join(format!("p/{name}.parquet")), &rows)
            .expect("a file");
    }
    let (center, spread) = (random.below(200_000), [1, 5, 1000][random.below(3)]);
    let is_large = random.below(3) == 0;
    if is_large {
        // More rows than are read ahead, whose keys are read first.
        let a = format!("{center} + value * 7919 % {spread}");
        let q = format!(
            "SELECT value AS id, {} AS a, {} AS b, value % {} AS s FROM generate_series(0, 4999)",
            as_key(&format!("nullif(({a})::BIGINT, {})", center + 3)),
            as_key(&format!("({a} + value % 300)::BIGINT")),
            1 + random.below(22)
        );
        let q = run(&without, &q).await.expect(&q);
        std::fs::create_dir(folder.join("q")).expect("a new folder");
        let file = folder.join("q/a.parquet");
        let layout = Layout::draw(random);
        // The writer calls itself for each row group.
        let in_group = layout.in_group.max(40);
        let layout = Layout { in_group, ..layout };
        layout.write(&file, &q).expect("a file");
    }
    let q = (0..[1, 3, 30][random.below(3)]).map(|id| {
        let a = center + random.below(spread);
        let (a, b) = (
            as_key(&a.to_string()),
            as_key(&(a + random.below(300)).to_string()),
        );
        let a = if random.below(12) == 0 {
            format!("nullif({a}, {a})")
        } else {
            a
        };
        format!("({id}, {a}, {b}, {})", random.below(22))
    });
    let q = q.collect::<Vec<_>>().join(", ");
    let q = format!(
        "CREATE TABLE q AS SELECT column1 AS id, column2 AS a, column3 AS b, column4 AS s FROM (VALUES {q})"
    );
    for ctx in [&with, &without] {
        register(ctx, "p", &folder.join("p")).await;
        if is_large {
            register(ctx, "q", &folder.join("q")).await;
            set(ctx, "rmq.pruning_memory", "100 KB");
        } else {
            run(ctx, &q).await.expect(&q);
        }
        set(ctx, "rmq.keep_indexes", "false");
        set(ctx, "rmq.range_joins", "always");
    }
    if random.below(3) == 0 {
        // As a task has them: in one partition, of which files are divided.
        set(&with, "rmq.join_mode", "collected");
        set(&with, "datafusion.optimizer.repartition_file_min_size", "1");
    }
    set(&with, "rmq.pruning", "always");
    set(&without, "rmq.pruning", "never");
    ([with, without], distance)
}

#[tokio::test(flavor = "multi_thread")]
async fn nearest_rows_are_the_same_in_slices() {
    let seeds = cases_with_queries("nearest rows in slices", &FAILED, CASES, QUERIES);
    let (mut asked, mut pruned) = (0, 0);
    for seed in seeds {
        let random = &mut Random::of_case(seed);
        let folder = tempfile::tempdir().expect("a folder");
        let ([with, without], distance) = sessions(random, folder.path()).await;
        for _ in 0..QUERIES {
            let below = match random.below(2) {
                0 => BELOW[random.below(BELOW.len())],
                _ => BELOW_AND[random.below(BELOW_AND.len())],
            };
            let sql = match (random.below(7), distance) {
                (0 | 1, _) | (2 | 3, None) => below.to_string(),
                (2 | 3, Some(distance)) => {
                    let around = AROUND[random.below(AROUND.len())];
                    around.replace("abs(p.k - q.a)", distance)
                }
                (4 | 5, _) => above(below),
                _ => PREVAILING[random.below(PREVAILING.len())].to_string(),
            };
            let sql = if random.below(2) == 0 {
                sql.replace(">=", ">").replace("<=", "<")
            } else {
                sql
            };
            let expected = match pruned_answer(&without, &sql).await {
                Ok((expected, _)) => expected,
                Err(error) if is_refusal(&error) => continue,
                Err(error) => panic!("tables of seed {seed}: {sql}: {error}"),
            };
            let (found, was_pruned) = pruned_answer(&with, &sql).await.expect(&sql);
            assert_eq!(found, expected, "tables of seed {seed}: {sql}");
            asked += 1;
            pruned += usize::from(was_pruned);
        }
    }
    println!("{pruned} of {asked} were pruned");
    assert!(pruned * 2 > asked || !is_usual(), "{pruned} of {asked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_form_reads_about_what_is_nearest() {
    let files = Files::new().await;
    set(&files.ctx, "rmq.range_joins", "always");
    let below: Vec<_> = BELOW.iter().chain(&BELOW_AND).copied().collect();
    let above = below.iter().map(|sql| above(sql));
    let prevailing = PREVAILING[0].replace("AND b", "AND a + 100");
    // One order of rows at the same distance is not that of the key, and one of few rows is far away.
    let around = AROUND[..4].iter().copied().map(ToString::to_string);
    let below = below.iter().map(ToString::to_string);
    for sql in below.chain(above).chain(around).chain([prevailing]) {
        let sql = sql
            .replace("NOT EXISTS", "NOT q.id < 9 AND EXISTS")
            .replace("% 97", "% 5");
        let (scanned, built) = files.compare(&sql).await;
        assert!(scanned > 0 && scanned <= 4000, "{scanned} scanned: {sql}");
        assert!(built <= scanned, "{built} of {scanned} built: {sql}");
        files.begin_anew().await;
    }
}

/// A probe side of more rows than are read ahead is read for its keys, and then for its rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_probe_side_is_known_by_its_keys() {
    let files = Files::new().await;
    let folder = large_probe_side(&files).await;
    let below = BELOW.iter().map(ToString::to_string);
    let above = BELOW.iter().map(|sql| above(sql));
    let prevailing = PREVAILING[0].replace("AND b", "AND a + 100");
    let around = AROUND[..3].iter().map(ToString::to_string);
    for sql in below.chain(above).chain(around).chain([prevailing]) {
        let sql = sql.replace("NOT EXISTS", "NOT q.id < 9 AND EXISTS");
        let (scanned, _) = files.compare(&sql).await;
        // A tenth of the rows, on each side 1/128 of all or more, and their row groups.
        assert!(scanned > 10_000 && scanned < 18_500, "{scanned}: {sql}");
    }
    // Rows that each seek rows of their own are not known by their keys.
    for sql in &BELOW_AND[..4] {
        let (scanned, _) = files.compare(sql).await;
        assert!(scanned == 0 || scanned > 30_000, "{scanned}: {sql}");
    }
    drop(folder);
}

/// Gives the sessions a table q of 20,000 rows in four files, of which few are read ahead.
async fn large_probe_side(files: &Files) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write_large_probe_side(files, &folder, 0).await;
    for ctx in files.sessions() {
        register(ctx, "q", folder.path()).await;
        set(ctx, "rmq.range_joins", "always");
        set(ctx, "rmq.pruning_memory", "100 KB");
        set(ctx, "rmq.keep_indexes", "false");
    }
    folder
}

/// Writes the files of q from this one on.
async fn write_large_probe_side(files: &Files, folder: &TempDir, first: usize) {
    for file in first..4 {
        let q = format!(
            "SELECT value AS id, 300000 + value * 5 AS a, (value + {first}) % 7 AS s FROM generate_series({}, {})",
            file * 5000,
            file * 5000 + 4999
        );
        let q = run(&files.ctx, &q).await.expect(&q);
        let path = folder.path().join(format!("{file}.parquet"));
        SMALL.write(&path, &q).expect("a file");
    }
}

/// The rows of a file that was replaced may have other keys than those that have been read.
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_side_that_changes_after_its_keys_were_read_is_an_error() {
    let files = Files::new().await;
    let folder = large_probe_side(&files).await;
    set(&files.ctx, "datafusion.execution.target_partitions", "1");
    let planned = files.ctx.sql(BELOW[0]).await.expect(BELOW[0]);
    let planned = planned.create_physical_plan().await.expect(BELOW[0]);
    let rows = execute_stream_partitioned(Arc::clone(&planned), files.ctx.task_ctx());
    let mut rows = rows.expect(BELOW[0]).remove(0);
    rows.next().await.expect("a batch").expect("a batch");
    write_large_probe_side(&files, &folder, 3).await;
    let error = rows.try_collect::<Vec<_>>().await;
    let error = error.expect_err("a changed file").to_string();
    assert!(error.contains("changed while a query"), "{error}");
}

/// Rows far before their bounds are found in some slices, and those that are nowhere cost one read of all.
#[tokio::test(flavor = "multi_thread")]
async fn rows_far_away_are_read_once_at_most() {
    let files = Files::new().await;
    set(&files.ctx, "rmq.pruning", "always");
    // Each value of v recurs after 10,007 rows.
    let seldom =
        "SELECT q.id, (SELECT max(p.k) FROM p WHERE p.v = q.id * 200 AND p.k <= q.a) FROM q";
    let (scanned, built) = files.compare(seldom).await;
    assert!((10_000..50_000).contains(&scanned), "{scanned} scanned");
    assert!(built < 1000, "{built} built");
    files.begin_anew().await;
    // Between 's3' and 's4', so no statistics tell that it is nowhere.
    let nowhere = "SELECT q.id, (SELECT max(p.k) FROM p WHERE p.t = concat('s3', q.id) AND p.k <= q.a + 690000) FROM q";
    let (scanned, built) = files.compare(nowhere).await;
    // The row groups at the ends of slices are read twice.
    let all = ROWS as usize + 24 * 1000;
    assert!((90_000..all).contains(&scanned), "{scanned} scanned");
    assert_eq!(built, 0);
}

/// A further condition that no pair meets costs one read of all, and one that is evaluated for too many pairs, too.
#[tokio::test(flavor = "multi_thread")]
async fn pairs_that_are_not_met_are_sought_once_at_most() {
    let files = Files::new().await;
    set(&files.ctx, "rmq.pruning", "always");
    let all = ROWS as usize + 24 * 1000;
    for condition in [
        "p.v < 0 - q.id",
        "p.v % 1000 = q.id + 950",
        "p.v / (q.id + 1) = 10006",
    ] {
        let sql = format!(
            "SELECT q.id, (SELECT max(p.k) FROM p WHERE p.s = q.s AND p.k <= q.a + 600000 AND {condition}), (SELECT p.v FROM p WHERE p.k <= q.a + 600000 AND {condition} ORDER BY p.k DESC LIMIT 1) FROM q"
        );
        let (scanned, _) = files.compare(&sql).await;
        assert!(scanned <= 2 * all, "{scanned} scanned: {sql}");
        files.begin_anew().await;
    }
    // Each of 20,000 rows with all others.
    let many = "SELECT q.id, count(x.v) FROM (SELECT id * 1000 + value AS id, a FROM q, generate_series(1, 400) AS s(value)) q CROSS JOIN LATERAL (SELECT p.v FROM p WHERE p.k <= q.a AND p.v > q.id * 2 ORDER BY p.k DESC LIMIT 2) x GROUP BY q.id";
    let (scanned, _) = files.compare(many).await;
    assert!((20_000..all).contains(&scanned), "{scanned} scanned");
}

/// A file that is replaced after a query was planned: the answer is that of the new file, or an error, and the next
/// query's is that of the new file.
#[tokio::test(flavor = "multi_thread")]
async fn replaced_files_are_read_anew() {
    let files = Files::new().await;
    set(&files.ctx, "rmq.pruning", "always");
    for (shift, sql) in [
        "SELECT q.id, p.v FROM q JOIN p ON p.s = q.s AND p.k BETWEEN q.a - 500 AND q.a",
        "SELECT q.id, (SELECT max(p.k) FROM p WHERE p.s = q.s AND p.k <= q.a) FROM q",
    ]
    .into_iter()
    .enumerate()
    {
        let planned = files.ctx.sql(sql).await.expect(sql);
        let planned = planned.create_physical_plan().await.expect(sql);
        files.replace(1 + shift as i64);
        let found = collect(planned, files.ctx.task_ctx()).await;
        files.begin_anew().await;
        let (scanned, _) = files.compare(sql).await;
        assert!(scanned > 0, "{sql}");
        if let Ok(found) = found {
            let expected = answer(&files.ctx, sql).await.expect(sql).0;
            assert_eq!(lines(&found), expected, "{sql}");
        }
    }
}
