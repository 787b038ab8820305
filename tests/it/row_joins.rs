//! Joins over a range that return rows, and EXISTS and IN over a range, compared with DataFusion's own joins.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one pair of tables; `RMQ_CASES` makes it longer.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, DictionaryArray, Float64Array, Int64Array, RecordBatch, StringArray,
    StringViewArray,
};
use datafusion::arrow::datatypes::Int8Type;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::physical_plan::{collect, displayable, execute_stream, execute_stream_partitioned};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;

use crate::range_join::{PARALLELISM, answer, lines, metric};
use crate::spilling::ForRangeJoins;
use crate::support::{builds_at_once, draw_join_mode, register, run, session_of_pool, set};
use rmq_testing::{Random, cases_with_queries, is_usual};

/// The number of queries of the random test, unless `RMQ_CASES` overrides it.
const CASES: usize = 120;

/// Seeds of cases that once failed.
const FAILED: [u64; 0] = [];

/// Queries over the same pair of tables.
const QUERIES: usize = 12;

/// The columns of a table of this many rows.
fn columns(random: &mut Random, rows: usize) -> Vec<(&'static str, ArrayRef)> {
    let spread = [2, 10, 100][random.below(3)];
    let sorted = random.below(2) == 0;
    let mut numbers = |spread: usize, nulls: usize| -> Vec<Option<i64>> {
        let number = |random: &mut Random| {
            (random.below(nulls) > 0).then(|| random.below(spread) as i64 - 1)
        };
        (0..rows).map(|_| number(random)).collect()
    };
    let (g, h) = (numbers(4, 9), numbers(2, 9));
    let (mut k, v) = (numbers(spread, 9), numbers(20, 9));
    let (f, s, d) = (numbers(12, 9), numbers(12, 9), numbers(5, 9));
    if sorted {
        k.sort_unstable();
    }
    let float = |v: i64| match v {
        -1 => f64::NAN,
        0 => -0.0,
        1 => 0.0,
        2 => f64::NEG_INFINITY,
        v => v as f64 / 2.0,
    };
    let texts = |s: &[Option<i64>]| -> Vec<Option<String>> {
        let text = |v: i64| "ab".repeat(v.unsigned_abs() as usize % 9) + &v.to_string();
        s.iter().map(|v| v.map(text)).collect()
    };
    let d: DictionaryArray<Int8Type> = {
        let values = texts(&d);
        values.iter().map(Option::as_deref).collect()
    };
    vec![
        (
            "id",
            Arc::new(Int64Array::from_iter_values(0..rows as i64)) as ArrayRef,
        ),
        ("g", Arc::new(Int64Array::from(g))),
        ("h", Arc::new(StringArray::from(texts(&h)))),
        ("k", Arc::new(Int64Array::from(k))),
        ("v", Arc::new(Int64Array::from(v))),
        (
            "f",
            Arc::new(f.iter().map(|f| f.map(float)).collect::<Float64Array>()),
        ),
        ("s", Arc::new(StringViewArray::from_iter(texts(&s)))),
        ("d", Arc::new(d)),
    ]
}

/// Two tables `p` and `q`, in a session with range joins and in one without.
pub struct Tables {
    pub with: SessionContext,
    pub without: SessionContext,
}

impl Tables {
    pub fn new(random: &mut Random) -> Self {
        let sizes = [0, 1, 7, 60, 300];
        let (p, q) = (sizes[random.below(5)], sizes[random.below(5)]);
        let (p, q) = (columns(random, p), columns(random, q));
        let config = SessionConfig::new()
            .with_target_partitions(PARALLELISM[random.below(4)])
            .with_batch_size([1, 3, 32, 8192][random.below(4)]);
        let split = |random: &mut Random, rows: usize| match random.below(3) {
            0 => vec![],
            _ => vec![rows / 3, rows / 4],
        };
        let splits = [(&p, "p"), (&q, "q")].map(|(columns, _)| split(random, columns[0].1.len()));
        let session = || {
            let ctx = SessionContext::new_with_config(config.clone());
            register(&ctx, "p", &p, &splits[0]);
            register(&ctx, "q", &q, &splits[1]);
            ctx
        };
        let (with, without) = (session(), session());
        datafusion_rmq::register(&with);
        set(&with, "rmq.range_joins", "always");
        let threads = PARALLELISM[random.below(4)].to_string();
        set(&with, "rmq.build_threads", &threads);
        draw_join_mode(&with, random);
        Self { with, without }
    }
}

