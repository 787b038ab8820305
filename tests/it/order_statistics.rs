//! Medians, percentiles and numbers of distinct values over windows of many rows, and of rows between two positions,
//! which come from order statistics, compared bit by bit with DataFusion's functions over the pairs of a plain join.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::{Result, resources_err};
use datafusion::execution::memory_pool::{
    GreedyMemoryPool, MemoryPool, MemoryReservation, UnboundedMemoryPool,
};
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use rmq_testing::{Random, runs};

use crate::fake::Fake;
use crate::range_join::{answer, lines, metric};
use crate::support::{cpu_session, error, run, session_of_pool, set};

/// The windows of each query.
const WINDOWS: usize = 100;

/// What is computed of each window. The last one reads rows.
const AGGREGATES: [&str; 7] = [
    "median(p.v)",
    "percentile_cont(p.v, 0.99)",
    "percentile_cont(0.3) WITHIN GROUP (ORDER BY p.v DESC)",
    "count(DISTINCT p.v)",
    "median(p.v) FILTER (WHERE p.k % 3 = 0)",
    "count(DISTINCT p.v) FILTER (WHERE p.k % 2 = 0)",
    "median(DISTINCT p.v)",
];

/// The types of values, and what makes them of a number `n`: ties, NULL, and for floats both zeros, infinity and NaN.
const VALUES: [(&str, &str); 8] = [
    (
        "Float64",
        "CASE WHEN n % 11 = 0 THEN NULL WHEN n % 13 = 0 THEN -0.0 WHEN n % 17 = 0 THEN 0.0 WHEN n % 101 = 0 THEN 'NaN' \
      WHEN n % 103 = 0 THEN 'inf' ELSE (n * 7919 % 211)::DOUBLE / 7 END",
    ),
    ("Float32", "(n * 7919 % 1009)::DOUBLE / 3 - 100"),
    (
        "Float64",
        "CASE WHEN n % 2 = 0 THEN 1.7e308 ELSE -1.7e308 END",
    ),
    (
        "Decimal128(38, 2)",
        "CASE WHEN n % 5 = 0 THEN NULL ELSE (n * 7919 % 1009) - 500 END",
    ),
    ("Decimal64(12, 3)", "(n * 7919 % 17) - 8"),
    ("Int32", "n * 7919 % 97"),
    (
        "Utf8View",
        "CASE WHEN n % 7 = 0 THEN NULL ELSE concat('a text of some length ', n * 7919 % 301) END",
    ),
    ("Timestamp(Microsecond, None)", "n % 977"),
];

/// Tables `p`, of values in groups and in no order, and `q`, of windows: most of them wide, some empty.
async fn tables(ctx: &SessionContext, random: &mut Random, data_type: &str, value: &str) {
    let rows = 500 + random.below(3000);
    let groups = 1 + random.below(4);
    let reach = rows / 3 + random.below(rows);
    let first = random.below(10_000);
    let more_groups = groups + 1;
    for sql in [
        format!(
            "CREATE TABLE p AS SELECT n % {groups} AS g, n * 7919 % {rows} AS k, arrow_cast({value}, '{data_type}') AS v
             FROM (SELECT value + {first} AS n FROM range(0, {rows}))"
        ),
        format!(
            "CREATE TABLE q AS SELECT value AS id, nullif(value % {more_groups}, 7) AS g, value * 13 % {rows} - {reach} / 2
             AS a, value * 13 % {rows} + value * 31 % {reach} - 5 AS b FROM range(0, {WINDOWS})"
        ),
    ] {
        run(ctx, &sql).await.expect(&sql);
    }
}

/// DataFusion without this crate, over the same tables.
async fn plain_session(ctx: &SessionContext) -> SessionContext {
    let plain = SessionContext::new();
    for table in ["p", "q"] {
        let provider = ctx.table_provider(table).await.expect(table);
        plain.register_table(table, provider).expect(table);
    }
    plain
}

