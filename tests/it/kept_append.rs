//! Build sides that sessions keep while rows are appended to their tables: only these are sorted, and answers are those
//! of a session that keeps nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use futures::{StreamExt, TryStreamExt};
use rmq_testing::{Random, runs};

use crate::kept::{count_of_kept, explained, joining, named};
use crate::range_join::{lines, metric};
use crate::spilling::share;
use crate::support::{bigint, cpu_session, run, set};

/// Joins of every form whose answers of several segments are merged. `p` has the rows that are kept.
pub const MERGED: [(&str, &str); 34] = [
    (
        "sums",
        "SELECT q.id, count(*), count(p.v), sum(p.v), avg(p.f) FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id",
    ),
    (
        "extremes",
        "SELECT q.id, min(p.v), max(p.v), min(p.f), max(p.f), min(p.s) FROM q LEFT JOIN p ON p.t >= q.a AND p.t < q.b GROUP BY q.id",
    ),
    (
        "first and last",
        "SELECT q.id, x.* FROM q CROSS JOIN LATERAL (SELECT first_value(p.id ORDER BY p.t) AS f, \
     last_value(p.id ORDER BY p.t) AS l, sum(p.f) AS m FROM p WHERE p.s = q.s AND p.t BETWEEN q.a AND q.b) x",
    ),
    (
        "first without keys",
        "SELECT q.id, x.* FROM q CROSS JOIN LATERAL (SELECT first_value(p.id ORDER BY p.t) AS f, \
     first_value(p.v ORDER BY p.t) AS v FROM p WHERE p.t > q.a AND p.t <= q.b) x",
    ),
    (
        "rows of extremes",
        "SELECT q.id, arg_min(p.id, p.v), arg_max(p.id, p.v) FROM q JOIN p ON p.t BETWEEN q.a AND q.b GROUP BY q.id",
    ),
    (
        "first by a value",
        "SELECT q.id, x.* FROM q CROSS JOIN LATERAL (SELECT first_value(p.id ORDER BY p.v DESC) AS f \
     FROM p WHERE p.s = q.s AND p.t BETWEEN q.a AND q.b) x",
    ),
    (
        "states",
        "SELECT q.id, round(stddev(p.v), 9), bool_or(p.v > 50) FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id",
    ),
    (
        "lists",
        "SELECT q.id, array_agg(p.id ORDER BY p.t, p.id) FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id",
    ),
    (
        "crossing",
        "SELECT q.id, (SELECT min(p.t) FROM p WHERE p.s = q.s AND p.t >= q.a AND p.v >= q.v) AS t FROM q",
    ),
    (
        "counts of a threshold",
        "SELECT q.id, count(*) FILTER (WHERE p.v < q.v) FROM q JOIN p ON p.t BETWEEN q.a AND q.b GROUP BY q.id",
    ),
    (
        "prevailing",
        "SELECT id, n, c, f, l, low, m FROM range_join('q', 'p', 's', 't BETWEEN a AND b', 'count(*) AS n, count(v) AS c, \
     first_value(id ORDER BY t) AS f, last_value(id ORDER BY t) AS l, min(v) AS low, sum(f) AS m', 'include prevailing')",
    ),
    (
        "prevailing below",
        "SELECT id, n, f FROM range_join('q', 'p', '', 't > a AND t < b', 'count(*) AS n, \
     first_value(id ORDER BY t) AS f', 'include prevailing')",
    ),
    (
        "inner rows",
        "SELECT q.id, p.id, p.v, p.s FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b",
    ),
    (
        "left rows",
        "SELECT q.id, p.id, p.f FROM q LEFT JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b",
    ),
    (
        "left rows with a condition",
        "SELECT q.id, p.id FROM q LEFT JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b AND p.v > q.v",
    ),
    (
        "left rows with another condition",
        "SELECT q.id, p.id FROM q LEFT JOIN p ON p.t BETWEEN q.a AND q.b AND (p.v + q.v) % 7 = 1",
    ),
    (
        "right rows",
        "SELECT q.id, p.id FROM q RIGHT JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b AND p.v > q.v",
    ),
    (
        "full rows",
        "SELECT q.id, p.id FROM q FULL JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b",
    ),
    (
        "full rows with a condition",
        "SELECT q.id, p.id FROM q FULL JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b AND p.v % 3 > q.v % 3",
    ),
    (
        "semi of build rows",
        "SELECT p.id FROM p WHERE EXISTS (SELECT 1 FROM q WHERE p.s = q.s AND p.t BETWEEN q.a AND q.b)",
    ),
    (
        "anti of build rows",
        "SELECT p.id FROM p WHERE NOT EXISTS (SELECT 1 FROM q WHERE p.s = q.s AND p.t BETWEEN q.a AND q.b AND p.v > q.v)",
    ),
    (
        "semi",
        "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.t BETWEEN q.a AND q.b AND p.v > q.v + 30)",
    ),
    (
        "semi with a condition",
        "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.s = q.s AND p.t BETWEEN q.a AND q.b AND (p.v + q.v) % 7 = 1)",
    ),
    (
        "anti",
        "SELECT q.id FROM q WHERE NOT EXISTS (SELECT 1 FROM p WHERE p.s = q.s AND p.t BETWEEN q.a AND q.b)",
    ),
    (
        "mark",
        "SELECT q.id FROM q WHERE q.id % 9 = 1 OR EXISTS (SELECT 1 FROM p WHERE p.s = q.s AND p.t BETWEEN q.a AND q.b)",
    ),
    (
        "as of",
        "SELECT q.id, (SELECT p.v FROM p WHERE p.s = q.s AND p.t <= q.b ORDER BY p.t DESC LIMIT 1) AS v FROM q",
    ),
    (
        "nearest",
        "SELECT q.id, x.id FROM q CROSS JOIN LATERAL (SELECT p.id FROM p WHERE p.s = q.s AND p.t <= q.b \
     ORDER BY p.t DESC LIMIT 3) x",
    ),
    (
        "top",
        "SELECT q.id, x.id FROM q CROSS JOIN LATERAL (SELECT p.id FROM p WHERE p.s = q.s AND p.t BETWEEN q.a AND q.b \
     ORDER BY p.v DESC, p.id LIMIT 2) x",
    ),
    (
        "first rows with a condition",
        "SELECT q.id, x.id, x.t FROM q LEFT JOIN LATERAL (SELECT p.id, p.t FROM p WHERE p.t > q.a AND p.v > q.v \
     ORDER BY p.t LIMIT 4) x ON true",
    ),
    (
        "first rows after others",
        "SELECT q.id, x.id FROM q LEFT JOIN LATERAL (SELECT p.id FROM p WHERE p.t BETWEEN q.a AND q.b \
     ORDER BY p.t LIMIT 5 OFFSET 7) x ON true",
    ),
    (
        "last rows",
        "SELECT q.id, x.id FROM q CROSS JOIN LATERAL (SELECT p.id FROM p WHERE p.t <= q.b AND p.t > q.a \
     ORDER BY p.t DESC LIMIT 9) x",
    ),
    (
        "top rows with ties",
        "SELECT q.id, x.id, x.s FROM q LEFT JOIN LATERAL (SELECT p.id, p.s FROM p WHERE p.t BETWEEN q.a AND q.b \
     ORDER BY p.v % 5 LIMIT 3 OFFSET 1) x ON true",
    ),
    (
        "overlaps",
        "SELECT q.id, p.id FROM q LEFT JOIN p ON p.t <= q.b AND p.u >= q.a",
    ),
    (
        "counts of overlaps",
        "SELECT q.id, (SELECT count(*) FROM p WHERE p.t <= q.b AND p.u >= q.a) AS n FROM q",
    ),
];

