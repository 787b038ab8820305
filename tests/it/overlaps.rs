//! Intervals that overlap, and other thresholds within joins of rows: pairs, EXISTS and counts, compared with
//! DataFusion's own joins.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one pair of tables; `RMQ_CASES` makes it longer.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, DictionaryArray, Float64Array, Int64Array, StringArray, StringViewArray,
    TimestampSecondArray,
};
use datafusion::arrow::datatypes::Int32Type;
use datafusion::common::Result;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::range_join::{answer, lines, metric};
use crate::spilling::ForRangeJoins;
use crate::support::{draw_join_mode, register, run, session_of_pool, set};
use rmq_testing::{Random, cases_with_queries, is_usual};

/// The number of queries of each random test, unless `RMQ_CASES` overrides it.
const CASES: usize = 96;

/// Seeds of cases that once failed.
const FAILED: [u64; 0] = [];

/// Queries over the same pair of tables.
const QUERIES: usize = 12;

/// The columns of a table of this many intervals, some of which end before they begin.
fn columns(random: &mut Random, rows: usize) -> Vec<(&'static str, ArrayRef)> {
    let spread = [3, 20, 500][random.below(3)];
    let longest = [1, 4, spread][random.below(3)];
    let mut starts: Vec<i64> = (0..rows).map(|_| random.below(spread) as i64).collect();
    if random.below(2) == 0 {
        starts.sort_unstable();
    }
    let stops = starts.iter();
    let stops: Vec<i64> = stops
        .map(|start| start + random.below(longest + 2) as i64 - 1)
        .collect();
    let mut with_nulls = |values: &[i64]| -> Vec<Option<i64>> {
        let values = values.iter();
        values
            .map(|v| (random.below(12) > 0).then_some(*v))
            .collect()
    };
    let (start, stop) = (with_nulls(&starts), with_nulls(&stops));
    let mut few =
        |count: usize| -> Vec<i64> { (0..rows).map(|_| random.below(count) as i64).collect() };
    let (g, v) = (few(2), few(20));
    let float = |v: i64| match v {
        0 => -0.0,
        1 => 0.0,
        2 => f64::NEG_INFINITY,
        v if v % 11 == 5 => f64::NAN,
        v => v as f64 / 2.0 - 1.0,
    };
    let floats = |values: &[Option<i64>]| -> ArrayRef {
        let values = values.iter().map(|v| v.map(float));
        Arc::new(values.collect::<Float64Array>())
    };
    let text = |v: i64| {
        format!(
            "{:03}{}",
            v,
            "long enough to be stored apart".repeat((v % 3 == 0).into())
        )
    };
    let texts = |values: &[Option<i64>]| -> Vec<Option<String>> {
        values.iter().map(|v| v.map(text)).collect()
    };
    let dictionary = |values: &[Option<i64>]| -> ArrayRef {
        let values = texts(values);
        let values = values.iter().map(Option::as_deref);
        Arc::new(values.collect::<DictionaryArray<Int32Type>>())
    };
    vec![
        (
            "id",
            Arc::new(Int64Array::from_iter_values(0..rows as i64)) as ArrayRef,
        ),
        ("g", Arc::new(Int64Array::from(g))),
        ("v", Arc::new(Int64Array::from(v))),
        ("i0", Arc::new(Int64Array::from(start.clone()))),
        ("i1", Arc::new(Int64Array::from(stop.clone()))),
        ("f0", floats(&start)),
        ("f1", floats(&stop)),
        ("s0", Arc::new(StringViewArray::from_iter(texts(&start)))),
        ("s1", Arc::new(StringViewArray::from_iter(texts(&stop)))),
        ("u0", Arc::new(StringArray::from(texts(&start)))),
        ("u1", Arc::new(StringArray::from(texts(&stop)))),
        ("d0", dictionary(&start)),
        ("d1", dictionary(&stop)),
        ("t0", Arc::new(TimestampSecondArray::from(start))),
        ("t1", Arc::new(TimestampSecondArray::from(stop))),
    ]
}