/// A random condition between `p` and `q`, with a range. The keys are of `p`, or else of `q`.
pub fn condition(random: &mut Random) -> String {
    let (p, q) = [("p", "q"), ("q", "p")][random.below(2)];
    let mut parts = vec![];
    for equal in ["p.g = q.g", "p.h = q.h", "p.d = q.d"] {
        if random.below(3) == 0 {
            parts.push(equal.to_string());
        }
    }
    let ranges = [
        format!("{p}.k BETWEEN {q}.k - 2 AND {q}.k + {}", random.below(9)),
        format!("{p}.k > {q}.k AND {p}.k <= {q}.k + {}", random.below(9)),
        format!("{p}.k >= {q}.v AND {p}.k < {q}.k AND {p}.k < {q}.v + 9"),
        format!("{p}.k < {q}.k"),
        format!("{p}.f BETWEEN {q}.f AND {q}.f + 1"),
        format!("{p}.s >= {q}.s AND {p}.s <= {q}.h"),
        format!("{p}.k + 1 > {q}.k AND {p}.k + 1 < {q}.k + 4 AND {p}.v >= {q}.v"),
        format!("{p}.k >= {q}.k AND {p}.k < CASE WHEN {q}.v > 3 THEN {q}.k + 6 END"),
        format!("{p}.k <= {q}.k + 2 AND {p}.v >= {q}.v - 1"),
        format!("{p}.k <= {q}.v AND {p}.v >= {q}.k"),
        format!("{p}.k < {q}.k + 3 AND {p}.f > {q}.f"),
    ];
    parts.push(ranges[random.below(ranges.len())].clone());
    let residuals = [
        "p.v > q.v",
        "p.v + q.v > 4",
        "p.v <> q.v OR p.s = q.s",
        "p.d <> q.d",
        "q.v > 2",
        "p.s IS DISTINCT FROM q.s",
        "12 / (p.v - q.v) > 1 AND p.v <> q.v",
        "p.id % 7 = q.id % 5",
    ];
    for _ in 0..random.below(3) {
        // Its value decides about errors, which depend on the order in which pairs are compared.
        let residual = residuals[random.below(residuals.len())];
        if !residual.contains('/') {
            parts.push(format!("({residual})"));
        }
    }
    parts.join(" AND ")
}

/// A random join that returns rows.
fn join(random: &mut Random) -> String {
    let types = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"];
    let join = types[random.below(4)];
    let columns = [
        "*",
        "q.id, p.id",
        "p.s, q.s, p.s",
        "count(*), sum(p.id), min(q.s)",
        "q.d, p.d, q.k + p.k",
    ];
    let columns = columns[random.below(columns.len())];
    let on = condition(random);
    format!("SELECT {columns} FROM q {join} p ON {on}")
}

