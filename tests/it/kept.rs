//! Build sides that sessions keep between queries: found again while their tables stay as they are, and never after
//! these have changed. Answers are compared with those of a session that keeps nothing.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use datafusion::arrow::array::{AsArray, Int64Array};
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};
use rmq_testing::runs;

use crate::range_join::{lines, metric};
use crate::spilling::share;
use crate::support::{bigint, cpu_session, run, session_of_pool, set};

/// Joins of every form. `p` has the rows that are kept.
pub const QUERIES: [&str; 17] = [
    "SELECT q.id, min(p.v), count(*), sum(p.v) FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id",
    "SELECT q.id, max(p.v) FROM q LEFT JOIN p ON p.t >= q.a AND p.t < q.b GROUP BY q.id",
    "SELECT q.id, max(p.v) FROM q LEFT JOIN p ON p.t > q.a AND p.t <= q.b GROUP BY q.id",
    "SELECT q.id, x.* FROM q CROSS JOIN LATERAL (SELECT first_value(p.id ORDER BY p.t) AS f, avg(p.v) AS m FROM p \
     WHERE p.s = q.s AND p.t BETWEEN q.a AND q.b) x",
    "SELECT q.id, p.id, p.v FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b",
    "SELECT q.id, p.id FROM q LEFT JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b AND p.v > q.v",
    "SELECT q.id, p.id FROM q FULL JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b",
    "SELECT p.id FROM p WHERE EXISTS (SELECT 1 FROM q WHERE p.s = q.s AND p.t BETWEEN q.a AND q.b)",
    "SELECT q.id FROM q WHERE NOT EXISTS (SELECT 1 FROM p WHERE p.s = q.s AND p.t BETWEEN q.a AND q.b)",
    "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.t BETWEEN q.a AND q.b AND p.v > q.v)",
    "SELECT q.id, (SELECT p.v FROM p WHERE p.s = q.s AND p.t <= q.b ORDER BY p.t DESC LIMIT 1) AS v FROM q",
    "SELECT q.id, x.id FROM q CROSS JOIN LATERAL (SELECT p.id FROM p WHERE p.s = q.s AND p.t <= q.b \
     ORDER BY p.t DESC LIMIT 3) x",
    "SELECT q.id, x.id FROM q CROSS JOIN LATERAL (SELECT p.id FROM p WHERE p.s = q.s AND p.t BETWEEN q.a AND q.b \
     ORDER BY p.v DESC, p.id LIMIT 2) x",
    "SELECT q.id, (SELECT median(p.v) FROM p WHERE p.s = q.s AND p.t BETWEEN q.a AND q.b) AS m FROM q",
    "SELECT q.id, p.id FROM q JOIN p ON p.t <= q.b AND p.u >= q.a",
    "SELECT q.id, sum(p.v) FROM q JOIN (SELECT s, t, v * 2 AS v FROM p WHERE v % 3 <> 0) p \
     ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id",
    "SELECT q.id, count(*) FROM q JOIN (SELECT s, t FROM p UNION ALL SELECT s, u FROM p WHERE v < 20) p \
     ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id",
];

/// Values of these many rows of `p`, from `first` on.
fn rows(first: usize, count: usize) -> String {
    format!(
        "SELECT value AS id, nullif(concat('s', value * 7 % 5), 's4') AS s, value * 7919 % 1009 AS t, \
         value * 7919 % 1009 + value % 13 AS u, nullif(value * 31 % 100, 7) AS v FROM range({first}, {})",
        first + count
    )
}

/// A session with tables `p` and `q`.
pub async fn tables() -> SessionContext {
    let ctx = joining(cpu_session());
    for sql in [
        format!("CREATE TABLE p AS {}", rows(0, 700)),
        "CREATE TABLE q AS SELECT value AS id, concat('s', value % 6) AS s, value * 11 % 1000 AS a, \
         value * 11 % 1000 + value % 90 AS b, value % 100 AS v FROM range(0, 300)"
            .into(),
    ] {
        run(&ctx, &sql).await.expect("a table");
    }
    ctx
}

pub fn joining(ctx: SessionContext) -> SessionContext {
    set(&ctx, "rmq.range_joins", "always");
    set(&ctx, "rmq.join_mode", "shared");
    ctx
}

/// The sorted rows, and the number of build sides that were found.
pub async fn answer(ctx: &SessionContext, sql: &str) -> (Vec<String>, usize) {
    let plan = ctx.sql(sql).await.expect(sql);
    let plan = plan.create_physical_plan().await.expect(sql);
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await;
    (lines(&batches.expect(sql)), metric(&plan, "index_kept"))
}