/// Two tables of intervals, in a session with range joins and in one without.
struct Tables {
    with: SessionContext,
    without: SessionContext,
}

impl Tables {
    fn new(random: &mut Random) -> Self {
        let sizes = [0, 1, 90, 400];
        let (p, q) = (sizes[random.below(4)], sizes[random.below(4)]);
        let (p, q) = (columns(random, p), columns(random, q));
        let config = SessionConfig::new()
            .with_target_partitions([1, 4][random.below(2)])
            .with_batch_size([2, 50, 8192][random.below(3)]);
        let rows = p[0].1.len();
        let splits = [vec![], vec![rows / 3, rows / 4]];
        let splits = &splits[random.below(2)];
        let session = || {
            let ctx = SessionContext::new_with_config(config.clone());
            register(&ctx, "p", &p, splits);
            register(&ctx, "q", &q, &[]);
            ctx
        };
        let (with, without) = (session(), session());
        datafusion_rmq::register(&with);
        set(&with, "rmq.range_joins", "always");
        draw_join_mode(&with, random);
        Self { with, without }
    }
}

/// The condition that intervals overlap, or another with a threshold.
fn overlap(random: &mut Random) -> String {
    let (p, q) = [("p", "q"), ("q", "p")][random.below(2)];
    let kind = ["i", "f", "s", "u", "d", "t"][random.below(6)];
    let (least, greatest) = (["<", "<="][random.below(2)], [">", ">="][random.below(2)]);
    let shapes = [
        format!("{p}.{kind}0 {least} {q}.{kind}1 AND {p}.{kind}1 {greatest} {q}.{kind}0"),
        format!("{q}.{kind}0 {least} {p}.{kind}1 AND {q}.{kind}1 {greatest} {p}.{kind}0"),
        // Within, and a threshold beside a range with two ends.
        format!("{p}.{kind}0 {greatest} {q}.{kind}0 AND {p}.{kind}1 {least} {q}.{kind}1"),
        format!("{p}.i0 BETWEEN {q}.i0 - 40 AND {q}.i0 + 40 AND {p}.v {greatest} {q}.v - 3"),
        format!("{p}.i0 {greatest} {q}.i0 AND {p}.f1 {greatest} 2 * {q}.f0"),
        format!("{p}.i0 {least} {q}.i1 AND {p}.i1 * 2 + {p}.v {greatest} {q}.i0 * 2"),
    ];
    let mut parts = vec![shapes[random.below(shapes.len())].clone()];
    if random.below(3) == 0 {
        parts.insert(0, "p.g = q.g".to_string());
    }
    parts.join(" AND ")
}

/// An overlap, and possibly a further condition.
fn condition(random: &mut Random) -> String {
    let residuals = [
        "p.v <> q.v",
        "p.v + q.v > 30",
        "p.id % 7 = q.id % 5",
        "p.v < q.v",
    ];
    let overlap = overlap(random);
    match random.below(2) {
        0 => overlap,
        _ => format!("{overlap} AND {}", residuals[random.below(residuals.len())]),
    }
}

/// A join that returns pairs.
fn join(random: &mut Random) -> (String, String) {
    let join = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"][random.below(4)];
    let columns = [
        "q.id, p.id",
        "p.s0, q.v, p.d1",
        "count(*), sum(p.id), min(q.s0)",
    ];
    let columns = columns[random.below(columns.len())];
    let on = condition(random);
    let sql = format!("SELECT {columns} FROM q {join} p ON {on}");
    (sql.clone(), sql)
}

/// EXISTS, or a semi or anti join.
fn exists(random: &mut Random) -> (String, String) {
    let on = condition(random);
    let sql = match random.below(6) {
        0 => format!("SELECT q.id FROM q LEFT SEMI JOIN p ON {on}"),
        1 => format!("SELECT q.id FROM q LEFT ANTI JOIN p ON {on}"),
        2 => format!("SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE {on})"),
        3 => format!("SELECT q.id FROM q WHERE NOT EXISTS (SELECT 1 FROM p WHERE {on})"),
        4 => format!("SELECT q.id FROM q WHERE q.v = 3 OR EXISTS (SELECT 1 FROM p WHERE {on})"),
        _ => format!("SELECT p.id FROM q RIGHT SEMI JOIN p ON {on}"),
    };
    (sql.clone(), sql)
}