/// A random query with EXISTS or IN, or a semi or anti join.
fn exists(random: &mut Random) -> String {
    let on = condition(random);
    match random.below(7) {
        0 => format!("SELECT * FROM q LEFT SEMI JOIN p ON {on}"),
        1 => format!("SELECT * FROM q LEFT ANTI JOIN p ON {on}"),
        2 => format!("SELECT q.s, q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE {on})"),
        3 => format!("SELECT q.s FROM q WHERE NOT EXISTS (SELECT 1 FROM p WHERE {on})"),
        4 => format!("SELECT * FROM q WHERE q.v = 3 OR EXISTS (SELECT 1 FROM p WHERE {on})"),
        5 => format!("SELECT * FROM q WHERE q.v IN (SELECT p.v FROM p WHERE {on})"),
        _ => format!("SELECT * FROM q RIGHT SEMI JOIN p ON {on}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_return_the_rows_that_datafusion_returns() {
    compare("joins of rows", join).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exists_is_true_where_datafusion_says_so() {
    compare("semi and anti joins", exists).await;
}

/// Compares the answers to random queries.
async fn compare(name: &str, query: impl Fn(&mut Random) -> String) {
    let seeds = cases_with_queries(name, &FAILED, CASES, QUERIES);
    let (mut asked, mut replaced) = (0, 0);
    for seed in seeds {
        let random = &mut Random::of_case(seed);
        let tables = Tables::new(random);
        for _ in 0..QUERIES {
            let sql = query(random);
            let Ok((expected, _)) = answer(&tables.without, &sql).await else {
                continue;
            };
            let (found, is_range_join) = answer(&tables.with, &sql)
                .await
                .unwrap_or_else(|error| panic!("tables of seed {seed}: {sql}: {error}"));
            assert_eq!(found, expected, "tables of seed {seed}: {sql}");
            asked += 1;
            replaced += usize::from(is_range_join);
        }
    }
    println!("{name}: {replaced} of {asked} queries have a range join");
    assert!(
        !is_usual() || replaced * 3 > asked * 2,
        "{replaced} of {asked}"
    );
}

/// `rows` rows of `p` and `q`, all with the same keys.
async fn equal_keys(ctx: &SessionContext, rows: usize) {
    for (name, factor) in [("p", 3), ("q", 5)] {
        let sql = format!(
            "CREATE TABLE {name} AS SELECT 1 AS g, 7 AS k, value * {factor} AS v FROM range(0, {rows})"
        );
        run(ctx, &sql).await.expect("a table");
    }
    set(ctx, "rmq.range_joins", "always");
}

const PAIRS: &str =
    "SELECT q.v AS a, p.v AS b FROM q JOIN p ON p.g = q.g AND p.k BETWEEN q.k - 1 AND q.k + 1";

/// Every row matches every row: 25 million pairs from 5,000 rows of each side, in 2 MB.
#[tokio::test(flavor = "multi_thread")]
async fn any_fan_out_needs_little_memory() -> Result<()> {
    let pool = Arc::new(GreedyMemoryPool::new(2 << 20));
    let config = SessionConfig::new()
        .with_target_partitions(2)
        .with_batch_size(1000);
    let ctx = session_of_pool(config, pool);
    equal_keys(&ctx, 5000).await;
    let sql = format!("SELECT count(*), sum(a), sum(b) FROM ({PAIRS})");
    let (found, is_range_join) = answer(&ctx, &sql).await?;
    assert!(is_range_join);
    let sum: i64 = (0..5000).sum();
    assert_eq!(
        found,
        [format!(
            "25000000 | {} | {}",
            sum * 5 * 5000,
            sum * 3 * 5000
        )]
    );
    Ok(())
}

/// No batch is larger than the session's, and the order of the probe side is kept.
#[tokio::test(flavor = "multi_thread")]
async fn pairs_come_in_batches_in_the_order_of_the_probe_side() -> Result<()> {
    let config = SessionConfig::new()
        .with_target_partitions(1)
        .with_batch_size(100);
    let ctx = SessionContext::new_with_config(config);
    datafusion_rmq::register(&ctx);
    equal_keys(&ctx, 77).await;
    for join in ["JOIN", "LEFT JOIN"] {
        let sql = format!("{} AND p.v % 2 <= q.v % 3", PAIRS.replace("JOIN", join));
        let plan = ctx.sql(&sql).await?.create_physical_plan().await?;
        let text = displayable(plan.as_ref()).indent(false).to_string();
        assert!(text.contains("returns=rows"), "{text}");
        let batches = collect(plan, ctx.task_ctx()).await?;
        assert!(batches.iter().all(|batch| batch.num_rows() <= 100));
        let a = batches.iter().flat_map(|batch| {
            let column = batch.column(0).as_any().downcast_ref::<Int64Array>();
            column.expect("a BIGINT").values().to_vec()
        });
        assert!(a.is_sorted(), "{sql}");
    }
    Ok(())
}

/// A query that is dropped after its first batch does not go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_query_ends() -> Result<()> {
    let ctx = SessionContext::new();
    datafusion_rmq::register(&ctx);
    equal_keys(&ctx, 200_000).await;
    let plan = ctx.sql(PAIRS).await?.create_physical_plan().await?;
    let mut stream = execute_stream(Arc::clone(&plan), ctx.task_ctx())?;
    let first = stream.next().await.expect("a batch")?;
    assert!(first.num_rows() > 0);
    drop(stream);
    let limited = run(&ctx, &format!("{PAIRS} LIMIT 10")).await?;
    assert_eq!(limited.num_rows(), 10);
    Ok(())
}

/// As in the test before, of a build side that is on disk: pairs are not collected before they are returned.
#[tokio::test(flavor = "multi_thread")]
async fn any_fan_out_of_a_side_on_disk_needs_little_memory() -> Result<()> {
    let config = SessionConfig::new()
        .with_target_partitions(2)
        .with_batch_size(100);
    let pool = ForRangeJoins::new(256 << 10);
    let ctx = session_of_pool(config, Arc::clone(&pool) as _);
    equal_keys(&ctx, 3000).await;
    for join in ["JOIN", "FULL JOIN"] {
        let pairs = PAIRS.replace("JOIN", join);
        let sql = format!("SELECT count(*), sum(a), sum(b) FROM ({pairs})");
        let plan = ctx.sql(&sql).await?.create_physical_plan().await?;
        let found = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
        assert!(metric(&plan, "spill_count") > 0, "{sql}");
        let sum: i64 = (0..3000).sum();
        let expected = format!("9000000 | {} | {}", sum * 5 * 3000, sum * 3 * 3000);
        assert_eq!(lines(&found), [expected], "{sql}");
    }
    // Rows that are returned are registered, whether or not there is room for them.
    assert!(pool.peak() < 1 << 20, "{} bytes", pool.peak());
    Ok(())
}

/// Joins whose build side does not fit into memory write it to disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_build_side_larger_than_memory() -> Result<()> {
    let tables = [
        "CREATE TABLE p AS SELECT value % 10 AS g, nullif(value * 7919 % 100003, 5) AS k, value AS v, concat('text ', value) AS s FROM range(0, 50000)",
        "CREATE TABLE q AS SELECT value % 11 AS g, value * 50 AS k, value AS v FROM range(0, 1000)",
    ];
    let pool = ForRangeJoins::new(1 << 20);
    let small = session_of_pool(SessionConfig::new().with_target_partitions(2), pool);
    let large = SessionContext::new();
    for ctx in [&small, &large] {
        for table in tables {
            run(ctx, table).await?;
        }
    }
    set(&small, "rmq.range_joins", "always");
    let on = "p.g = q.g AND p.k BETWEEN q.k AND q.k + 9";
    let mut queries = vec![];
    for residual in ["", " AND p.v > 60 * q.v"] {
        for exists in ["EXISTS", "NOT EXISTS", "q.v % 2 = 0 OR EXISTS"] {
            queries.push(format!(
                "SELECT q.v FROM q WHERE {exists} (SELECT 1 FROM p WHERE {on}{residual})"
            ));
        }
        for join in ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"] {
            queries.push(format!("SELECT q.v, p.s FROM q {join} p ON {on}{residual}"));
            queries.push(format!(
                "SELECT count(*), sum(q.v), sum(p.v), min(p.s) FROM q {join} p ON {on}{residual}"
            ));
        }
        // The rows that are kept are on the side that is searched.
        for join in ["RIGHT SEMI JOIN", "RIGHT ANTI JOIN"] {
            queries.push(format!(
                "SELECT count(*), sum(p.v), min(p.s) FROM q {join} p ON {on}{residual}"
            ));
        }
        queries.push(format!(
            "SELECT count(*), sum(p.v) FROM p WHERE p.v % 3 = 0 OR EXISTS (SELECT 1 FROM q WHERE {on}{residual})"
        ));
    }
    for sql in queries {
        let plan = small.sql(&sql).await?.create_physical_plan().await?;
        let found = collect(Arc::clone(&plan), small.task_ctx()).await?;
        assert!(metric(&plan, "spill_count") > 0, "{sql}");
        assert!(lines(&found) == answer(&large, &sql).await?.0, "{sql}");
    }
    Ok(())
}