/// Joins that need all rows of a range at once: their build side is sorted anew as a whole.
pub const WHOLE: [(&str, &str); 3] = [
    (
        "median",
        "SELECT q.id, (SELECT median(p.v) FROM p WHERE p.s = q.s AND p.t BETWEEN q.a AND q.b) AS m FROM q",
    ),
    (
        "closest",
        "SELECT q.id, x.id FROM q CROSS JOIN LATERAL (SELECT p.id FROM p WHERE p.s = q.s ORDER BY abs(p.t - q.a), p.id LIMIT 2) x",
    ),
    (
        "union",
        "SELECT q.id, count(*) FROM q JOIN (SELECT s, t FROM p UNION ALL SELECT s, u FROM p WHERE v < 20) p \
     ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id",
    ),
];

/// Values of these many rows of `p`, from `first` on: with NULLs, NaN, zeros of both signs, and many equal keys.
pub fn rows(first: usize, count: usize) -> String {
    format!(
        "SELECT value AS id, nullif(concat('s', value * 7 % 5), 's4') AS s, nullif(value * 7919 % 2003, 5) AS t, \
         value * 7919 % 2003 + value % 13 AS u, nullif(value * 31 % 100, 7) AS v, \
         CASE value % 11 WHEN 0 THEN 'NaN'::DOUBLE WHEN 1 THEN -0.0::DOUBLE WHEN 2 THEN 0.0::DOUBLE WHEN 3 THEN NULL \
         ELSE value * 0.1 END AS f FROM range({first}, {})",
        first + count
    )
}

