//! Range joins that sort only what few windows reach of rows in memory, compared with DataFusion's own plans.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one pair of tables; `RMQ_CASES` makes it longer.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, DictionaryArray, Float64Array, Int8Array, Int64Array, RecordBatch, StringViewArray,
};
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::range_join::{Tables, answer, is_refusal, lines, metric};
use crate::support::{
    bigint, context_of_pool, cpu_session, engine, released, run, set, skipped, with_extension,
};
use rmq_testing::{Random, cases_with_queries, is_usual};

/// The number of queries over small tables, unless `RMQ_CASES` overrides it.
const CASES: usize = 400;

/// The same over large ones.
const LARGE_CASES: usize = 24;

/// Seeds of cases that once failed.
const FAILED: [u64; 0] = [];

/// Queries over the same pair of tables.
const QUERIES: usize = 8;

/// The rows of `q`, in a plan that does not know how few they are.
const UNKNOWN: &str = "(SELECT q.* FROM range(0, 99) r JOIN q ON r.value = q.id) q";

/// More rows than are sorted without regard to the windows.
const MANY: usize = 66_000;

/// The sorted rows, the build rows that were compared with windows, and those that were sorted.
async fn run_counted(ctx: &SessionContext, sql: &str) -> Result<(Vec<String>, usize, usize)> {
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    let (compared, sorted) = (metric(&plan, "rows_scanned"), metric(&plan, "build_rows"));
    Ok((lines(&batches), compared, sorted))
}

/// Queries over random pairs of tables, compared with DataFusion's. Returns how many were answered, and in how many of
/// these rows were compared with windows.
async fn compare_queries(
    name: &str,
    cases: usize,
    tables: impl Fn(&mut Random) -> Tables,
) -> (usize, usize) {
    let (mut asked, mut compared) = (0, 0);
    for seed in cases_with_queries(name, &FAILED, cases, QUERIES) {
        let random = &mut Random::of_case(seed);
        let tables = tables(random);
        for _ in 0..QUERIES {
            // A join of all pairs takes too long.
            let (with, without) = loop {
                let (with, without) = match random.below(3) {
                    0 => tables.correlated(random),
                    1 => tables.nearest(random),
                    _ => {
                        // If the plan knew how few they are, the join would be left to DataFusion.
                        let mut sql = tables.grouped_join(random);
                        for join in ["JOIN", "LEFT JOIN"] {
                            let q = format!("FROM q {join}");
                            let unknown = format!("FROM {UNKNOWN} {join}");
                            sql = sql.replace(&q, &unknown);
                        }
                        (sql.clone(), sql)
                    }
                };
                if !without.contains("FROM p) q") && !without.contains("% 4 = 0) o") {
                    break (with, without);
                }
            };
            let Ok((expected, _)) = answer(&tables.without, &without).await else {
                continue;
            };
            let (found, rows, _) = match run_counted(&tables.with, &with).await {
                Ok(found) => found,
                Err(error) if with != without && is_refusal(&error) => continue,
                Err(error) => panic!("tables of seed {seed}: {with}: {error}"),
            };
            assert_eq!(found, expected, "tables of seed {seed}: {with}");
            asked += 1;
            compared += usize::from(rows > 0);
        }
    }
    println!("{name}: {compared} of {asked} queries");
    (asked, compared)
}