/// Partitions whose rows are taken by turns read the runs of a spilled side together, though each turn ends before a
/// run has been probed: not once a turn.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_go_through_spill_runs_together() -> Result<()> {
    for partitions in [1, 2, 4] {
        let config = SessionConfig::new()
            .with_target_partitions(partitions)
            .with_batch_size(100);
        let small = session_of_pool(config, ForRangeJoins::new(1 << 20));
        set(&small, "rmq.range_joins", "always");
        let p = "CREATE TABLE p AS SELECT value * 7919 % 30011 AS k, value AS v, concat('text ', value) AS s FROM range(0, 30000)";
        run(&small, p).await?;
        let rows = run(
            &small,
            "SELECT value * 7 % 30011 AS k, value AS v FROM range(0, 2000)",
        )
        .await?;
        let share = 2000 / partitions;
        let part = |i: usize| vec![rows.slice(i * share, share)];
        let parts = (0..partitions).map(part).collect();
        let table = MemTable::try_new(rows.schema(), parts)?;
        small.register_table("q", Arc::new(table))?;
        let sql = "SELECT q.v, p.v, p.s FROM q LEFT JOIN p ON p.k BETWEEN q.k AND q.k + 400 AND p.v <> q.k";
        let plan = small.sql(sql).await?.create_physical_plan().await?;
        let mut streams = execute_stream_partitioned(Arc::clone(&plan), small.task_ctx())?;
        assert_eq!(streams.len(), partitions, "{sql}");
        let mut found = vec![];
        while !streams.is_empty() {
            let mut going_on = vec![];
            for mut stream in streams {
                if let Some(batch) = stream.next().await {
                    found.push(batch?);
                    going_on.push(stream);
                }
            }
            streams = going_on;
        }
        assert!(found.iter().all(|batch| batch.num_rows() <= 100));
        let (runs, read) = (
            metric(&plan, "spill_count"),
            metric(&plan, "spill_runs_read"),
        );
        println!("{partitions} partitions read {runs} runs {read} times");
        assert!(
            runs > 2 && read <= 3 * partitions * runs,
            "{read} times {runs} runs"
        );
        let large = SessionContext::new();
        datafusion_rmq::register(&large);
        for name in ["p", "q"] {
            large.register_table(name, small.table_provider(name).await?)?;
        }
        assert!(
            lines(&found) == answer(&large, sql).await?.0,
            "{partitions}"
        );
    }
    Ok(())
}