/// A session with tables `p` of this many rows and `q`, in as many partitions as it has.
pub async fn tables(count: usize, partitions: usize) -> SessionContext {
    let ctx = joining(cpu_session());
    let partitions = partitions.to_string();
    set(&ctx, "datafusion.execution.target_partitions", &partitions);
    for sql in [
        format!("CREATE TABLE p AS {}", rows(0, count)),
        "CREATE TABLE q AS SELECT value AS id, concat('s', value % 6) AS s, value * 131 % 2050 - 5 AS a, \
         value * 131 % 2050 + value % 60 - 5 AS b, value % 100 AS v FROM range(0, 150)"
            .into(),
    ] {
        run(&ctx, &sql).await.expect("a table");
    }
    ctx
}

/// A session over the same tables that keeps nothing.
pub async fn without_keeping(tables: &SessionContext, partitions: usize) -> SessionContext {
    let ctx = joining(cpu_session());
    let partitions = partitions.to_string();
    set(&ctx, "datafusion.execution.target_partitions", &partitions);
    set(&ctx, "rmq.keep_indexes", "false");
    share(tables, &ctx).await;
    ctx
}

async fn planned(ctx: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    let plan = ctx.sql(sql).await.expect(sql);
    plan.create_physical_plan().await.expect(sql)
}

/// The sorted rows, the number of segments of a build side that was kept in several, and the rows that were sorted.
pub async fn answer(ctx: &SessionContext, sql: &str) -> (Vec<String>, usize, usize) {
    let plan = planned(ctx, sql).await;
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await;
    let [segments, built] = ["index_segments", "build_rows"].map(|name| metric(&plan, name));
    (lines(&batches.expect(sql)), segments, built)
}

/// Runs a query in both sessions. Returns the number of segments.
pub async fn compare(ctx: &SessionContext, plain: &SessionContext, what: &str, sql: &str) -> usize {
    let (expected, ..) = answer(plain, sql).await;
    let told = explained(ctx, "EXPLAIN", sql).await;
    let (found, segments, _) = answer(ctx, sql).await;
    if segments > 1 {
        assert_eq!(told, ["kept"], "{what}: {sql}");
    }
    assert!(
        found == expected,
        "{what}, {segments} segments: {sql}\n{found:?}\n{expected:?}"
    );
    segments
}

async fn insert(ctx: &SessionContext, first: usize, count: usize) {
    let sql = format!("INSERT INTO p {}", rows(first, count));
    run(ctx, &sql).await.expect("an INSERT");
}

/// Each form alone, in a session of its own, and some after one another.
#[tokio::test(flavor = "multi_thread")]
async fn every_form_merges_segments() {
    for forms in MERGED.chunks(5) {
        let ctx = tables(6000, 1).await;
        let plain = without_keeping(&ctx, 1).await;
        let mut first = 6000;
        for (what, sql) in forms {
            let alone = joining(cpu_session());
            set(&alone, "datafusion.execution.target_partitions", "1");
            share(&ctx, &alone).await;
            compare(&alone, &plain, what, sql).await;
            for (count, expected) in [(2100, 2), (15, 3)] {
                insert(&ctx, first, count).await;
                first += count;
                let segments = compare(&alone, &plain, what, sql).await;
                assert!(segments >= expected, "{what}: {segments}");
                // Nothing is read the second time.
                let (found, again, built) = answer(&alone, sql).await;
                assert_eq!((again, built), (segments, 0), "{what}");
                assert!(answer(&ctx, sql).await.0 == found, "{what}");
            }
        }
    }
    let ctx = tables(6000, 1).await;
    let plain = without_keeping(&ctx, 1).await;
    for (i, (what, sql)) in WHOLE.into_iter().enumerate() {
        compare(&ctx, &plain, what, sql).await;
        insert(&ctx, 6000 + 3 * i, 3).await;
        assert_eq!(compare(&ctx, &plain, what, sql).await, 0, "{what}");
    }
}