/// A build side for devices is always sorted.
fn is_on_cpu() -> bool {
    engine().is_none_or(|engine| engine == "cpu")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_reached_of_small_tables_answers_as_datafusion_does() {
    let (asked, compared) = compare_queries("rows that windows reach", CASES, |random| {
        let rows = (
            [0, 1, 30, 200][random.below(4)],
            [0, 1, 3, 20][random.below(4)],
        );
        let batch_size = [3, 16, 8192][random.below(3)];
        let tables = Tables::sized(random, rows, batch_size);
        set(&tables.with, "rmq.pruning", "always");
        set(&tables.with, "rmq.range_joins", "always");
        let keeps = ["true", "false"][random.below(2)];
        set(&tables.with, "rmq.keep_indexes", keeps);
        // Sometimes less than one batch.
        let memory = ["64M", "64M", "64M", "100"][random.below(4)];
        set(&tables.with, "rmq.pruning_memory", memory);
        tables
    })
    .await;
    assert!(
        !(is_on_cpu() && is_usual()) || compared * 4 > asked,
        "{compared} of {asked}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_reached_of_large_tables_answers_as_datafusion_does() {
    let (asked, compared) = compare_queries("few windows", LARGE_CASES, |random| {
        let rows = (MANY + random.below(1000), random.below(19));
        let batch_size = [1000, 8192][random.below(2)];
        let tables = Tables::sized(random, rows, batch_size);
        // Otherwise the second query would find sorted rows.
        set(&tables.with, "rmq.keep_indexes", "false");
        let pruning = ["auto", "auto", "always", "never"][random.below(4)];
        set(&tables.with, "rmq.pruning", pruning);
        tables
    })
    .await;
    assert!(
        !(is_on_cpu() && is_usual()) || compared * 32 > asked,
        "{compared} of {asked}"
    );
}

/// A probe side `q` in partitions of these sizes, and an unsorted build side `p`.
async fn partitions(sizes: &[i64]) -> SessionContext {
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(4));
    datafusion_rmq::register(&ctx);
    let p = format!(
        "CREATE TABLE p AS SELECT value * 7919 % 100003 AS k, value % 1000 AS v FROM range(0, {MANY})"
    );
    run(&ctx, &p).await.expect("a table");
    let mut first = 0;
    let parts = sizes.iter().map(|size| {
        let ids = Int64Array::from_iter_values(first..first + size);
        first += size;
        vec![RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).expect("a column")]
    });
    let parts: Vec<_> = parts.collect();
    let table = MemTable::try_new(parts[0][0].schema(), parts).expect("batches of one schema");
    ctx.register_table("q", Arc::new(table))
        .expect("a new name");
    ctx
}

/// The lowest value in a window that begins at `low`, for each row of q.
fn lowest(low: &str, length: i64) -> String {
    format!(
        "SELECT id, (SELECT min(v) FROM p WHERE k BETWEEN {low} AND {low} + {length}) AS m FROM q"
    )
}

/// What [`lowest`] returns for these windows.
fn expected_lowest(windows: impl Iterator<Item = (i64, i64, i64)>) -> Vec<String> {
    let lines = windows.map(|(id, low, length)| {
        let keys = (0..MANY as i64).map(|i| (i * 7919 % 100_003, i % 1000));
        let within = keys.filter(|(k, _)| (low..=low + length).contains(k));
        let least = within.map(|(_, v)| v).min();
        format!("{id} | {}", least.map_or(String::new(), |v| v.to_string()))
    });
    let mut lines: Vec<_> = lines.collect();
    lines.sort_unstable();
    lines
}

/// The windows of all partitions together are made out, if they are few.
#[tokio::test(flavor = "multi_thread")]
async fn windows_of_all_partitions_are_counted_together() {
    for (sizes, is_compared) in [
        (vec![5, 5, 6], true),
        (vec![1], true),
        (vec![40, 0, 80, 100], true),
        (vec![200, 100], false),
        (vec![3, 5000, 4], false),
    ] {
        let ctx = partitions(&sizes).await;
        set(&ctx, "rmq.engine", "cpu");
        let sql = lowest("id * 10", 7);
        let (found, compared, sorted) = run_counted(&ctx, &sql).await.expect("an answer");
        assert_eq!(compared, if is_compared { MANY } else { 0 }, "{sizes:?}");
        let rows: i64 = sizes.iter().sum();
        if is_compared {
            let reached = (0..MANY as i64).map(|i| i * 7919 % 100_003);
            let reached = reached.filter(|k| k / 10 < rows && k % 10 <= 7).count();
            assert_eq!(sorted, reached, "{sizes:?}");
        } else {
            assert_eq!(sorted, MANY, "{sizes:?}");
        }
        let expected = expected_lowest((0..rows).map(|id| (id, id * 10, 7)));
        assert_eq!(found, expected, "{sizes:?}");
    }
}