/// The query by range joins, and by plain joins.
fn queries(aggregate: &str, on: &str) -> (String, String) {
    (
        format!("SELECT q.id, (SELECT {aggregate} FROM p WHERE {on}) AS a FROM q"),
        format!("SELECT q.id, {aggregate} AS a FROM q LEFT JOIN p ON {on} GROUP BY q.id"),
    )
}

/// The same number of distinct values, by an accumulator: GROUP BY, as which DataFusion finds those of one column,
/// knows one zero, its accumulators two.
fn by_accumulator(aggregate: &str) -> String {
    if aggregate.starts_with("count(DISTINCT") {
        format!("{aggregate} + count(DISTINCT p.k) - count(DISTINCT p.k * 2)")
    } else {
        aggregate.to_string()
    }
}

/// Groups of one window, of several that overlap or don't, and all windows as one group; with other aggregates beside.
#[tokio::test(flavor = "multi_thread")]
async fn statistics_of_groups_are_those_of_datafusion() {
    let mut answered = 0;
    for mut random in runs("group_statistics", &[]) {
        for (data_type, value) in VALUES {
            let ctx = cpu_session();
            set(&ctx, "rmq.range_joins", "always");
            tables(&ctx, &mut random, data_type, value).await;
            let plain = plain_session(&ctx).await;
            let is_number = ["Float", "Decimal", "Int"]
                .iter()
                .any(|t| data_type.starts_with(t));
            let ons = [
                "p.k BETWEEN q.a AND q.b",
                "p.g = q.g AND p.k >= q.a AND p.k < q.b",
            ];
            let groups = ["q.id", "q.id % 37", "q.g", "q.id / 100"];
            let besides = ["", ", min(p.k), count(*), avg(p.k)", ", stddev(p.k)"];
            for (i, aggregate) in AGGREGATES[..6].iter().enumerate() {
                if !is_number && !aggregate.starts_with("count") {
                    continue;
                }
                let join = ["JOIN", "LEFT JOIN"][random.below(2)];
                let on = ons[random.below(2)];
                let half = groups.iter().enumerate().skip(random.below(2)).step_by(2);
                for (j, group) in half {
                    let beside = besides[(i + j) % besides.len()];
                    let beside = if beside.contains("stddev") {
                        // Its digits differ from those of DataFusion's accumulators of groups.
                        ", round(stddev(p.k), 3)"
                    } else {
                        beside
                    };
                    let other = AGGREGATES[3];
                    let query = |aggregate: &str, other: &str| {
                        format!(
                            "SELECT {group} AS n, {aggregate} AS a, {other} AS b{beside} FROM q {join} p ON {on} GROUP BY {group}"
                        )
                    };
                    let (sql, naive) = (
                        query(aggregate, other),
                        query(&by_accumulator(aggregate), &by_accumulator(other)),
                    );
                    let what = format!("{data_type}, {sql}");
                    let expected = answer(&plain, &naive).await.expect(&what).0;
                    // Again, when the side is kept.
                    for _ in 0..2 {
                        let plan = ctx.sql(&sql).await.expect(&what);
                        let plan = plan.create_physical_plan().await.expect(&what);
                        let found = collect(plan.clone(), ctx.task_ctx()).await.expect(&what);
                        assert_eq!(lines(&found), expected, "{what}");
                        let of_groups = displayable(plan.as_ref()).indent(false).to_string();
                        assert!(of_groups.contains("GroupStatisticsExec"), "{of_groups}");
                        answered += metric(&plan, "order_statistics");
                    }
                }
                let all =
                    |aggregate: &str| format!("SELECT {aggregate} AS a FROM q {join} p ON {on}");
                for condition in ["", " WHERE q.id < 0"] {
                    let sql = format!("{}{condition}", all(aggregate));
                    let naive = format!("{}{condition}", all(&by_accumulator(aggregate)));
                    let expected = answer(&plain, &naive).await.expect(&naive).0;
                    let found = answer(&ctx, &sql).await.expect(&sql).0;
                    assert_eq!(found, expected, "{data_type}, {sql}");
                }
            }
        }
    }
    assert!(answered > 0);
}