/// Dictionaries with narrow keys, NaN and zeros of both signs, each, as range keys, and decimals.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_other_types_are_merged() {
    let ctx = tables(0, 1).await;
    let typed = |first, count| {
        format!(
            "SELECT id, arrow_cast(s, 'Dictionary(Int8, Utf8)') AS s, CASE t % 50 WHEN 0 THEN -0.0::DOUBLE WHEN 1 THEN 0.0::DOUBLE \
             WHEN 2 THEN 'NaN'::DOUBLE WHEN 3 THEN -('NaN'::DOUBLE) ELSE t::DOUBLE END AS t, u::DOUBLE AS u, v::DECIMAL(12, 2) AS v, f FROM ({})",
            rows(first, count)
        )
    };
    for sql in [
        format!("CREATE OR REPLACE TABLE p AS {}", typed(0, 5000)),
        "CREATE OR REPLACE TABLE q AS SELECT id, s, CASE a % 10 WHEN 0 THEN -0.0::DOUBLE ELSE a::DOUBLE END AS a, \
         CASE b % 10 WHEN 0 THEN 'NaN'::DOUBLE WHEN 1 THEN 0.0::DOUBLE ELSE b::DOUBLE END AS b, v FROM q"
            .into(),
    ] {
        run(&ctx, &sql).await.expect("a table");
    }
    let plain = without_keeping(&ctx, 1).await;
    let mut first = 5000;
    let mut merged = 0;
    for (what, sql) in MERGED {
        compare(&ctx, &plain, what, sql).await;
        for count in [30, 20] {
            let change = format!("INSERT INTO p {}", typed(first, count));
            run(&ctx, &change).await.expect("an INSERT");
            first += count;
            let segments = compare(&ctx, &plain, what, sql).await;
            merged += usize::from(segments > 1);
        }
    }
    println!("{merged} merged");
    assert!(merged > 20, "{merged}");
}

/// Statements in random order, over a table of one or of several partitions.
#[tokio::test(flavor = "multi_thread")]
async fn appended_tables_have_the_answers_of_all_rows() {
    for mut random in runs("appended build sides", &[]) {
        for partitions in [1, 3] {
            interleave(&mut random, partitions).await;
        }
    }
}