/// The number of intervals that overlap, or whether any does, and the same by a join, which DataFusion can plan.
fn count(random: &mut Random) -> (String, String) {
    let mut on = overlap(random);
    while on.contains("BETWEEN p.") {
        // Three expressions of the searched side.
        on = overlap(random);
    }
    let counted = format!("SELECT q.id, count(p.id) AS n FROM q LEFT JOIN p ON {on} GROUP BY q.id");
    match random.below(6) {
        0 => (
            format!("SELECT q.id, (SELECT count(*) FROM p WHERE {on}) AS n FROM q"),
            counted,
        ),
        1 => (
            format!(
                "SELECT q.id, n FROM q CROSS JOIN LATERAL (SELECT count(*) AS n FROM p WHERE {on})"
            ),
            counted,
        ),
        2 => (
            format!("SELECT q.id, EXISTS (SELECT 1 FROM p WHERE {on}) AS n FROM q"),
            format!("SELECT id, n > 0 FROM ({counted})"),
        ),
        kind => {
            let join = ["JOIN", "LEFT JOIN", "JOIN"][kind - 3];
            let aggregates = ["count(*)", "count(*), min(q.v), max(q.s0)"][random.below(2)];
            let group = ["q.id, ", "q.g, ", ""][random.below(3)];
            let by = if group.is_empty() {
                String::new()
            } else {
                format!("GROUP BY {}", group.trim_end_matches(", "))
            };
            let sql = format!("SELECT {group}{aggregates} FROM q {join} p ON {on} {by}");
            (sql.clone(), sql)
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pairs_that_overlap_are_those_that_datafusion_returns() {
    let threshold_rows = compare("pairs that overlap", join).await;
    assert!(!is_usual() || threshold_rows > 500, "{threshold_rows}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overlap_exists_where_datafusion_says_so() {
    let threshold_rows = compare("overlaps that exist", exists).await;
    assert!(!is_usual() || threshold_rows > 500, "{threshold_rows}");
}

#[tokio::test(flavor = "multi_thread")]
async fn overlaps_are_counted_as_joins_count_them() {
    compare("counts of overlaps", count).await;
}

/// Compares the answers to random queries: one for the session with range joins, one for that without. Returns the
/// number of rows that indexes on thresholds answered.
async fn compare(name: &str, query: impl Fn(&mut Random) -> (String, String)) -> usize {
    let seeds = cases_with_queries(name, &FAILED, CASES, QUERIES);
    let (mut asked, mut replaced, mut threshold_rows) = (0, 0, 0);
    for seed in seeds {
        let random = &mut Random::of_case(seed);
        let tables = Tables::new(random);
        for _ in 0..QUERIES {
            let (sql, other) = query(random);
            let expected = answer(&tables.without, &other).await;
            let (expected, _) = expected.unwrap_or_else(|e| panic!("seed {seed}: {other}: {e}"));
            let (found, plan) = executed(&tables.with, &sql)
                .await
                .unwrap_or_else(|error| panic!("tables of seed {seed}: {sql}: {error}"));
            assert_eq!(found, expected, "tables of seed {seed}: {sql}");
            asked += 1;
            replaced += usize::from(text(&plan).contains("RangeJoinExec"));
            threshold_rows += metric(&plan, "threshold_rows");
        }
    }
    println!(
        "{name}: {replaced} of {asked} queries have a range join; {threshold_rows} rows by indexes"
    );
    assert!(
        !is_usual() || replaced * 4 > asked * 3,
        "{replaced} of {asked}"
    );
    threshold_rows
}

/// The answer to a query, and its plan.
async fn executed(
    ctx: &SessionContext,
    sql: &str,
) -> Result<(Vec<String>, Arc<dyn ExecutionPlan>)> {
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    Ok((lines(&batches), plan))
}

fn text(plan: &Arc<dyn ExecutionPlan>) -> String {
    displayable(plan.as_ref()).indent(false).to_string()
}

/// Every interval overlaps with every other: 25 million pairs from 5,000 rows of each side, in 2 MB and in much memory.
#[tokio::test(flavor = "multi_thread")]
async fn any_fan_out_needs_little_memory() -> Result<()> {
    for (bytes, has_index) in [(1_200_000, None), (64 << 20, Some(true))] {
        let pool = Arc::new(GreedyMemoryPool::new(bytes));
        let config = SessionConfig::new()
            .with_target_partitions(2)
            .with_batch_size(1000);
        let ctx = session_of_pool(config, pool);
        for (name, factor) in [("p", 3), ("q", 5)] {
            let sql = format!(
                "CREATE TABLE {name} AS SELECT 1 AS g, 7 AS start, 9 AS stop, value * {factor} AS v FROM range(0, 5000)"
            );
            run(&ctx, &sql).await?;
        }
        set(&ctx, "rmq.range_joins", "always");
        let pairs = "SELECT q.v AS a, p.v AS b FROM q JOIN p ON p.g = q.g AND p.start <= q.stop AND p.stop >= q.start";
        let sql = format!("SELECT count(*), sum(a), sum(b) FROM ({pairs})");
        let (found, plan) = executed(&ctx, &sql).await?;
        assert!(text(&plan).contains("threshold="), "{}", text(&plan));
        if let Some(has_index) = has_index {
            assert_eq!(metric(&plan, "threshold_rows") > 0, has_index);
        }
        let sum: i64 = (0..5000).sum();
        let expected = format!("25000000 | {} | {}", sum * 5 * 5000, sum * 3 * 5000);
        assert_eq!(found, [expected]);
        let counts = "SELECT sum(n) FROM (SELECT (SELECT count(*) FROM p WHERE p.start <= q.stop AND p.stop >= q.start) AS n FROM q)";
        assert_eq!(answer(&ctx, counts).await?.0, ["25000000"]);
    }
    Ok(())
}

/// Few rows in each range are filtered, many are searched.
#[tokio::test(flavor = "multi_thread")]
async fn short_ranges_need_no_index() -> Result<()> {
    let ctx = SessionContext::new();
    datafusion_rmq::register(&ctx);
    set(&ctx, "rmq.range_joins", "always");
    run(
        &ctx,
        "CREATE TABLE p AS SELECT value AS k, value * 31 % 1000 AS v FROM range(0, 20000)",
    )
    .await?;
    run(
        &ctx,
        "CREATE TABLE q AS SELECT value * 3 AS k, value % 700 AS v FROM range(0, 5000)",
    )
    .await?;
    for (width, is_searched) in [(9, false), (2000, true)] {
        let on = format!("p.k BETWEEN q.k AND q.k + {width} AND p.v > q.v");
        for sql in [
            format!("SELECT count(*), sum(p.k + q.v) FROM q JOIN p ON {on}"),
            format!("SELECT count(*) FROM q LEFT SEMI JOIN p ON {on}"),
        ] {
            let (found, plan) = executed(&ctx, &sql).await?;
            assert_eq!(metric(&plan, "threshold_rows") > 0, is_searched, "{sql}");
            set(&ctx, "rmq.rewrite", "false");
            assert_eq!(found, answer(&ctx, &sql).await?.0, "{sql}");
            set(&ctx, "rmq.rewrite", "true");
        }
    }
    Ok(())
}

/// A build side on disk, and one that a few rows are compared with.
#[tokio::test(flavor = "multi_thread")]
async fn spilled_sides_and_few_rows() -> Result<()> {
    let tables = [
        "CREATE TABLE p AS SELECT value % 10 AS g, value * 7919 % 100003 AS start, value * 7919 % 100003 + value % 50 AS stop, value AS v FROM range(0, 100000)",
        "CREATE TABLE q AS SELECT value % 11 AS g, value * 97 AS start, value * 97 + value % 40 AS stop, value AS v FROM range(0, 300)",
    ];
    let pool = ForRangeJoins::new(1 << 20);
    let config = SessionConfig::new().with_target_partitions(2);
    let (small, usual) = (session_of_pool(config, pool), SessionContext::new());
    let large = SessionContext::new();
    datafusion_rmq::register(&usual);
    for ctx in [&small, &usual, &large] {
        for table in tables {
            run(ctx, table).await?;
        }
    }
    for ctx in [&small, &usual] {
        set(ctx, "rmq.range_joins", "always");
    }
    let on = "p.g = q.g AND p.start <= q.stop AND p.stop >= q.start";
    for residual in ["", " AND p.v > 60 * q.v"] {
        for exists in ["EXISTS", "NOT EXISTS", "q.v % 2 = 0 OR EXISTS"] {
            let sql =
                format!("SELECT q.v FROM q WHERE {exists} (SELECT 1 FROM p WHERE {on}{residual})");
            let (found, plan) = executed(&small, &sql).await?;
            assert!(metric(&plan, "spill_count") > 0, "{sql}");
            let (expected, _) = answer(&large, &sql).await?;
            assert_eq!(found, expected, "{sql}");
            assert_eq!(answer(&usual, &sql).await?.0, expected, "{sql}");
        }
    }
    let counts = format!("SELECT q.v, (SELECT count(*) FROM p WHERE {on}) FROM q");
    let (found, plan) = executed(&small, &counts).await?;
    assert!(metric(&plan, "spill_count") > 0);
    let joined = format!("SELECT q.v, count(p.v) FROM q LEFT JOIN p ON {on} GROUP BY q.v");
    assert_eq!(found, answer(&large, &joined).await?.0);
    // A plan that does not know how few rows it has.
    let q = "(SELECT q.* FROM range(0, 12) r JOIN q ON r.value = q.v / 25 AND q.v % 25 = 0) q";
    set(&usual, "rmq.keep_indexes", "false");
    set(&usual, "rmq.pruning", "always");
    for (sql, other) in [
        (format!("SELECT q.v, p.v FROM {q} JOIN p ON {on}"), None),
        (
            format!("SELECT q.v FROM {q} LEFT ANTI JOIN p ON {on}"),
            None,
        ),
        (
            format!("SELECT q.v, (SELECT count(*) FROM p WHERE {on}) FROM {q}"),
            Some(format!(
                "SELECT q.v, count(p.v) FROM {q} LEFT JOIN p ON {on} GROUP BY q.v"
            )),
        ),
    ] {
        let (found, plan) = executed(&usual, &sql).await?;
        assert!(metric(&plan, "rows_scanned") > 0, "{sql}");
        let other = other.as_ref().unwrap_or(&sql);
        assert_eq!(found, answer(&large, other).await?.0, "{sql}");
    }
    Ok(())
}

/// A limit that fails is evaluated only where the other conditions do not exclude it.
#[tokio::test(flavor = "multi_thread")]
async fn limits_fail_only_for_pairs_that_meet_the_conditions_before_them() -> Result<()> {
    let (ctx, alone) = (SessionContext::new(), SessionContext::new());
    datafusion_rmq::register(&ctx);
    set(&ctx, "rmq.range_joins", "always");
    for ctx in [&ctx, &alone] {
        run(
            ctx,
            "CREATE TABLE p AS SELECT value AS k, value % 90 AS v FROM range(0, 1000)",
        )
        .await?;
        run(
            ctx,
            "CREATE TABLE q AS SELECT value AS k, value % 3 AS z FROM range(0, 300)",
        )
        .await?;
    }
    for join in ["JOIN", "LEFT SEMI JOIN"] {
        let sql = format!(
            "SELECT q.k FROM q {join} p ON p.k <= q.k + 500 AND q.z <> 0 AND p.v > 60 / q.z"
        );
        assert_eq!(
            answer(&ctx, &sql).await?.0,
            answer(&alone, &sql).await?.0,
            "{sql}"
        );
    }
    Ok(())
}