/// Each row of a join of strings as views refers to the buffers of all rows of a side, and becomes a row of a side of
/// the next join.
#[tokio::test]
async fn joins_of_joins_do_not_multiply_buffers() -> Result<()> {
    let config = SessionConfig::new()
        .with_target_partitions(1)
        .with_batch_size(1);
    let ctx = SessionContext::new_with_config(config);
    datafusion_rmq::register(&ctx);
    set(&ctx, "rmq.range_joins", "always");
    let rows = 100;
    let texts = (0..rows).map(|i| format!("a text that is longer than a view: {i}"));
    let columns = [
        ("k", Arc::new((0..rows).collect::<Int64Array>()) as ArrayRef),
        ("s", Arc::new(StringViewArray::from_iter_values(texts))),
    ];
    register(&ctx, "p", &columns, &[]);
    let mut sql = "SELECT k, s FROM p".to_owned();
    for _ in 0..3 {
        sql = format!(
            "SELECT b.k, b.s FROM p a JOIN ({sql}) b ON b.k >= a.k AND b.k < a.k + 1 AND b.s <> a.s || 'a'"
        );
    }
    let plan = ctx.sql(&sql).await?.create_physical_plan().await?;
    let text = displayable(plan.as_ref()).indent(false).to_string();
    assert_eq!(text.matches("RangeJoinExec").count(), 3, "{text}");
    let batches = collect(plan, ctx.task_ctx()).await?;
    let found: usize = batches.iter().map(RecordBatch::num_rows).sum();
    assert_eq!(found as i64, rows);
    for batch in &batches {
        let buffers = batch.column(1).as_string_view().data_buffers();
        assert!(buffers.len() as i64 <= rows, "{} buffers", buffers.len());
    }
    Ok(())
}