/// Rows that few windows reach are compared once, and then sorted and kept.
#[tokio::test(flavor = "multi_thread")]
async fn the_second_query_keeps_the_rows() {
    let ctx = partitions(&[5]).await;
    set(&ctx, "rmq.engine", "cpu");
    let mut counts = vec![];
    for add in [70, 80, 90] {
        let sql = lowest("id * 10", add);
        let (found, compared, sorted) = run_counted(&ctx, &sql).await.expect("an answer");
        assert_eq!(found, expected_lowest((0..5).map(|id| (id, id * 10, add))));
        counts.push((compared, sorted > 1000));
    }
    assert_eq!(counts, [(MANY, false), (0, true), (0, false)]);
    // Without what is kept, each compares.
    set(&ctx, "rmq.keep_indexes", "false");
    for _ in 0..3 {
        let (_, compared, _) = run_counted(&ctx, &lowest("id * 10", 70))
            .await
            .expect("an answer");
        assert_eq!(compared, MANY);
    }
}

/// Windows that reach most rows sort and keep all of them at the first query.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_windows_cover_are_kept_at_once() {
    let ctx = partitions(&[3]).await;
    set(&ctx, "rmq.engine", "cpu");
    for (query, expected) in [(MANY, (0, MANY)), (0, (0, 0))] {
        let sql = lowest("id * 10", 90_000);
        let (_, compared, sorted) = run_counted(&ctx, &sql).await.expect("an answer");
        assert_eq!((compared, sorted), expected, "{query}");
    }
}

/// Rows that come in order are not sorted anyway.
#[tokio::test(flavor = "multi_thread")]
async fn rows_in_order_are_taken_as_they_come() {
    let ctx = partitions(&[5]).await;
    set(&ctx, "rmq.engine", "cpu");
    for (order, is_compared) in [("k", false), ("k DESC", true), ("k % 2, k", false)] {
        let ordered = format!("CREATE OR REPLACE TABLE o AS SELECT * FROM p ORDER BY {order}");
        run(&ctx, &ordered).await.expect("a table");
        let sql = lowest("id * 10", 70).replace("FROM p", "FROM o");
        let (found, compared, _) = run_counted(&ctx, &sql).await.expect("an answer");
        assert_eq!(found, expected_lowest((0..5).map(|id| (id, id * 10, 70))));
        assert_eq!(compared > 0, is_compared, "{order}");
    }
}

/// Two sessions with tables of these rows, one without the extension. All that can be is compared with windows.
async fn pair_of(tables: &[(&str, RecordBatch)]) -> (SessionContext, SessionContext) {
    let (with, without) = (cpu_session(), SessionContext::new());
    for (name, batch) in tables {
        for ctx in [&with, &without] {
            // Batches of few rows, in two partitions.
            let parts = [0, 1].map(|part| {
                let starts = (part * 3..batch.num_rows()).step_by(6);
                let slices = starts.map(|at| batch.slice(at, 3.min(batch.num_rows() - at)));
                slices.collect::<Vec<_>>()
            });
            let table = MemTable::try_new(batch.schema(), parts.to_vec());
            let table = table.expect("batches of one schema");
            ctx.register_table(*name, Arc::new(table))
                .expect("a new name");
        }
    }
    set(&with, "rmq.pruning", "always");
    set(&with, "rmq.range_joins", "always");
    set(&with, "rmq.keep_indexes", "false");
    (with, without)
}

/// Runs queries in both sessions of a pair. Returns in how many of them rows were compared with windows.
async fn compare_in((with, without): &(SessionContext, SessionContext), queries: &[&str]) -> usize {
    let mut compared = 0;
    for sql in queries {
        let (expected, _) = answer(without, sql).await.expect(sql);
        let (found, rows, _) = run_counted(with, sql).await.expect(sql);
        assert_eq!(found, expected, "{sql}");
        compared += usize::from(rows > 0);
    }
    compared
}