async fn interleave(random: &mut Random, partitions: usize) {
    let ctx = tables(5000 + random.below(3000), partitions).await;
    let plain = without_keeping(&ctx, partitions).await;
    let (mut next_id, mut met, mut most) = (9000, 0, 0);
    for _ in 0..120 {
        let count = [0, 1, 5, 40, 2100, 5000][random.below(6)];
        let change = match random.below(24) {
            0..9 => format!("INSERT INTO p {}", rows(next_id, count)),
            9 => format!(
                "INSERT INTO p {} UNION ALL {}",
                rows(next_id, count),
                rows(next_id + 5000, 7)
            ),
            10 => "INSERT INTO p SELECT * FROM p WHERE id % 50 = 3".into(),
            11 => "UPDATE p SET v = v + 1 WHERE id % 5 = 1".into(),
            12 => "DELETE FROM p WHERE id % 37 = 1".into(),
            13 => "CREATE INDEX IF NOT EXISTS by_time ON p USING rmq (s, t)".into(),
            14 => {
                let create = "CREATE INDEX IF NOT EXISTS by_u ON p USING rmq (s, u)";
                // Rows that come in no order can't be indexed.
                let _ = run(&ctx, create).await;
                "DROP TABLE IF EXISTS rmq.by_u".into()
            }
            15 => format!("CREATE OR REPLACE TABLE p AS {}", rows(next_id, 5000)),
            _ => String::new(),
        };
        next_id += 5500;
        if change.is_empty() {
            for _ in 0..3 {
                let (what, sql) = match random.below(8) {
                    0 => WHOLE[random.below(WHOLE.len())],
                    _ => MERGED[random.below(MERGED.len())],
                };
                let sql = match random.below(5) {
                    0 => sql.replace("JOIN p ON", "JOIN (SELECT * FROM p WHERE v % 4 <> 1) p ON"),
                    _ => sql.to_string(),
                };
                let segments = compare(&ctx, &plain, what, &sql).await;
                met += usize::from(segments > 1);
                most = most.max(segments);
            }
            continue;
        }
        let changed = run(&ctx, &change).await;
        let is_index = change.starts_with("CREATE INDEX");
        assert!(changed.is_ok() || is_index, "{change}: {changed:?}");
        if change.starts_with("CREATE OR") {
            for name in ["p", "q"] {
                plain.deregister_table(name).expect(name);
            }
            share(&ctx, &plain).await;
        }
    }
    println!("{partitions} partitions: {met} with segments, at most {most}");
    assert!(met > 3, "{met}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_was_appended_is_sorted() {
    let ctx = tables(5000, 1).await;
    let sql = MERGED[0].1;
    let filtered = sql.replace("JOIN p ON", "JOIN (SELECT * FROM p WHERE v % 4 <> 1) p ON");
    for sql in [sql, &filtered] {
        assert!(answer(&ctx, sql).await.2 > 3000);
    }
    for (i, expected) in [(0, 2200), (1, 5)] {
        insert(&ctx, 5000 + 3000 * i, expected).await;
        let (_, segments, built) = answer(&ctx, sql).await;
        assert_eq!((segments, built), (2 + i, expected));
        let (_, segments, built) = answer(&ctx, &filtered).await;
        assert!(segments == 2 + i && built < expected, "{segments} {built}");
    }
    // A value that no query has needed is added to all segments.
    let (_, segments, _) = answer(&ctx, &sql.replace("sum(p.v)", "max(p.u)")).await;
    assert_eq!(segments, 3);
    // Another version of the values, of the same keys.
    run(&ctx, "UPDATE p SET v = v + 1 WHERE id = 5190")
        .await
        .expect("an UPDATE");
    let plain = without_keeping(&ctx, 1).await;
    compare(&ctx, &plain, "an UPDATE", sql).await;
}

/// 400 INSERTs of a few rows, each followed by a query.
#[tokio::test(flavor = "multi_thread")]
async fn segments_are_merged_geometrically() {
    let ctx = tables(5000, 1).await;
    let plain = without_keeping(&ctx, 1).await;
    let sql = MERGED[2]
        .1
        .replace("FROM q", "FROM (SELECT * FROM q WHERE id < 5) q");
    answer(&ctx, &sql).await;
    let (mut built_in_all, mut most) = (0, 0);
    for i in 0..400 {
        insert(&ctx, 5000 + 100 * i, 100).await;
        let (found, segments, built) = answer(&ctx, &sql).await;
        built_in_all += built;
        most = most.max(segments);
        if i % 50 == 49 {
            assert!(found == answer(&plain, &sql).await.0, "{i}");
            assert_eq!(count_of_kept(&ctx).await, Some(1));
        }
    }
    println!("{built_in_all} rows sorted, at most {most} segments");
    // log2(45,000 / 1024) is 5.5.
    assert!((3..=7).contains(&most), "{most}");
    // Each INSERT sorts at most 2,048 rows of small segments besides.
    assert!(built_in_all < 400 * 2048 + 45_000 * 6, "{built_in_all}");
}

/// A query that has begun goes on with the segments that it has found.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_query_keeps_its_segments() {
    let ctx = tables(3000, 1).await;
    set(&ctx, "datafusion.execution.batch_size", "16");
    let sql = "SELECT q.id, p.id FROM q LEFT JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b";
    answer(&ctx, sql).await;
    insert(&ctx, 3000, 30).await;
    let (expected, segments, _) = answer(&ctx, sql).await;
    assert_eq!(segments, 2);
    let plan = planned(&ctx, sql).await;
    let mut stream = datafusion::physical_plan::execute_stream(plan, ctx.task_ctx()).expect(sql);
    let mut read = vec![stream.next().await.expect("a batch").expect("rows")];
    for i in 1..5 {
        insert(&ctx, 3000 + 400 * i, 400).await;
        answer(&ctx, sql).await;
    }
    run(&ctx, "DROP TABLE p").await.expect("p");
    assert_eq!(count_of_kept(&ctx).await, Some(0));
    read.extend(stream.try_collect::<Vec<_>>().await.expect("rows"));
    assert!(lines(&read) == expected);
    assert_eq!(ctx.runtime_env().memory_pool.reserved(), 0);
}