/// Random joins, with more and more memory until it suffices.
#[tokio::test(flavor = "multi_thread")]
async fn little_memory_returns_the_same_rows() -> Result<()> {
    let seeds = cases_with_queries("spilled joins of rows", &FAILED, CASES, QUERIES);
    let (mut asked, mut spilled) = (0, 0);
    for seed in seeds {
        let random = &mut Random::of_case(seed);
        let tables = Tables::new(random);
        let builds = builds_at_once(&tables.with);
        for _ in 0..QUERIES {
            let sql = match random.below(3) {
                0 => exists(random),
                _ => join(random),
            };
            let Ok((expected, _)) = answer(&tables.without, &sql).await else {
                continue;
            };
            let mut limit = 512 << random.below(5);
            let plan = loop {
                let pool = ForRangeJoins::new(limit);
                let config = tables.with.copied_config();
                let small =
                    session_of_pool(config.with_create_default_catalog_and_schema(true), pool);
                set(&small, "rmq.range_joins", "always");
                for name in ["p", "q"] {
                    small.register_table(name, tables.with.table_provider(name).await?)?;
                }
                let plan = small.sql(&sql).await?.create_physical_plan().await?;
                match collect(Arc::clone(&plan), small.task_ctx()).await {
                    Ok(found) => {
                        let found = lines(&found);
                        assert_eq!(
                            found, expected,
                            "tables of seed {seed}, {limit} bytes: {sql}"
                        );
                        break plan;
                    }
                    Err(error) => {
                        let root = error.find_root();
                        let is_exhausted = matches!(root, DataFusionError::ResourcesExhausted(_));
                        assert!(
                            is_exhausted && limit < builds << 20,
                            "tables of seed {seed}, {limit} bytes: {sql}: {error}"
                        );
                    }
                }
                limit *= 2;
            };
            asked += 1;
            spilled += usize::from(metric(&plan, "spill_count") > 0);
        }
    }
    println!("{spilled} of {asked} joins wrote files");
    // About a fourth do.
    assert!(!is_usual() || spilled * 8 > asked, "{spilled} of {asked}");
    Ok(())
}

/// A large side in no order is not sorted for a few rows, but what these reach of it.
#[tokio::test(flavor = "multi_thread")]
async fn few_rows_reach_few_of_many() -> Result<()> {
    let (with, without) = (SessionContext::new(), SessionContext::new());
    datafusion_rmq::register(&with);
    set(&with, "rmq.range_joins", "always");
    // The second query would find sorted rows.
    set(&with, "rmq.keep_indexes", "false");
    for ctx in [&with, &without] {
        for table in [
            "CREATE TABLE p AS SELECT value % 10 AS g, value * 7919 % 100003 AS k, value AS v FROM range(0, 70000)",
            "CREATE TABLE q AS SELECT value % 11 AS g, value * 5000 AS k FROM range(0, 40)",
        ] {
            run(ctx, table).await?;
        }
    }
    // A plan that does not know how few rows it has.
    let q = "(SELECT q.* FROM range(0, 12) r JOIN q ON r.value = q.k / 5000) q";
    for join in ["JOIN", "LEFT JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"] {
        for residual in ["", " AND p.v > 2 * q.k"] {
            let columns = if join.len() > 9 { "q.*" } else { "q.*, p.v" };
            let on = format!("p.g = q.g AND p.k BETWEEN q.k AND q.k + 500{residual}");
            let sql = format!("SELECT {columns} FROM {q} {join} p ON {on}");
            let plan = with.sql(&sql).await?.create_physical_plan().await?;
            let found = collect(Arc::clone(&plan), with.task_ctx()).await?;
            assert_eq!(metric(&plan, "rows_scanned"), 70_000, "{sql}");
            assert_eq!(lines(&found), answer(&without, &sql).await?.0, "{sql}");
        }
    }
    Ok(())
}