/// The number of build sides that a query finds, whose rows are those of a session that keeps nothing.
async fn found_by(ctx: &SessionContext, plain: &SessionContext, sql: &str) -> usize {
    let (expected, _) = answer(plain, sql).await;
    let (rows, found) = answer(ctx, sql).await;
    assert!(rows == expected, "{sql}");
    found
}

pub async fn count_of_kept(ctx: &SessionContext) -> Option<i64> {
    bigint(ctx, "SELECT count(*) FROM rmq_indexes()").await
}

/// A session over the same tables that keeps nothing.
async fn without_keeping(tables: &SessionContext) -> SessionContext {
    let ctx = joining(cpu_session());
    set(&ctx, "rmq.keep_indexes", "false");
    share(tables, &ctx).await;
    ctx
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_query_finds_the_build_side() {
    let ctx = tables().await;
    let plain = without_keeping(&ctx).await;
    for sql in QUERIES {
        let (expected, found) = answer(&plain, sql).await;
        assert_eq!(found, 0, "{sql}");
        let (first, _) = answer(&ctx, sql).await;
        assert!(first == expected, "{sql}");
        let (second, found) = answer(&ctx, sql).await;
        assert!(second == expected, "{sql}");
        assert!(found > 0, "{sql}");
    }
    assert_eq!(count_of_kept(&plain).await, Some(0));
}

/// Where the build sides of a query come from, in the order of the plan, as EXPLAIN or EXPLAIN ANALYZE tells.
pub async fn explained(ctx: &SessionContext, explain: &str, sql: &str) -> Vec<String> {
    let plan = run(ctx, &format!("{explain} {sql}")).await.expect(sql);
    let plan = plan.column(1).as_string::<i32>();
    let text: String = plan.iter().flatten().collect();
    let parts = text.split("index=").skip(1);
    let word = |part: &str| part.chars().take_while(char::is_ascii_alphabetic).collect();
    parts.map(word).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_tells_whether_it_is_kept() {
    let plans = ["EXPLAIN", "EXPLAIN ANALYZE"];
    for sql in QUERIES {
        let ctx = tables().await;
        let plain = without_keeping(&ctx).await;
        let joins = explained(&plain, "EXPLAIN", sql).await.len();
        assert!(joins > 0, "{sql}");
        for (ctx, expected) in [(&plain, "built"), (&ctx, "built"), (&ctx, "kept")] {
            // The second runs the query.
            for explain in plans {
                let origins = explained(ctx, explain, sql).await;
                assert_eq!(origins, vec![expected; joins], "{explain} {sql}");
            }
        }
        // Is no use of the rows.
        let hits = "SELECT CAST(max(hits) AS BIGINT) FROM rmq_indexes()";
        assert_eq!(bigint(&ctx, hits).await, Some(1), "{sql}");
        // Either side may be the one that is kept.
        for change in [
            "UPDATE p SET s = 's1', t = t + 1, u = u + 1 WHERE id = 7",
            "UPDATE q SET a = a - 1, b = b + 1 WHERE id = 7",
        ] {
            run(&ctx, change).await.expect(change);
        }
        let now = explained(&ctx, "EXPLAIN", sql).await;
        assert_eq!(now, vec!["built"; joins], "{sql}");
    }
}

/// Another window over the same rows, another value or another probe side finds them; another condition or key does
/// not.
#[tokio::test(flavor = "multi_thread")]
async fn other_queries_find_what_they_need_and_nothing_else() {
    let ctx = tables().await;
    let plain = without_keeping(&ctx).await;
    let count = "SELECT q.id, count(*), min(p.v) FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id";
    answer(&ctx, count).await;
    for (sql, is_found) in [
        (count.replace("q.b GROUP", "q.b + 5 GROUP"), true),
        (
            count.replace("p.t BETWEEN q.a AND", "p.t > q.a AND p.t <"),
            true,
        ),
        (
            count.replace("FROM q", "FROM (SELECT * FROM q WHERE id > 7) q"),
            true,
        ),
        (count.replace("min", "max"), true),
        (count.replace("p.v", "p.u * 2"), true),
        (
            count.replace("min(p.v)", "last_value(p.id ORDER BY p.t)"),
            true,
        ),
        (
            count.replace("JOIN p", "JOIN (SELECT t, v + 1 AS v, s FROM p) p"),
            true,
        ),
        (QUERIES[4].to_string(), true),
        (QUERIES[6].to_string(), true),
        (QUERIES[10].to_string(), true),
        (QUERIES[13].to_string(), true),
        (count.replace("q.b GROUP", "q.b AND p.v > 3 GROUP"), false),
        (count.replace("p.t BETWEEN", "p.u BETWEEN"), false),
        (count.replace("p.s = q.s AND ", ""), false),
        (
            count.replace("JOIN p", "JOIN (SELECT * FROM p WHERE random() < 2) p"),
            false,
        ),
        (
            count.replace("JOIN p", "JOIN (SELECT * FROM p LIMIT 1000) p"),
            false,
        ),
    ] {
        let found = found_by(&ctx, &plain, &sql).await;
        assert_eq!(found > 0, is_found, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_build_sides_are_listed() {
    let ctx = tables().await;
    answer(&ctx, QUERIES[0]).await;
    answer(&ctx, QUERIES[0]).await;
    let listed = run(
        &ctx,
        "SELECT \"table\", \"column\", kind, type, rows, device_bytes, engine, hits FROM rmq_indexes() WHERE bytes > 0",
    )
    .await
    .expect("a list");
    assert_eq!(
        lines(&[listed]),
        ["NULL | s, t | NULL | Int64 | 700 | 0 | cpu | 1"]
    );
}

/// Statements in random order. No answer is one of tables as they were.
#[tokio::test(flavor = "multi_thread")]
async fn changed_tables_have_new_answers() {
    for mut random in runs("kept build sides", &[]) {
        let ctx = tables().await;
        let other = joining(cpu_session());
        let plain = without_keeping(&ctx).await;
        share(&ctx, &other).await;
        let (mut next_id, mut found, mut sql) = (700, 0, QUERIES[0]);
        for _ in 0..100 {
            let draw = random.below(18);
            let change = match draw {
                0 => Some(format!("INSERT INTO p {}", rows(next_id, random.below(40)))),
                1 => Some(format!(
                    "DELETE FROM p WHERE id % 97 = {}",
                    random.below(97)
                )),
                2 => Some(format!(
                    "UPDATE p SET v = v + 1 WHERE id % 5 = {}",
                    random.below(5)
                )),
                3 => Some(format!(
                    "CREATE OR REPLACE TABLE p AS {}",
                    rows(next_id, 500)
                )),
                4 => Some("INSERT INTO q SELECT id + 300, s, a + 1, b, v FROM q LIMIT 10".into()),
                5 => Some("CREATE INDEX IF NOT EXISTS by_time ON p USING rmq (s, t)".into()),
                6 => {
                    // Once the schema is there, it stays.
                    run(
                        &ctx,
                        "CREATE INDEX IF NOT EXISTS by_u ON p USING rmq (s, u)",
                    )
                    .await
                    .expect("an index");
                    Some("DROP TABLE rmq.by_u".into())
                }
                _ => None,
            };
            if let Some(sql) = change {
                run(&ctx, &sql).await.expect("a change");
                next_id += 40;
                if draw == 3 {
                    for session in [&other, &plain] {
                        session.deregister_table("p").expect("p");
                        session.deregister_table("q").expect("q");
                        share(&ctx, session).await;
                    }
                }
                continue;
            }
            if random.below(2) == 0 {
                sql = QUERIES[random.below(QUERIES.len())];
            }
            let (expected, _) = answer(&plain, sql).await;
            for ctx in [&ctx, &other] {
                let (rows, kept) = answer(ctx, sql).await;
                assert!(rows == expected, "{sql}");
                found += kept;
            }
        }
        println!("{found} found");
        assert!(found > 5);
    }
}

/// Writes `p` as a Parquet file, last changed an hour ago.
pub async fn write(tables: &SessionContext, file: &Path, rows: &str) {
    // A new file, so that a reader of the old one keeps its open file.
    let _ = std::fs::remove_file(file);
    let sql = format!("COPY ({rows}) TO '{}' STORED AS PARQUET", file.display());
    run(tables, &sql).await.expect("a file");
    let file = std::fs::File::options()
        .write(true)
        .open(file)
        .expect("a file");
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    file.set_modified(hour_ago).expect("a time");
}

/// Waits until recent change times are old enough to be trusted, as they can't be set.
pub async fn settle() {
    tokio::time::sleep(Duration::from_millis(2100)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_read_once_until_they_change() {
    let memory = tables().await;
    let folder = tempfile::tempdir().expect("a folder");
    let [a, b] = ["a.parquet", "b.parquet"].map(|name| folder.path().join(name));
    write(&memory, &a, &rows(0, 300)).await;
    write(&memory, &b, &rows(300, 400)).await;
    let ctx = joining(cpu_session());
    let plain = joining(cpu_session());
    set(&plain, "rmq.keep_indexes", "false");
    for ctx in [&ctx, &plain] {
        let q = memory.table_provider("q").await.expect("q");
        ctx.register_table("q", q).expect("q");
        // DataFusion would go on with the list of files that it has cached.
        let no_cache = "SET datafusion.runtime.list_files_cache_limit = '0K'";
        run(ctx, no_cache).await.expect("an option");
        let p = format!(
            "CREATE EXTERNAL TABLE p STORED AS PARQUET LOCATION '{}'",
            folder.path().display()
        );
        run(ctx, &p).await.expect("p");
    }
    let filtered = QUERIES[0].replace("q.b GROUP", "q.b AND p.v > 50 GROUP");
    let queries = [QUERIES[0], QUERIES[3], QUERIES[4], QUERIES[11], &filtered];
    let compare = async |kept: Option<bool>, what: &str| {
        for sql in queries {
            let (expected, _) = answer(&plain, sql).await;
            let explained = explained(&ctx, "EXPLAIN", sql).await;
            let (rows, found) = answer(&ctx, sql).await;
            assert!(rows == expected, "{what}: {sql}");
            let told = explained.iter().filter(|origin| *origin == "kept").count();
            assert_eq!(told, found, "{what}: {sql}");
            // The first query reads keys for others, too.
            let is_first = sql == QUERIES[0];
            let is_as_told = kept.is_none_or(|kept| !(kept || is_first) || kept == (found > 0));
            assert!(is_as_told, "{what}: {sql}");
        }
    };
    // Some of the times are too recent.
    compare(None, "new files").await;
    settle().await;
    compare(None, "first").await;
    compare(Some(true), "second").await;
    write(&memory, &b, &rows(1300, 400)).await;
    compare(Some(false), "a changed file").await;
    settle().await;
    compare(None, "a changed file, first").await;
    compare(Some(true), "a changed file, second").await;
    write(&memory, &folder.path().join("c.parquet"), &rows(2000, 10)).await;
    settle().await;
    compare(Some(false), "one more file").await;
    compare(Some(true), "one more file, second").await;
    // Keys with and without a filter, in one version.
    assert_eq!(count_of_kept(&ctx).await, Some(2));
    std::fs::remove_file(&a).expect("a file");
    compare(Some(false), "one file less").await;
}

/// Tables that share arrays, which tables made of one another do, are told apart.
#[tokio::test(flavor = "multi_thread")]
async fn unions_of_the_same_batches_are_told_apart() {
    let ctx = tables().await;
    for sql in [
        "SET datafusion.execution.target_partitions = 1",
        "CREATE TABLE x1 AS SELECT * FROM p WHERE id < 200",
        "CREATE TABLE x2 AS SELECT * FROM p WHERE id BETWEEN 200 AND 400",
        "CREATE TABLE x3 AS SELECT * FROM p WHERE id > 400",
        "CREATE TABLE hot_a AS SELECT * FROM x1",
        "INSERT INTO hot_a SELECT * FROM x2",
        "CREATE TABLE cold_a AS SELECT * FROM x3",
        "CREATE TABLE hot_b AS SELECT * FROM x1",
        "CREATE TABLE cold_b AS SELECT * FROM x2",
        "INSERT INTO cold_b SELECT * FROM x3",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    let query = |name: &str| {
        format!(
            "SELECT q.id, count(*) FROM q JOIN (SELECT s, t FROM hot_{name} WHERE v > 50 UNION ALL \
             SELECT s, t FROM cold_{name}) p ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id"
        )
    };
    for name in ["a", "b"] {
        let sql = query(name);
        let (kept, found) = answer(&ctx, &sql).await;
        assert_eq!(found, 0, "{sql}");
        set(&ctx, "rmq.keep_indexes", "false");
        assert!(kept == answer(&ctx, &sql).await.0, "{sql}");
        set(&ctx, "rmq.keep_indexes", "true");
    }
}

/// Two tables over one file, which read its column as different types.
#[tokio::test(flavor = "multi_thread")]
async fn tables_of_other_types_over_the_same_file_are_told_apart() {
    let ctx = tables().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a.parquet");
    write(
        &ctx,
        &file,
        "SELECT value AS t, value + 0.6e0 AS v FROM range(0, 100)",
    )
    .await;
    settle().await;
    for (name, of_v) in [("whole", "DOUBLE"), ("rounded", "DECIMAL(10, 0)")] {
        let sql = format!(
            "CREATE EXTERNAL TABLE {name} (t BIGINT, v {of_v}) STORED AS PARQUET LOCATION '{}'",
            file.display()
        );
        run(&ctx, &sql).await.expect("a table");
    }
    let mut answers = vec![];
    for name in ["whole", "rounded", "whole", "rounded"] {
        let sql = format!(
            "SELECT q.id, sum(x.v) FROM q JOIN (SELECT t, CAST(v AS BIGINT) AS v FROM {name}) x ON x.t BETWEEN q.a AND q.b \
             GROUP BY q.id"
        );
        answers.push(answer(&ctx, &sql).await);
    }
    assert!(answers[0].0 != answers[1].0);
    for i in [0, 1] {
        assert!(answers[i].0 == answers[i + 2].0);
        assert_eq!((answers[i].1, answers[i + 2].1), (0, 1));
    }
}

/// A function whose value may be another one in the next query.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Rate(Signature);

static RATE: AtomicI64 = AtomicI64::new(1);

impl ScalarUDFImpl for Rate {
    fn name(&self) -> &'static str {
        "rate"
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let values = args.args[0].to_array(args.number_rows)?;
        let values = values.as_primitive::<Int64Type>();
        let rate = RATE.load(Ordering::SeqCst);
        let values: Int64Array = values.iter().map(|v| Some(v? * rate)).collect();
        Ok(ColumnarValue::Array(Arc::new(values)))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_the_next_query_may_not_have_are_not_kept() {
    let ctx = tables().await;
    let rate = Rate(Signature::exact(vec![DataType::Int64], Volatility::Stable));
    ctx.register_udf(ScalarUDF::from(rate));
    let plain = without_keeping(&ctx).await;
    let rate = Rate(Signature::exact(vec![DataType::Int64], Volatility::Stable));
    plain.register_udf(ScalarUDF::from(rate));
    for sql in [
        "SELECT q.id, (SELECT sum(rate(p.v)) FROM p WHERE p.t BETWEEN q.a AND q.b) FROM q",
        "SELECT q.id, (SELECT min(p.v) FROM p WHERE rate(p.t) BETWEEN q.a AND q.b) FROM q",
        "SELECT q.id, p.id FROM q JOIN p ON p.t <= q.b AND (q.a < rate(p.u) OR rate(p.u) IS NULL)",
        "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.t BETWEEN q.a AND q.b AND rate(p.v) > q.v)",
    ] {
        for rate in [1, 2] {
            RATE.store(rate, Ordering::SeqCst);
            let (expected, _) = answer(&plain, sql).await;
            let (rows, found) = answer(&ctx, sql).await;
            assert!(rows == expected, "{rate}: {sql}");
            // What is computed for pairs is computed again.
            assert!(
                found == 0 || sql.contains("rate(p.u)") || sql.contains("rate(p.v) >"),
                "{sql}"
            );
        }
    }
}

/// Readers ask while a writer inserts: they see all rows that were there before they asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_readers_see_what_was_inserted() {
    let ctx = tables().await;
    let count = "SELECT CAST(sum(c) AS BIGINT) FROM (SELECT q.id, count(p.id) AS c FROM q JOIN p ON p.t BETWEEN q.a - 2000 AND q.b + 2000 \
                 GROUP BY q.id)";
    assert_eq!(bigint(&ctx, count).await, Some(300 * 700));
    let inserted = Arc::new(AtomicI64::new(700));
    let readers = [(); 3].map(|()| {
        let (ctx, inserted) = (ctx.clone(), Arc::clone(&inserted));
        tokio::spawn(async move {
            for _ in 0..25 {
                let before = inserted.load(Ordering::SeqCst);
                let pairs = bigint(&ctx, count).await.expect("a sum");
                assert!(
                    pairs % 300 == 0 && pairs >= 300 * before,
                    "{pairs} {before}"
                );
            }
        })
    });
    for i in 0..40 {
        let sql = format!("INSERT INTO p {}", rows(700 + i, 1));
        run(&ctx, &sql).await.expect("a row");
        inserted.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
    }
    for reader in readers {
        reader.await.expect("a reader");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_of_a_replaced_table_is_released() {
    let ctx = tables().await;
    let pool = Arc::clone(&ctx.runtime_env().memory_pool);
    assert_eq!(pool.reserved(), 0);
    let mut sizes = vec![];
    for round in 0..4 {
        let sql = format!("CREATE OR REPLACE TABLE p AS {}", rows(round, 5000));
        run(&ctx, &sql).await.expect("a table");
        for sql in [QUERIES[0], QUERIES[4]] {
            answer(&ctx, sql).await;
        }
        sizes.push(pool.reserved());
    }
    for i in 0..3 {
        let sql = format!("INSERT INTO p {}", rows(6000 + i, 1));
        run(&ctx, &sql).await.expect("a row");
        for sql in [QUERIES[0], QUERIES[4]] {
            answer(&ctx, sql).await;
        }
        assert_eq!(count_of_kept(&ctx).await, Some(1));
    }
    assert!(
        sizes[0] > 5000 * 8 && sizes[3] < sizes[0] * 3 / 2,
        "{sizes:?}"
    );
    run(&ctx, "DROP TABLE p").await.expect("p");
    assert_eq!(count_of_kept(&ctx).await, Some(0));
    assert_eq!(pool.reserved(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_is_limited() {
    let ctx = tables().await;
    answer(&ctx, QUERIES[0]).await;
    let bytes = bigint(&ctx, "SELECT CAST(sum(bytes) AS BIGINT) FROM rmq_indexes()").await;
    let bytes = bytes.expect("bytes");
    // Room for one of its size, the newest.
    set(&ctx, "rmq.index_memory_limit", &(bytes * 3 / 2).to_string());
    let another = QUERIES[0].replace("q.b GROUP", "q.b AND p.v > 0 GROUP");
    for (sql, found) in [
        (QUERIES[0], 1),
        (&another, 0),
        (&another, 1),
        (QUERIES[0], 0),
    ] {
        assert_eq!(answer(&ctx, sql).await.1, found, "{sql}");
        assert_eq!(count_of_kept(&ctx).await, Some(1));
    }
    // None that is larger than the limit.
    set(&ctx, "rmq.index_memory_limit", "100");
    answer(&ctx, &QUERIES[0].replace("min", "max")).await;
    assert_eq!(answer(&ctx, &QUERIES[0].replace("min", "max")).await.1, 0);
}

/// What saves least for its bytes goes first, although it has been used since. What is not used goes in the end.
#[tokio::test(flavor = "multi_thread")]
async fn what_saves_least_is_evicted_first() {
    let ctx = tables().await;
    let bytes = async || {
        let sql = "SELECT CAST(sum(bytes) AS BIGINT) FROM rmq_indexes()";
        bigint(&ctx, sql).await.expect("bytes")
    };
    let narrow = "SELECT q.id, count(*) FROM q JOIN p ON p.t BETWEEN q.a AND q.b GROUP BY q.id";
    let wide = |i: usize| {
        format!(
            "SELECT q.id, min(p.v), max(p.v), min(p.u), max(p.u), sum(p.v * 2), min(p.id), max(p.id) \
             FROM q JOIN p ON p.t + {i} BETWEEN q.a AND q.b GROUP BY q.id"
        )
    };
    answer(&ctx, narrow).await;
    let of_narrow = bytes().await;
    answer(&ctx, &wide(0)).await;
    let of_wide = bytes().await - of_narrow;
    println!("{of_narrow} and {of_wide} bytes");
    assert!(of_wide > 4 * of_narrow);
    // Room for one of each.
    let limit = of_narrow + of_wide * 3 / 2;
    set(&ctx, "rmq.index_memory_limit", &limit.to_string());
    answer(&ctx, &wide(1)).await;
    assert_eq!(answer(&ctx, narrow).await.1, 1);
    assert_eq!(answer(&ctx, &wide(0)).await.1, 0);
    assert_eq!(answer(&ctx, &wide(0)).await.1, 1);
    let mut evictions = 2;
    let is_kept = async || {
        let sql = "SELECT count(*) FROM rmq_indexes() WHERE \"column\" = 'p.t' OR \"column\" = 't'";
        bigint(&ctx, sql).await != Some(0)
    };
    while is_kept().await {
        answer(&ctx, &wide(evictions)).await;
        evictions += 1;
        assert!(evictions < 100);
    }
    println!("{evictions} evictions");
    assert!(evictions > 4);
}

/// Other operators get that memory back. A pool that was set later and does not know what is kept keeps nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_limited_pool_keeps_what_gives_way() {
    let tables = tables().await;
    let plain = without_keeping(&tables).await;
    let pool = Arc::new(GreedyMemoryPool::new(1 << 30));
    let ctx = joining(session_of_pool(
        SessionConfig::new(),
        Arc::clone(&pool) as _,
    ));
    set(&ctx, "rmq.engine", "cpu");
    share(&tables, &ctx).await;
    for sql in QUERIES {
        found_by(&ctx, &plain, sql).await;
    }
    for sql in [QUERIES[0], QUERIES[4], QUERIES[13]] {
        assert!(found_by(&ctx, &plain, sql).await > 0, "{sql}");
        let origins = explained(&ctx, "EXPLAIN", sql).await;
        assert_eq!(origins, ["kept"], "{sql}");
    }
    let memory = MemoryConsumer::new("another operator");
    let memory = memory.register(&ctx.runtime_env().memory_pool);
    memory.try_grow(1 << 30).expect("all memory");
    assert_eq!(count_of_kept(&ctx).await, Some(0));
    drop(memory);
    assert_eq!(pool.reserved(), 0);
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool) as _);
    let state = SessionStateBuilder::new_from_existing(ctx.state())
        .with_runtime_env(runtime.build_arc().expect("an environment"));
    let set_later = SessionContext::new_with_state(state.build());
    for _ in 0..2 {
        assert_eq!(found_by(&set_later, &plain, QUERIES[0]).await, 0);
    }
    assert_eq!(pool.reserved(), 0);
}

/// A plan that runs again finds what its first run has kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_runs_again_finds_it() {
    let ctx = tables().await;
    let plan = ctx.sql(QUERIES[0]).await.expect("a query");
    let plan = plan.create_physical_plan().await.expect("a plan");
    let first = collect(Arc::clone(&plan), ctx.task_ctx())
        .await
        .expect("rows");
    let again = Arc::clone(&plan).reset_state().expect("a plan");
    let second = collect(Arc::clone(&again), ctx.task_ctx())
        .await
        .expect("rows");
    assert_eq!(lines(&first), lines(&second));
    assert_eq!(metric(&again, "index_kept"), 1);
}

/// The name and the rows of each index that has a name.
pub async fn named(ctx: &SessionContext) -> Vec<String> {
    let sql = "SELECT name, \"column\", rows FROM rmq_indexes() WHERE name IS NOT NULL ORDER BY name, kind";
    lines(&[run(ctx, sql).await.expect("a list")])
}

/// Rows sorted by CREATE INDEX, which reads no values, serve queries of every form, also after their table has changed.
#[tokio::test(flavor = "multi_thread")]
async fn queries_find_named_indexes() {
    let ctx = tables().await;
    let plain = without_keeping(&ctx).await;
    let create = "CREATE INDEX by_time ON p USING rmq (s, t)";
    run(&ctx, create).await.expect("an index");
    for change in [
        None,
        Some(format!("INSERT INTO p {}", rows(700, 30))),
        Some("DELETE FROM p WHERE id % 9 = 1".to_string()),
        Some(format!("CREATE OR REPLACE TABLE p AS {}", rows(50, 500))),
    ] {
        if let Some(change) = &change {
            run(&ctx, change).await.expect("a change");
            if change.starts_with("CREATE") {
                plain.deregister_table("p").expect("p");
                plain.deregister_table("q").expect("q");
                share(&ctx, &plain).await;
            }
            // The first query sorts the rows again.
            answer(&ctx, QUERIES[0]).await;
        }
        for sql in QUERIES {
            let (expected, _) = answer(&plain, sql).await;
            let (rows, found) = answer(&ctx, sql).await;
            assert!(rows == expected, "{change:?}: {sql}");
            let by_s_and_t = sql.contains("p.s = q.s AND p.t") && !sql.contains("(SELECT s, t");
            assert!(found > 0 || !by_s_and_t, "{change:?}: {sql}");
        }
        let listed = named(&ctx).await;
        let count = bigint(&ctx, "SELECT count(*) FROM p")
            .await
            .expect("a count");
        assert_eq!(listed, [format!("by_time | s, t | {count}")], "{change:?}");
    }
    run(&ctx, "DROP TABLE rmq.by_time").await.expect("an index");
    assert_eq!(named(&ctx).await, Vec::<String>::new());
}

/// The files of a table that has just been written are waited for.
#[tokio::test(flavor = "multi_thread")]
async fn indexes_of_files_are_found_until_these_change() {
    let ctx = tables().await;
    let folder = tempfile::tempdir().expect("a folder");
    for (i, name) in ["a.parquet", "b.parquet", "c.parquet"].iter().enumerate() {
        write(&ctx, &folder.path().join(name), &rows(i * 300, 300)).await;
    }
    let plain = without_keeping(&ctx).await;
    for session in [&ctx, &plain] {
        session.deregister_table("p").expect("p");
    }
    for ctx in [&ctx, &plain] {
        let no_cache = "SET datafusion.runtime.list_files_cache_limit = '0K'";
        run(ctx, no_cache).await.expect("an option");
        let p = format!(
            "CREATE EXTERNAL TABLE p STORED AS PARQUET LOCATION '{}'",
            folder.path().display()
        );
        run(ctx, &p).await.expect("p");
    }
    for create in [
        "CREATE INDEX by_time ON p USING rmq (s, t)",
        "CREATE INDEX lowest ON p USING rmq (v)",
    ] {
        run(&ctx, create).await.expect(create);
    }
    let by_position = "SELECT id, range_argmin('p.v', id, id + 20) FROM q";
    let compare = async |is_found: bool| {
        for sql in [0, 3, 4, 6, 10, 11, 12].map(|i| QUERIES[i]) {
            let found = found_by(&ctx, &plain, sql).await;
            assert_eq!(found > 0, is_found, "{sql}");
        }
        let [expected, found] = [
            answer(&plain, by_position).await,
            answer(&ctx, by_position).await,
        ];
        assert!(found.0 == expected.0);
    };
    compare(true).await;
    assert_eq!(
        named(&ctx).await,
        [
            "by_time | s, t | 900",
            "lowest | v | 900",
            "lowest | v | 900"
        ]
    );
    let changed = folder.path().join("b.parquet");
    write(&ctx, &changed, &rows(2000, 100)).await;
    // Too new to be kept, however long the queries take.
    let file = std::fs::File::options().write(true).open(&changed);
    let file = file.expect("a file");
    let later = SystemTime::now() + Duration::from_hours(1);
    file.set_modified(later).expect("a time");
    compare(false).await;
}

/// An index with a name is kept where the memory pool has a limit, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_limited_pool_keeps_named_indexes() {
    let tables = tables().await;
    let plain = without_keeping(&tables).await;
    let pool = Arc::new(GreedyMemoryPool::new(1 << 26));
    let ctx = joining(session_of_pool(SessionConfig::new(), pool));
    set(&ctx, "rmq.engine", "cpu");
    share(&tables, &ctx).await;
    let create = "CREATE INDEX by_time ON p USING rmq (s, t)";
    run(&ctx, create).await.expect("an index");
    let reserved = ctx.runtime_env().memory_pool.reserved();
    assert!(reserved > 0);
    for sql in [QUERIES[0], QUERIES[4], QUERIES[12]] {
        for _ in 0..2 {
            assert!(found_by(&ctx, &plain, sql).await > 0, "{sql}");
        }
        // Values give way, the rows do not.
        let memory = MemoryConsumer::new("another operator");
        let memory = memory.register(&ctx.runtime_env().memory_pool);
        let pool = &ctx.runtime_env().memory_pool;
        assert!(pool.reserved() > reserved, "{sql}");
        // The order of the rows, which the third query needs, is made for the first value and stays with the rows.
        let rest = (1 << 26) - reserved - 700 * size_of::<u32>();
        memory.try_grow(rest).expect("the memory of the values");
        memory
            .try_grow(reserved)
            .expect_err("the memory of the rows");
    }
    let pool = Arc::new(GreedyMemoryPool::new(10_000));
    let small = joining(session_of_pool(SessionConfig::new(), pool));
    share(&tables, &small).await;
    let error = run(&small, create).await.expect_err("too little memory");
    assert!(
        error.to_string().contains("CREATE INDEX by_time"),
        "{error}"
    );
    assert_eq!(named(&small).await, Vec::<String>::new());
}

/// Batches of another size may come in another order.
#[tokio::test(flavor = "multi_thread")]
async fn batches_of_another_size_are_told_apart() {
    let ctx = tables().await;
    // The batch with the later keys first.
    for sql in [
        "SET datafusion.execution.target_partitions = 1",
        "CREATE OR REPLACE TABLE p AS SELECT 's1' AS s, 1000 + value * 7919 % 500 AS t, value AS v, value * 3 AS w FROM range(0, 400)",
        "INSERT INTO p SELECT 's1', value * 7919 % 500, value, value * 5 FROM range(0, 400)",
        "SET datafusion.execution.target_partitions = 4",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    for from in ["p", "(SELECT * FROM p WHERE v > 3)"] {
        let sum = |value: &str| {
            format!(
                "SELECT q.id, sum(p.{value}) FROM q JOIN {from} p ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id"
            )
        };
        for (value, size) in [("v", "8192"), ("w", "100"), ("v", "64"), ("w", "8192")] {
            set(&ctx, "datafusion.execution.batch_size", size);
            let (found, _) = answer(&ctx, &sum(value)).await;
            set(&ctx, "rmq.keep_indexes", "false");
            let (expected, _) = answer(&ctx, &sum(value)).await;
            set(&ctx, "rmq.keep_indexes", "true");
            assert!(found == expected, "{from}, {value}, {size}");
        }
    }
}