/// Joins below GROUP BY whose windows have few rows, or of which nothing is known, are left to DataFusion.
#[tokio::test(flavor = "multi_thread")]
async fn statistics_of_groups_are_chosen_by_the_rows_of_windows() {
    let ctx = cpu_session();
    for sql in [
        "CREATE TABLE p AS SELECT value * 7919 % 100003 AS k, (value * 31 % 5003)::DOUBLE AS v FROM range(0, 100000)",
        "CREATE TABLE q AS SELECT value AS id, value * 13 % 90000 AS a FROM range(0, 2000)",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    for (width, is_range_join) in [(10_000, true), (100, false)] {
        let sql = format!(
            "SELECT q.id, percentile_cont(0.9) WITHIN GROUP (ORDER BY p.v) FROM q JOIN p ON p.k BETWEEN q.a AND q.a + {width} GROUP BY q.id"
        );
        let plan = ctx.sql(&sql).await.expect(&sql);
        let plan = plan.create_physical_plan().await.expect(&sql);
        let text = displayable(plan.as_ref()).indent(false).to_string();
        assert_eq!(
            text.contains("GroupStatisticsExec"),
            is_range_join,
            "{text}"
        );
        // Each row is a group.
        assert_eq!(text.contains("UniqueGroupsExec"), is_range_join, "{text}");
    }
    set(&ctx, "rmq.join_mode", "collected");
    let sql =
        "SELECT q.id, median(p.v) FROM q JOIN p ON p.k BETWEEN q.a AND q.a + 10000 GROUP BY q.id";
    let plan = ctx.sql(sql).await.expect(sql);
    let plan = plan.create_physical_plan().await.expect(sql);
    let text = displayable(plan.as_ref()).indent(false).to_string();
    assert!(!text.contains("GroupStatisticsExec"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_are_those_of_datafusion() {
    for mut random in runs("order_statistics", &[]) {
        for (data_type, value) in VALUES {
            let ctx = cpu_session();
            set(&ctx, "rmq.range_joins", "always");
            tables(&ctx, &mut random, data_type, value).await;
            let plain = plain_session(&ctx).await;
            let statistics = &AGGREGATES[..6];
            for aggregate in AGGREGATES {
                let is_number = ["Float", "Decimal", "Int"]
                    .iter()
                    .any(|t| data_type.starts_with(t));
                if !is_number && !aggregate.starts_with("count") {
                    continue;
                }
                for on in [
                    "p.k BETWEEN q.a AND q.b",
                    "p.g = q.g AND p.k >= q.a AND p.k < q.b",
                ] {
                    let (sql, naive) = queries(aggregate, on);
                    let what = format!("{data_type}, {sql}");
                    let naive = naive.replace(aggregate, &by_accumulator(aggregate));
                    let expected = if value.contains("-0.0") && !statistics.contains(&aggregate) {
                        let read = format!("{aggregate} FILTER (WHERE p.k >= 0)");
                        answer(&ctx, &queries(&read, on).0).await
                    } else {
                        answer(&plain, &naive).await
                    };
                    let expected = expected.expect(&what).0;
                    let plan = ctx.sql(&sql).await.expect(&what);
                    let plan = plan.create_physical_plan().await.expect(&what);
                    let windows = if statistics.contains(&aggregate) {
                        WINDOWS
                    } else {
                        0
                    };
                    // Again, when the side is kept.
                    for runs in 1..=2 {
                        let found = collect(plan.clone(), ctx.task_ctx()).await.expect(&what);
                        assert_eq!(lines(&found), expected, "{what}");
                        let answered = metric(&plan, "order_statistics");
                        assert_eq!(answered, runs * windows, "{what}");
                    }
                }
            }
        }
    }
}

/// A pool that grants no more bytes than these at a time.
#[derive(Debug)]
struct AtATime(AtomicUsize, UnboundedMemoryPool);

impl std::fmt::Display for AtATime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at most {:?} bytes at a time", self.0)
    }
}

impl MemoryPool for AtATime {
    fn name(&self) -> &'static str {
        "at a time"
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.1.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.1.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if additional > self.0.load(Ordering::Relaxed) {
            return resources_err!("{additional} bytes: {self}");
        }
        self.1.try_grow(reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.1.reserved()
    }
}

/// Where memory is short for statistics of kept rows the rows are read.
#[tokio::test(flavor = "multi_thread")]
async fn without_memory_rows_are_read() {
    let limit = |bytes| AtATime(AtomicUsize::new(bytes), UnboundedMemoryPool::default());
    for most in [usize::MAX, 100_000] {
        let pool = Arc::new(limit(usize::MAX));
        let config = SessionConfig::new().with_target_partitions(1);
        let ctx = session_of_pool(config, Arc::clone(&pool) as _);
        for sql in [
            "CREATE TABLE p AS SELECT value * 7919 % 20000 AS k, (value * 31 % 5003)::DOUBLE AS v FROM range(0, 20000)",
            "CREATE TABLE q AS SELECT value AS id, value * 130 AS a, value * 130 + 3000 AS b FROM range(0, 130)",
        ] {
            run(&ctx, sql).await.expect(sql);
        }
        let on = "p.k BETWEEN q.a AND q.b";
        for aggregate in ["median(p.v)", "count(DISTINCT p.v)"] {
            let (sql, naive) = queries(aggregate, on);
            let expected = answer(&plain_session(&ctx).await, &naive).await;
            let expected = expected.expect(&naive).0;
            let few = format!("{sql} WHERE q.id < 3");
            run(&ctx, &few).await.expect(&few);
            pool.0.store(most, Ordering::Relaxed);
            let plan = ctx.sql(&sql).await.expect(&sql);
            let plan = plan.create_physical_plan().await.expect(&sql);
            let found = collect(plan.clone(), ctx.task_ctx()).await.expect(&sql);
            assert_eq!(lines(&found), expected, "{most} bytes, {sql}");
            let has_statistics = metric(&plan, "order_statistics") > 0;
            assert_eq!(has_statistics, most == usize::MAX, "{most} bytes, {sql}");
            let windows = metric(&plan, "windows_without_index");
            assert_eq!(windows > 0, most != usize::MAX, "{most} bytes, {sql}");
            pool.0.store(usize::MAX, Ordering::Relaxed);
            // Groups of windows that overlap, and of those that don't: the statistics stay as they are.
            for groups in [20, 40] {
                let sql = format!(
                    "SELECT q.id % {groups} AS n, {aggregate} AS a FROM q JOIN p ON {on} GROUP BY q.id % {groups}"
                );
                let expected = answer(&plain_session(&ctx).await, &sql).await;
                let plan = ctx.sql(&sql).await.expect(&sql);
                let plan = plan.create_physical_plan().await.expect(&sql);
                let found = collect(plan.clone(), ctx.task_ctx()).await.expect(&sql);
                assert_eq!(
                    lines(&found),
                    expected.expect(&sql).0,
                    "{most} bytes, {sql}"
                );
                let text = displayable(plan.as_ref()).indent(false).to_string();
                assert!(text.contains("GroupStatisticsExec"), "{text}");
            }
        }
    }
}

/// Table `c`, of values in the order of their positions, and `w`, of ranges, fractions and thresholds.
async fn positions(ctx: &SessionContext, random: &mut Random, data_type: &str, value: &str) {
    let rows = 1 + random.below(3000);
    let first = random.below(10_000);
    let reach = 1 + random.below(rows);
    // Where thresholds are floats, the two zeros are different, to DataFusion equal.
    let no_zero = if data_type.starts_with("Float") {
        "CASE WHEN x = 0 THEN 1 ELSE x END"
    } else {
        "x"
    };
    for sql in [
        format!(
            "CREATE TABLE c AS SELECT n - {first} AS i, arrow_cast({value}, '{data_type}') AS v
             FROM (SELECT value + {first} AS n FROM range(0, {rows})) ORDER BY i"
        ),
        format!(
            "CREATE TABLE w AS SELECT id, a, a + id * 31 % {reach} - 2 AS b, {no_zero} AS x FROM (
               SELECT n AS id, n * 13 % ({rows} + 20) - 10 AS a, arrow_cast({value}, '{data_type}') AS x
               FROM (SELECT value AS n FROM range(0, {WINDOWS})))"
        ),
    ] {
        run(ctx, &sql).await.expect(&sql);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_by_position_are_those_of_datafusion() {
    for mut random in runs("order_statistics_by_position", &[]) {
        for (data_type, value) in VALUES {
            let ctx = cpu_session();
            positions(&ctx, &mut random, data_type, value).await;
            let mut calls = vec![
                (
                    "range_count_below('c.v', a, b, x)",
                    "frame_count_below(v, i - 40, i + 7, v)",
                    // NULL if the threshold is.
                    "count(*) FILTER (WHERE c.v < w.x) + max(CASE WHEN w.x IS NOT NULL THEN 0 END)",
                ),
                (
                    "range_count_distinct('c.v', a, b)",
                    "frame_count_distinct(v, i - 40, i + 7)",
                    // Beside others, distinct values are not found by GROUP BY, which knows one zero.
                    "count(DISTINCT c.v) + count(DISTINCT c.i) - count(c.i)",
                ),
            ];
            if ["Float", "Decimal", "Int"]
                .iter()
                .any(|t| data_type.starts_with(t))
            {
                calls.extend([
                    (
                        "range_quantile('c.v', a, b, 0.35)",
                        "frame_quantile(v, i - 40, i + 7, 0.35)",
                        "percentile_cont(c.v, 0.35)",
                    ),
                    (
                        "range_quantile('c.v', a, b, 0.98)",
                        "frame_quantile(v, i - 40, i + 7, 0.98)",
                        "percentile_cont(c.v, 0.98)",
                    ),
                ]);
            }
            for (by_range, by_frame, aggregate) in calls {
                let sql = format!("SELECT id, {by_range} FROM w ORDER BY id");
                let naive = format!(
                    "SELECT w.id, {aggregate} FROM w LEFT JOIN c ON c.i BETWEEN w.a AND w.b GROUP BY w.id ORDER BY w.id"
                );
                let what = format!("{data_type}, {sql}");
                let expected = answer(&ctx, &naive).await.expect(&what).0;
                // Again, when the index is kept.
                for _ in 0..2 {
                    assert_eq!(answer(&ctx, &sql).await.expect(&what).0, expected, "{what}");
                }
                let by_position = by_range
                    .replace("a, b", "i - 40, i + 7")
                    .replace(", x)", ", v)");
                let frames = format!("SELECT i, {by_frame} OVER (ORDER BY i) FROM c ORDER BY i");
                let same = format!("SELECT i, {by_position} FROM c ORDER BY i");
                let expected = answer(&ctx, &same).await.expect(&same).0;
                assert_eq!(
                    answer(&ctx, &frames).await.expect(&frames).0,
                    expected,
                    "{frames}"
                );
            }
            let sql = "SELECT kind FROM rmq_indexes() WHERE kind IS NOT NULL ORDER BY kind";
            let kinds = lines(&[run(&ctx, sql).await.expect(sql)]);
            assert_eq!(kinds, ["distinct", "ranks"], "{data_type}");
        }
    }
}

/// Waits until a pool has this many bytes registered: what a query has read is dropped a moment later.
pub(crate) async fn registered(pool: &Arc<dyn MemoryPool>, bytes: usize) {
    for _ in 0..200 {
        if pool.reserved() == bytes {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("{} bytes are registered, not {bytes}", pool.reserved());
}

/// The memory of an index of order statistics is registered while it is kept, and short memory is an error.
#[tokio::test(flavor = "multi_thread")]
async fn indexes_of_order_statistics_are_registered() {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 30));
    let ctx = session_of_pool(SessionConfig::new(), Arc::clone(&pool));
    for sql in [
        "CREATE TABLE c AS SELECT value * 7919 % 99991 AS v FROM range(0, 100000)",
        "CREATE TABLE w AS SELECT value AS a, value + 5000 AS b FROM range(0, 1000)",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    let median = "SELECT max(range_quantile('c.v', a, b, 0.5)) FROM w";
    run(&ctx, median).await.expect(median);
    let bytes = |kind: &str| format!("SELECT bytes FROM rmq_indexes() WHERE kind = '{kind}'");
    let of_ranks = lines(&[run(&ctx, &bytes("ranks")).await.expect("bytes")]);
    let of_ranks: usize = of_ranks[0].parse().expect("a number");
    // 17 bits of 100,000 rows and 99,991 values of 8 bytes.
    assert!((1_050_000..1_150_000).contains(&of_ranks), "{of_ranks}");
    registered(&pool, of_ranks).await;
    set(&ctx, "rmq.keep_indexes", "false");
    registered(&pool, 0).await;

    set(&ctx, "rmq.keep_indexes", "true");
    set(&ctx, "rmq.index_memory_limit", "1M");
    let error = error(&ctx, median).await;
    assert!(error.contains("the index of c.v needs"), "{error}");
    assert!(error.contains("rmq.index_memory_limit"), "{error}");
}

/// Rows of wide windows that pass a threshold are counted by ranks: thresholds of the column's type and of others,
/// NULL, beyond the type, both zeros and NaN.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_pass_a_threshold_are_counted() {
    let thresholds =
        "CASE WHEN value % 13 = 0 THEN NULL ELSE (value * 31 % 120)::DOUBLE / 2 - 10 END";
    let columns = [
        ("Int32", "n * 7919 % 97", thresholds),
        ("UInt64", "n * 7919 % 31", "value % 60 - 20"),
        (
            "Int64",
            "n * 7919 % 97",
            "CASE WHEN value % 5 = 0 THEN 1e30 ELSE -1e30 END",
        ),
        (
            VALUES[0].0,
            VALUES[0].1,
            "CASE WHEN value % 7 = 0 THEN 0.0 WHEN value % 7 = 1 THEN -0.0 WHEN value % 7 = 2 THEN \
          'NaN'::DOUBLE ELSE (value % 60)::DOUBLE / 2 END",
        ),
        (
            "Decimal128(38, 2)",
            "(n * 7919 % 1009) - 500",
            "(value * 17 % 1200) - 600",
        ),
        (
            "Utf8View",
            "concat('text ', n * 7919 % 301)",
            "concat('text ', value * 3 % 400)",
        ),
        (
            "Timestamp(Microsecond, None)",
            "n % 977",
            "arrow_cast(value * 5, 'Timestamp(Millisecond, None)')",
        ),
    ];
    for mut random in runs("threshold_counts", &[]) {
        for (data_type, value, threshold) in columns {
            let ctx = cpu_session();
            set(&ctx, "rmq.range_joins", "always");
            tables(&ctx, &mut random, data_type, value).await;
            let create = format!(
                "CREATE TABLE w AS SELECT q.*, x.x FROM q JOIN (SELECT value, {threshold} AS x FROM range(0, {WINDOWS})) AS x ON x.value = q.id"
            );
            run(&ctx, &create).await.expect(&create);
            let plain = SessionContext::new();
            for table in ["p", "w"] {
                let provider = ctx.table_provider(table).await.expect(table);
                plain.register_table(table, provider).expect(table);
            }
            let mut by_ranks = 0;
            for comparison in ["<", "<=", ">", ">="] {
                for on in [
                    "p.k BETWEEN w.a AND w.b",
                    "p.g = w.g AND p.k >= w.a AND p.k < w.b",
                ] {
                    let on = format!("{on} AND p.v {comparison} w.x");
                    let sql = format!("SELECT w.id, (SELECT count(*) FROM p WHERE {on}) FROM w");
                    let naive =
                        format!("SELECT w.id, count(p.k) FROM w LEFT JOIN p ON {on} GROUP BY w.id");
                    let expected = answer(&plain, &naive).await.expect(&naive).0;
                    let plan = ctx.sql(&sql).await.expect(&sql);
                    let plan = plan.create_physical_plan().await.expect(&sql);
                    // By listing first, then by ranks of the kept side.
                    for _ in 0..8 {
                        let found = collect(plan.clone(), ctx.task_ctx()).await.expect(&sql);
                        assert_eq!(lines(&found), expected, "{data_type}, {sql}");
                    }
                    by_ranks += metric(&plan, "order_statistics");
                }
            }
            assert_eq!(
                by_ranks > 0,
                data_type != "Utf8View",
                "{data_type}: {by_ranks}"
            );
        }
    }
}

/// Devices that have a copy of the statistics answer large batches. Where they fail, or have no room, the CPU does.
#[tokio::test(flavor = "multi_thread")]
async fn devices_answer_from_copies() {
    let queries = [
        "SELECT q.id, (SELECT median(p.v) FROM p WHERE p.k BETWEEN q.a AND q.a + 500) AS x FROM q",
        "SELECT q.id, (SELECT percentile_cont(p.v, 0.9) FROM p WHERE p.k BETWEEN q.a AND q.a + 501) AS x FROM q",
        "SELECT q.id, (SELECT count(DISTINCT p.v) FROM p WHERE p.k BETWEEN q.a AND q.a + 500) AS x FROM q",
        "SELECT q.id, (SELECT count(*) FROM p WHERE p.k BETWEEN q.a AND q.a + 500 AND p.v < q.x) AS x FROM q",
        "SELECT q.id, range_quantile('p.v', q.a, q.a + 500, 0.25) AS x, range_count_distinct('p.v', q.a, q.a + 500) AS y, \
         range_count_below('p.v', q.a, q.a + 500, q.x) AS z FROM q",
    ];
    let with_tables = async |ctx: SessionContext| {
        for sql in [
            "CREATE TABLE p AS SELECT value AS k, CASE WHEN value % 9 <> 4 THEN (value * 7919 % 10007)::DOUBLE / 2 END AS v FROM range(0, 30000)",
            "CREATE TABLE q AS SELECT value AS id, value * 15 - 100 AS a, (value * 31 % 5000)::DOUBLE AS x FROM range(0, 2000)",
        ] {
            run(&ctx, sql).await.expect(sql);
        }
        ctx
    };
    let cpu = with_tables(cpu_session()).await;
    let mut expected = vec![];
    for sql in queries {
        expected.push(answer(&cpu, sql).await.expect(sql).0);
    }
    for kind in 0..4 {
        let fake = Arc::new(Fake {
            memory: if kind == 1 { 1000 } else { 1 << 30 },
            ..Fake::default()
        });
        // So few rows don't open devices.
        let engine = if kind == 2 { "auto" } else { "cuda" };
        let ctx = with_tables(fake.session(&[("rmq.engine", engine)])).await;
        for _ in 0..3 {
            for (sql, expected) in queries.iter().zip(&expected) {
                let (found, _) = answer(&ctx, sql).await.expect(sql);
                assert_eq!(found, *expected, "{kind}: {sql}");
            }
            if kind == 3 {
                fake.failed.store(true, Ordering::Relaxed);
            }
        }
        let is_asked = fake.ranges() > 0;
        assert_eq!(is_asked, kind == 0 || kind == 3, "{kind}");
    }
}