/// Expressions that fail are evaluated only for pairs in the range.
#[tokio::test(flavor = "multi_thread")]
async fn conditions_fail_only_for_pairs_in_the_range() -> Result<()> {
    let ctx = SessionContext::new();
    datafusion_rmq::register(&ctx);
    set(&ctx, "rmq.range_joins", "always");
    for sql in [
        "CREATE TABLE p AS SELECT * FROM (VALUES (1, 1, 1), (1, 9, 0), (2, 5, 0)) AS v(g, k, v)",
        "CREATE TABLE q AS SELECT * FROM (VALUES (1, 0, 2, 1), (3, 0, 9, 0)) AS v(g, a, b, z)",
    ] {
        run(&ctx, sql).await?;
    }
    for join in ["JOIN", "LEFT JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"] {
        let on = "p.g = q.g AND p.k BETWEEN q.a / q.z AND q.b AND 4 / p.v > q.a";
        let sql = format!("SELECT q.g FROM q {join} p ON {on}");
        let (found, is_range_join) = answer(&ctx, &sql).await?;
        assert!(is_range_join, "{sql}");
        let expected: &[&str] = match join {
            "LEFT JOIN" => &["1", "3"],
            "LEFT ANTI JOIN" => &["3"],
            _ => &["1"],
        };
        assert_eq!(found, expected, "{sql}");
    }
    Ok(())
}

/// Where DataFusion would not compare many pairs, its join stays.
#[tokio::test(flavor = "multi_thread")]
async fn joins_by_nearly_unique_keys_are_left_to_datafusion() -> Result<()> {
    let ctx = SessionContext::new();
    datafusion_rmq::register(&ctx);
    for sql in [
        "CREATE TABLE orders AS SELECT value AS o, value % 2000 AS day FROM range(0, 20000)",
        "CREATE TABLE items AS SELECT value / 4 AS o, value * 31 % 2000 AS day FROM range(0, 80000)",
        "CREATE TABLE points AS SELECT value % 10 AS o, value * 31 % 2000 AS day FROM range(0, 80000)",
    ] {
        run(&ctx, sql).await?;
    }
    let is_range_join = async |sql: &str| -> Result<bool> {
        let plan = ctx.sql(sql).await?.create_physical_plan().await?;
        Ok(displayable(plan.as_ref())
            .indent(false)
            .to_string()
            .contains("RangeJoinExec"))
    };
    for (sql, expected) in [
        (
            "SELECT * FROM orders a JOIN items b ON a.o = b.o AND b.day > a.day",
            false,
        ),
        (
            "SELECT * FROM orders a JOIN items b ON a.o = b.o AND b.day BETWEEN a.day AND a.day + 9",
            false,
        ),
        (
            "SELECT * FROM orders a LEFT SEMI JOIN items b ON a.o = b.o AND b.day > a.day",
            false,
        ),
        (
            "SELECT * FROM points a JOIN points b ON a.o = b.o AND b.day BETWEEN a.day AND a.day + 9",
            true,
        ),
        (
            "SELECT * FROM points a JOIN points b ON a.o = b.o AND b.day > a.day",
            false,
        ),
        (
            "SELECT * FROM points a LEFT SEMI JOIN points b ON a.o = b.o AND b.day > a.day",
            true,
        ),
        (
            "SELECT * FROM points a JOIN orders b ON b.day BETWEEN a.day AND a.day + 9",
            true,
        ),
        (
            "SELECT * FROM points a JOIN orders b ON b.day > a.day",
            true,
        ),
    ] {
        assert_eq!(is_range_join(sql).await?, expected, "{sql}");
    }
    set(&ctx, "rmq.rewrite", "false");
    let pairs = "SELECT * FROM points a JOIN orders b ON b.day BETWEEN a.day AND a.day + 9";
    assert!(!is_range_join(pairs).await?);
    Ok(())
}