fn column(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

/// A range may have keys at both ends of a type.
#[tokio::test(flavor = "multi_thread")]
async fn differences_that_wrap_around_reach_keys_at_both_ends() {
    let ends = [
        i64::MIN,
        i64::MIN + 1,
        i64::MIN + 40,
        i64::MAX,
        i64::MAX - 1,
        i64::MAX - 40,
    ];
    let keys = ends.into_iter().chain([-70, -41, -1, 0, 1, 29, 30, 31, 70]);
    let keys: Vec<i64> = keys.collect();
    let p = [
        ("k", column(keys.iter().rev().copied())),
        ("v", column(0..15)),
    ];
    let q = [("id", column(0..15)), ("k", column(keys.iter().copied()))];
    let tables = [("p", p), ("q", q)];
    let tables = tables.map(|(name, columns)| {
        (
            name,
            RecordBatch::try_from_iter(columns).expect("columns of one length"),
        )
    });
    let pair = pair_of(&tables).await;
    let queries = [
        "SELECT q.id, count(*), sum(p.v) FROM q JOIN p ON q.k - p.k <= 30 GROUP BY q.id",
        "SELECT q.id, count(*), sum(p.v) FROM q JOIN p ON p.k - q.k < 30 GROUP BY q.id",
        "SELECT q.id, count(*), sum(p.v) FROM q JOIN p ON q.k - p.k BETWEEN -30 AND 30 GROUP BY q.id",
        "SELECT q.id, count(*), sum(p.v) FROM q JOIN p ON q.k - p.k >= 9223372036854775000 GROUP BY q.id",
        "SELECT q.id, p.v FROM q JOIN p ON q.k - p.k <= 30 AND p.v % 2 = q.id % 2",
    ];
    let compared = compare_in(&pair, &queries).await;
    assert!(compared >= 4, "{compared}");
    // One row at a time reaches little else.
    for id in 0..15 {
        let sql = queries[0].replace("GROUP BY", &format!("WHERE q.id = {id} GROUP BY"));
        compare_in(&pair, &[&sql]).await;
    }
}

/// NaN is above all other values, or below them with its sign bit set, and zeros of both signs are equal.
#[tokio::test(flavor = "multi_thread")]
async fn windows_of_floats_reach_nan_and_zeros() {
    let floats = [
        2.0,
        f64::NAN,
        -0.0,
        f64::INFINITY,
        0.0,
        -f64::NAN,
        -1.0,
        f64::NEG_INFINITY,
    ];
    let floats = || Arc::new(Float64Array::from(floats.to_vec())) as ArrayRef;
    let p = RecordBatch::try_from_iter([("f", floats()), ("v", column(0..8))]);
    let q = RecordBatch::try_from_iter([("id", column(0..8)), ("f", floats())]);
    let pair = pair_of(&[
        ("p", p.expect("two columns")),
        ("q", q.expect("two columns")),
    ])
    .await;
    let queries = [
        "SELECT q.id, count(*), sum(p.v) FROM q JOIN p ON p.f >= q.f GROUP BY q.id",
        "SELECT q.id, count(*), sum(p.v) FROM q JOIN p ON p.f < q.f GROUP BY q.id",
        "SELECT q.id, count(*), sum(p.v) FROM q JOIN p ON p.f BETWEEN q.f AND q.f + 1 GROUP BY q.id",
        "SELECT q.id, p.v FROM q JOIN p ON p.f <= q.f AND p.f > q.f - 2",
    ];
    assert_eq!(compare_in(&pair, &queries).await, queries.len());
    for id in 0..8 {
        for sql in &queries[..2] {
            let sql = sql.replace("GROUP BY", &format!("WHERE q.id = {id} GROUP BY"));
            compare_in(&pair, &[&sql]).await;
        }
    }
}

/// Rows of either side that match nothing are returned where a join says so.
#[tokio::test(flavor = "multi_thread")]
async fn joins_of_all_types_return_the_rows_of_both_sides() {
    let p = RecordBatch::try_from_iter([
        ("g", column((0..60).map(|i| i % 5))),
        ("k", column((0..60).map(|i| i * 37 % 61))),
        ("v", column(0..60)),
    ]);
    let q = RecordBatch::try_from_iter([
        ("g", column((0..20).map(|i| i % 7))),
        ("k", column((0..20).map(|i| i * 2))),
    ]);
    let tables = [("p", p.expect("columns")), ("q", q.expect("columns"))];
    let pair = pair_of(&tables).await;
    let mut compared = 0;
    for on in ["p.g = q.g AND ", ""] {
        for residual in ["", " AND (p.v + q.k) % 3 > 0"] {
            let on = format!("{on}p.k BETWEEN q.k AND q.k + 4{residual}");
            for join in ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"] {
                let sql = format!("SELECT * FROM q {join} p ON {on}");
                compared += compare_in(&pair, &[&sql]).await;
            }
            for semi in ["LEFT SEMI", "LEFT ANTI", "RIGHT SEMI", "RIGHT ANTI"] {
                let sql = format!("SELECT * FROM q {semi} JOIN p ON {on}");
                compared += compare_in(&pair, &[&sql]).await;
            }
            let exists = format!("EXISTS (SELECT 1 FROM p WHERE {on})");
            let or = format!("SELECT * FROM q WHERE q.k = 3 OR {exists}");
            let not = format!("SELECT * FROM q WHERE NOT {exists}");
            compared += compare_in(&pair, &[&or, &not]).await;
        }
    }
    assert!(compared >= 16, "{compared}");
}