/// Once searching several segments has taken as long as sorting all rows, these are sorted.
#[tokio::test(flavor = "multi_thread")]
async fn many_searches_justify_one_segment() {
    let ctx = tables(5000, 1).await;
    let sql = MERGED[0].1;
    answer(&ctx, sql).await;
    insert(&ctx, 5000, 10).await;
    // 150 probe rows each.
    let mut queries = 0;
    while answer(&ctx, sql).await.1 == 2 {
        queries += 1;
        assert!(queries < 100);
    }
    assert_eq!(queries, 34);
    insert(&ctx, 5010, 10).await;
    assert_eq!(answer(&ctx, sql).await.1, 2);
}

/// Readers ask while a writer appends: they see all rows that were there before they asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_readers_see_what_was_appended() {
    let ctx = tables(5000, 1).await;
    let sql = "SELECT CAST(sum(c) AS BIGINT) FROM (SELECT q.id, count(p.id) AS c FROM (SELECT * FROM q WHERE id < 10) q JOIN p \
               ON p.u BETWEEN q.a - 5000 AND q.b + 5000 GROUP BY q.id)";
    assert_eq!(bigint(&ctx, sql).await, Some(10 * 5000));
    let inserted = Arc::new(AtomicI64::new(5000));
    let readers = [(); 3].map(|()| {
        let (ctx, inserted) = (ctx.clone(), Arc::clone(&inserted));
        tokio::spawn(async move {
            for _ in 0..20 {
                let before = inserted.load(Ordering::SeqCst);
                let pairs = bigint(&ctx, sql).await.expect("a sum");
                assert!(pairs % 10 == 0 && pairs >= 10 * before, "{pairs} {before}");
            }
        })
    });
    for i in 0..30 {
        insert(&ctx, 5000 + 100 * i, 100).await;
        inserted.fetch_add(100, Ordering::SeqCst);
        tokio::task::yield_now().await;
    }
    for reader in readers {
        reader.await.expect("a reader");
    }
    let (_, segments, built) = answer(&ctx, sql).await;
    assert!(segments > 1, "{built}");
}

/// A named index grows with its table, and is one line of the list.
#[tokio::test(flavor = "multi_thread")]
async fn named_indexes_grow() {
    let ctx = tables(7000, 1).await;
    let plain = without_keeping(&ctx, 1).await;
    let create = "CREATE INDEX by_time ON p USING rmq (s, t)";
    run(&ctx, create).await.expect(create);
    let bytes = async || {
        let sql = "SELECT CAST(sum(bytes) AS BIGINT) FROM rmq_indexes()";
        bigint(&ctx, sql).await.expect("bytes")
    };
    let before = bytes().await;
    for (first, count) in [(7000, 30), (7030, 2500), (9530, 5000)] {
        insert(&ctx, first, count).await;
        let segments = compare(&ctx, &plain, create, MERGED[10].1).await;
        assert_eq!(segments > 1, count < 5000, "{segments}");
        assert_eq!(
            named(&ctx).await,
            [format!("by_time | s, t | {}", first + count)]
        );
        assert_eq!(count_of_kept(&ctx).await, Some(1));
        let now = bytes().await;
        assert!(now > before, "{now} {before}");
    }
    run(&ctx, "DROP TABLE rmq.by_time").await.expect("by_time");
    assert_eq!(named(&ctx).await, Vec::<String>::new());
    drop(plain);
    run(&ctx, "DROP TABLE p").await.expect("p");
    assert_eq!(count_of_kept(&ctx).await, Some(0));
    assert_eq!(ctx.runtime_env().memory_pool.reserved(), 0);
}