/// A row before a window may be in force when it opens, so no row is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn rows_before_windows_prevail() {
    let p = RecordBatch::try_from_iter([
        ("g", column((0..60).map(|i| i % 5))),
        ("k", column((0..60).map(|i| i * 37 % 61))),
        ("v", column(0..60)),
    ]);
    let q = RecordBatch::try_from_iter([
        ("g", column((0..20).map(|i| i % 7))),
        ("a", column((0..20).map(|i| i * 2))),
    ]);
    let tables = [("p", p.expect("columns")), ("q", q.expect("columns"))];
    let (ctx, _) = pair_of(&tables).await;
    for prevailing in ["include", "exclude"] {
        let sql = format!(
            "SELECT * FROM range_join('q', 'p', 'g', 'k BETWEEN a AND a + 2', 'count(*) AS n, first_value(v ORDER BY k) AS v', '{prevailing} prevailing')"
        );
        set(&ctx, "rmq.pruning", "never");
        let (expected, compared, _) = run_counted(&ctx, &sql).await.expect("an answer");
        assert_eq!((expected.len(), compared), (20, 0), "{prevailing}");
        set(&ctx, "rmq.pruning", "always");
        let (found, compared, _) = run_counted(&ctx, &sql).await.expect("an answer");
        assert_eq!(found, expected, "{prevailing}");
        assert_eq!(compared > 0, prevailing == "exclude", "{prevailing}");
    }
}

/// Rows whose range key fails are errors for rows with their equality keys, whatever windows reach.
#[tokio::test(flavor = "multi_thread")]
async fn range_keys_that_fail_are_errors_of_equal_rows() {
    let ctx = partitions(&[9]).await;
    set(&ctx, "rmq.pruning", "always");
    set(&ctx, "rmq.range_joins", "always");
    set(&ctx, "rmq.engine", "cpu");
    let texts = "CREATE TABLE t AS SELECT v % 10 AS g, CASE WHEN v = 7 THEN 'none' ELSE k::VARCHAR END AS k FROM p WHERE v < 100";
    run(&ctx, texts).await.expect("a table");
    let sql = |ids: &str| {
        format!(
            "SELECT q.id, (SELECT count(*) FROM t WHERE t.g = q.id AND t.k::BIGINT BETWEEN q.id AND q.id * 9000) AS n FROM q WHERE {ids}"
        )
    };
    let (found, compared, _) = run_counted(&ctx, &sql("id < 7")).await.expect("no error");
    assert!(compared > 0 && found.len() == 7, "{compared}: {found:?}");
    let failed = run_counted(&ctx, &sql("id < 8")).await.expect_err("a text");
    assert!(failed.to_string().contains("none"), "{failed}");
}

/// Where memory is short, all is as it would be without windows, and nothing is left of it.
#[tokio::test(flavor = "multi_thread")]
async fn little_memory_leaves_the_answer_as_it_is() {
    let (mut compared, mut spilled) = (0, 0);
    for megabytes in [1, 2, 4, 8, 16, 32] {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(megabytes << 20));
        let config = SessionConfig::new().with_target_partitions(2);
        let ctx = with_extension(context_of_pool(config, Arc::clone(&pool)));
        set(&ctx, "rmq.engine", "cpu");
        for sql in [
            "CREATE TABLE p AS SELECT value * 7919 % 100003 AS k, value % 1000 AS v FROM range(0, 66000)",
            "CREATE TABLE q AS SELECT value AS id FROM range(0, 100)",
        ] {
            run(&ctx, sql).await.expect(sql);
        }
        let sql = lowest("id * 10", 7);
        let plan = ctx.sql(&sql).await.expect("a plan");
        let plan = plan.create_physical_plan().await.expect("a plan");
        let found = collect(Arc::clone(&plan), ctx.task_ctx())
            .await
            .expect("an answer");
        let expected = expected_lowest((0..100).map(|id| (id, id * 10, 7)));
        assert_eq!(lines(&found), expected, "{megabytes} MB");
        compared += usize::from(metric(&plan, "rows_scanned") > 0);
        spilled += usize::from(metric(&plan, "spill_count") > 0);
        drop((plan, found));
        assert_eq!(pool.reserved(), 0, "{megabytes} MB");
    }
    assert!(
        compared > 0 && spilled > 0,
        "{compared} compared, {spilled} spilled"
    );
}

/// A cancelled query leaves nothing of what it has collected and compared.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_query_leaves_nothing() {
    let ctx = partitions(&[5, 50]).await;
    set(&ctx, "rmq.keep_indexes", "false");
    let pool = Arc::clone(&ctx.runtime_env().memory_pool);
    for wait in [0, 1, 2, 4, 8, 16] {
        let plan = ctx.sql(&lowest("id * 10", 7)).await.expect("a plan");
        let plan = plan.create_physical_plan().await.expect("a plan");
        let running = collect(plan, ctx.task_ctx());
        let _ = tokio::time::timeout(std::time::Duration::from_millis(wait), running).await;
    }
    released(&pool).await;
}

/// Dictionaries of two batches with more values together than keys must not be concatenated.
#[tokio::test(flavor = "multi_thread")]
async fn dictionaries_with_narrow_keys_are_not_concatenated() {
    let ctx = partitions(&[1]).await;
    let batch = |first: i64| {
        let ids = Int64Array::from_iter_values(first..first + 5);
        let words =
            StringViewArray::from_iter_values((first..first + 100).map(|i| format!("word {i}")));
        let keys = Int8Array::from_iter_values(95..100);
        let words = DictionaryArray::new(keys, Arc::new(words));
        let columns: [(&str, ArrayRef); 2] = [("id", Arc::new(ids)), ("word", Arc::new(words))];
        RecordBatch::try_from_iter(columns).expect("columns of one length")
    };
    let batches = vec![batch(0), batch(1000)];
    let table =
        MemTable::try_new(batches[0].schema(), vec![batches]).expect("batches of one schema");
    ctx.register_table("words", Arc::new(table))
        .expect("a new name");
    let sql = "SELECT id, CAST(word AS VARCHAR) AS word, (SELECT count(*) FROM p WHERE k BETWEEN id AND id + 999) AS n FROM words";
    let (found, compared, _) = run_counted(&ctx, sql).await.expect("an answer");
    assert!(compared > 0 || skipped());
    let keys: Vec<i64> = (0..MANY as i64).map(|i| i * 7919 % 100_003).collect();
    let expected = (0..5).chain(1000..1005).map(|id: i64| {
        let matches = keys.iter().filter(|k| (id..id + 1000).contains(*k));
        format!("{id} | word {} | {}", id + 95, matches.count())
    });
    let mut expected: Vec<String> = expected.collect();
    expected.sort();
    assert_eq!(found, expected);
}

/// A bound that fails for a row that can't match is no error, nor is a NULL bound.
#[tokio::test(flavor = "multi_thread")]
async fn bounds_are_evaluated_only_for_rows_that_can_match() {
    let ctx = partitions(&[9]).await;
    let condition = "v = id AND v <> 20 AND k >= 100 / (id - 20) AND k < nullif(id, 15) * 5000";
    let sql = format!(
        "SELECT id, (SELECT count(*) FROM p WHERE {condition}) AS n FROM (SELECT id * 5 AS id FROM q) q"
    );
    let (found, compared, _) = run_counted(&ctx, &sql).await.expect("no division by zero");
    // What windows reach is not known then.
    assert_eq!(compared, 0);
    let mut expected = vec![];
    for id in (0..45).step_by(5) {
        let count = match id {
            // No row has this value; a NULL bound matches nothing.
            15 | 20 => "SELECT 0".to_string(),
            _ => format!(
                "SELECT count(*) FROM p WHERE {}",
                condition.replace("id", &id.to_string())
            ),
        };
        let count = bigint(&ctx, &count).await.expect("a count");
        expected.push(format!("{id}|{count}"));
    }
    let counts: Vec<String> = found.iter().map(|line| line.replace(' ', "")).collect();
    expected.sort_unstable();
    assert_eq!(counts, expected);
}
