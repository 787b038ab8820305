//! Build sides that devices have sorted, kept between queries: found again while their tables stay as they are, if
//! devices have the values that a query needs. With `RMQ_TEST_ENGINE=cuda` it is a GPU, otherwise devices are threads.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use datafusion::prelude::{SessionConfig, SessionContext};
use rmq_engine::cost_model::Costs;
use rmq_testing::runs;

use crate::fake::{Fake, device_error};
use crate::kept::{QUERIES, answer, explained, joining, settle, tables, write};
use crate::range_join::{lines, metric};
use crate::spilling::share;
use crate::support::{bigint, cpu_session, engine, run, session, set, skipped};

/// Joins that devices run.
pub const ON_DEVICES: [&str; 6] = [
    QUERIES[0],
    QUERIES[1],
    QUERIES[2],
    "SELECT q.id, first_value(p.v ORDER BY p.t), max(p.u) FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b \
     GROUP BY q.id",
    "SELECT q.id, last_value(p.s ORDER BY p.t), count(p.v), avg(p.v) FROM q JOIN p ON p.t BETWEEN q.a AND q.b \
     GROUP BY q.id",
    "SELECT q.id, arg_min(p.id, p.v), min(p.s) FROM q LEFT JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b \
     GROUP BY q.id",
];

fn is_real() -> bool {
    engine().as_deref() == Some("cuda")
}

/// A session of these devices, or of a GPU, over the tables of another one.
async fn on_devices(fake: &Arc<Fake>, tables: &SessionContext) -> SessionContext {
    if is_real() {
        let ctx = joining(session());
        share(tables, &ctx).await;
        return ctx;
    }
    on_threads(fake, tables).await
}

/// A session of simulated devices over the tables of another one.
async fn on_threads(fake: &Arc<Fake>, tables: &SessionContext) -> SessionContext {
    let ctx = joining(fake.session(&[("rmq.engine", "cuda")]));
    share(tables, &ctx).await;
    ctx
}

async fn plain(tables: &SessionContext) -> SessionContext {
    let ctx = joining(cpu_session());
    set(&ctx, "rmq.keep_indexes", "false");
    share(tables, &ctx).await;
    ctx
}

/// Bytes of a device that what is kept takes.
async fn device_bytes(ctx: &SessionContext) -> i64 {
    let sql = "SELECT CAST(sum(device_bytes) AS BIGINT) FROM rmq_indexes()";
    bigint(ctx, sql).await.unwrap_or(0)
}

/// Bytes of host memory that what is kept takes.
async fn host_bytes(ctx: &SessionContext) -> i64 {
    let sql = "SELECT CAST(sum(bytes) AS BIGINT) FROM rmq_indexes()";
    bigint(ctx, sql).await.unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_query_finds_what_devices_have_sorted() {
    if skipped() {
        return;
    }
    let fake = Fake::real();
    let tables = tables().await;
    let (ctx, plain) = (on_devices(&fake, &tables).await, plain(&tables).await);
    for sql in ON_DEVICES {
        let (expected, _) = answer(&plain, sql).await;
        let (first, _) = answer(&ctx, sql).await;
        assert!(first == expected, "{sql}");
        let built = fake.built.load(Relaxed);
        let (second, found) = answer(&ctx, sql).await;
        assert!(second == expected, "{sql}");
        assert_eq!((found, fake.built.load(Relaxed)), (1, built), "{sql}");
    }
    let listed = run(
        &ctx,
        "SELECT DISTINCT \"table\", \"column\", type, rows, device_bytes > 0, bytes > 0, engine FROM rmq_indexes()",
    );
    let listed = lines(&[listed.await.expect("a list")]);
    assert_eq!(
        listed,
        [
            "NULL | s, t | Int64 | 700 | true | true | cuda:0",
            "NULL | t | Int64 | 700 | true | true | cuda:0"
        ]
    );
    assert!(device_bytes(&ctx).await > 0);
}

/// EXPLAIN tells what the engine finds that joins.
#[tokio::test(flavor = "multi_thread")]
async fn explain_tells_what_the_engine_finds() {
    if skipped() {
        return;
    }
    let tables = tables().await;
    let ctx = on_devices(&Fake::real(), &tables).await;
    let sums = QUERIES[0].replace("min(p.v)", "sum(p.u)");
    // The CPU joins rows.
    for (sql, expected) in [
        (QUERIES[4], 0),
        (QUERIES[4], 1),
        (QUERIES[0], 0),
        (QUERIES[0], 1),
        // The values are added.
        (&sums, 1),
        (&sums, 1),
    ] {
        let told = explained(&ctx, "EXPLAIN", sql).await;
        let told = told.iter().filter(|origin| *origin == "kept").count();
        let (_, found) = answer(&ctx, sql).await;
        assert_eq!((told, found), (expected, expected), "{sql}");
    }
}

/// Values are added to the rows that devices have, each once; other keys and filters have rows of their own.
#[tokio::test(flavor = "multi_thread")]
async fn values_are_added_to_rows_on_devices() {
    if skipped() {
        return;
    }
    let fake = Fake::real();
    let tables = tables().await;
    let (ctx, plain) = (on_devices(&fake, &tables).await, plain(&tables).await);
    let few = "SELECT q.id, min(p.v), count(*) FROM q JOIN p ON p.s = q.s AND p.t BETWEEN q.a AND q.b GROUP BY q.id";
    let more = few.replace("min(p.v)", "min(p.v), max(p.v), sum(p.u)");
    // The sides that are kept then, and the columns that have been added to them.
    for (sql, is_found, kept, added) in [
        (few.to_string(), false, 1, 0),
        (few.replace("q.b", "q.b - 7"), true, 1, 0),
        (few.replace("min(p.v), ", ""), true, 1, 0),
        (
            few.replace("p.t BETWEEN q.a AND", "p.t > q.a AND p.t <"),
            true,
            1,
            0,
        ),
        // One that takes the place of the minima alone.
        (more.clone(), true, 1, 2),
        (few.to_string(), true, 1, 2),
        (few.replace("min(p.v)", "max(p.v), sum(p.u)"), true, 1, 2),
        (few.replace("min", "sum"), true, 1, 3),
        (few.replace("min(p.v)", "arg_min(p.u, p.v)"), true, 1, 5),
        (few.replace("min(p.v)", "arg_min(p.u, p.v)"), true, 1, 5),
        (few.replace("min(p.v)", "arg_max(p.s, p.u)"), true, 1, 6),
        (
            few.replace("q.b GROUP", "q.b AND p.v > 3 GROUP"),
            false,
            2,
            6,
        ),
        (few.replace("p.t BETWEEN", "p.u BETWEEN"), false, 3, 6),
        (more, true, 3, 6),
    ] {
        let (expected, _) = answer(&plain, &sql).await;
        let (rows, found) = answer(&ctx, &sql).await;
        assert!(rows == expected, "{sql}");
        let count = bigint(&ctx, "SELECT count(*) FROM rmq_indexes()").await;
        assert_eq!((found > 0, count), (is_found, Some(kept)), "{sql}");
        if !is_real() {
            let columns = fake.columns_added.load(Relaxed);
            assert_eq!(
                (columns, fake.built.load(Relaxed)),
                (added, kept as usize),
                "{sql}"
            );
            // What has been replaced is gone.
            let listed = device_bytes(&ctx).await;
            assert_eq!(listed, fake.held.load(Relaxed) as i64, "{sql}");
        }
    }
}

/// An UPDATE of a value leaves the rows as they are, and the old values are gone once the new ones have been added.
#[tokio::test(flavor = "multi_thread")]
async fn updated_values_take_the_place_of_the_old_ones() {
    if skipped() {
        return;
    }
    let fake = Fake::real();
    let tables = tables().await;
    let (ctx, plain) = (on_devices(&fake, &tables).await, plain(&tables).await);
    let mut bytes = None;
    for update in 0..4 {
        let (expected, _) = answer(&plain, QUERIES[0]).await;
        let (rows, found) = answer(&ctx, QUERIES[0]).await;
        assert_eq!((rows == expected, found), (true, usize::from(update > 0)));
        let now = device_bytes(&ctx).await;
        assert_eq!(*bytes.get_or_insert(now), now);
        run(&ctx, "UPDATE p SET v = v + 1 WHERE id % 3 = 1")
            .await
            .expect("an update");
    }
    if !is_real() {
        assert_eq!(fake.built.load(Relaxed), 1);
        assert_eq!(fake.columns_added.load(Relaxed), 3);
    }
}

/// What appended rows are merged by is not read of the others where no aggregate needs it.
#[tokio::test(flavor = "multi_thread")]
async fn appended_rows_have_nothing_read_of_the_others() {
    if skipped() {
        return;
    }
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    for sql in [
        "CREATE TABLE p AS SELECT value AS id, 's' || (value % 5) AS s, value * 13 % 9973 AS t, \
         (value % 101)::double AS v FROM range(0, 100000)",
        "CREATE TABLE q AS SELECT value AS id, 's' || (value % 5) AS s, value * 37 AS a, value * 37 + 40 AS b \
         FROM range(0, 50)",
    ] {
        run(&ctx, sql).await.expect("a table");
    }
    let (ctx, plain) = (on_devices(&Fake::real(), &ctx).await, plain(&ctx).await);
    let mut before = 0;
    for found in [0, 1, 1] {
        let (expected, _) = answer(&plain, QUERIES[0]).await;
        assert!(answer(&ctx, QUERIES[0]).await == (expected, found));
        // A segment of few rows takes some 130 kB; a key of each of the others would take 800 kB.
        let bytes = host_bytes(&ctx).await;
        assert!(before == 0 || bytes - before < 400_000, "{before}, {bytes}");
        before = bytes;
        let more = "INSERT INTO p SELECT id, s, t + 1, v - 9 FROM p LIMIT 3000";
        run(&ctx, more).await.expect("rows");
    }
}

/// Rows that are appended go up alone, and what the segments answer is merged. Sides are sorted anew together once they
/// are no longer much larger than what follows.
#[tokio::test(flavor = "multi_thread")]
async fn appended_rows_go_up_alone() {
    if skipped() {
        return;
    }
    let fake = Fake::real();
    // One partition, to whose end INSERT appends.
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    for sql in [
        "CREATE TABLE p AS SELECT value AS id, 's' || (value * 7 % 5) AS s, value * 13 % 9973 AS t, \
         CASE WHEN value % 11 > 0 THEN value % 17 END AS u, \
         CASE WHEN value % 7 > 0 THEN (value * 31 % 101)::double END AS v FROM range(0, 9000)",
        "CREATE TABLE q AS SELECT value AS id, 's' || (value % 6) AS s, value * 37 % 9973 AS a, \
         value * 37 % 9973 + 40 * (value % 9) - 30 AS b FROM range(0, 400)",
    ] {
        run(&ctx, sql).await.expect("a table");
    }
    let (ctx, plain) = (on_devices(&fake, &ctx).await, plain(&ctx).await);
    set(&ctx, "datafusion.execution.target_partitions", "1");
    for sql in ON_DEVICES {
        let expected = answer(&plain, sql).await;
        assert!(answer(&ctx, sql).await.0 == expected.0, "{sql}");
    }
    let sides = bigint(&ctx, "SELECT count(*) FROM rmq_indexes()").await;
    assert_eq!(sides, Some(2));
    let built = fake.rows_built.load(Relaxed);
    let mut segments = 0;
    for rows in [10, 700, 20, 800, 1100] {
        let sql = format!(
            "INSERT INTO p SELECT id + 10000, s, t + 3, u, v - 20 FROM p WHERE id < 9000 LIMIT {rows}"
        );
        run(&ctx, &sql).await.expect("rows");
        for sql in ON_DEVICES {
            let (expected, _) = answer(&plain, sql).await;
            let (answers, found) = answer(&ctx, sql).await;
            assert!(answers == expected, "{rows}, {sql}");
            assert_eq!(found, 1, "{rows}, {sql}");
        }
        let plan = ctx.sql(ON_DEVICES[0]).await.expect("a query");
        let plan = plan.create_physical_plan().await.expect("a plan");
        let batches = datafusion::physical_plan::collect(Arc::clone(&plan), ctx.task_ctx()).await;
        batches.expect("answers");
        segments = segments.max(metric(&plan, "index_segments"));
    }
    assert!(segments >= 2, "{segments}");
    if !is_real() {
        // 2,630 rows on each side, each a few times, and never the others.
        let again = fake.rows_built.load(Relaxed) - built;
        assert!((2 * 2630..2 * 3 * 2630).contains(&again), "{again}");
        // A failure on the way is the CPU's to answer.
        set(&ctx, "rmq.engine", "auto");
        for step in 1..30 {
            *fake.join_fault.lock().expect("a lock") = Some((step, device_error(0)));
            let (expected, _) = answer(&plain, ON_DEVICES[3]).await;
            let (answers, _) = answer(&ctx, ON_DEVICES[3]).await;
            assert!(answers == expected, "step {step}");
            fake.failed.store(false, Relaxed);
        }
    }
}

/// Statements in random order, also on the CPU of the same session. No answer is one of tables as they were.
#[tokio::test(flavor = "multi_thread")]
async fn changed_tables_have_new_answers() {
    if skipped() {
        return;
    }
    for mut random in runs("build sides kept on devices", &[]) {
        let fake = Fake::real();
        let tables = tables().await;
        let (ctx, plain) = (on_devices(&fake, &tables).await, plain(&tables).await);
        let (mut found, mut sql) = (0, ON_DEVICES[0]);
        for _ in 0..60 {
            let change = match random.below(14) {
                0 => Some(
                    "INSERT INTO p SELECT id + 1000, s, t + 3, u, v - 200 FROM p LIMIT 9"
                        .to_string(),
                ),
                1 => Some(format!(
                    "DELETE FROM p WHERE id % 97 = {}",
                    random.below(97)
                )),
                2 => Some(format!(
                    "UPDATE p SET v = v + 1 WHERE id % 5 = {}",
                    random.below(5)
                )),
                3 => Some(format!(
                    "SET rmq.engine = '{}'",
                    ["cpu", "cuda", "cuda"][random.below(3)]
                )),
                4 if !is_real() => Some("SET rmq.devices = '1'".to_string()),
                5 => Some("SET rmq.devices = '0'".to_string()),
                _ => None,
            };
            if let Some(sql) = change {
                run(&ctx, &sql).await.expect("a change");
                continue;
            }
            if random.below(2) == 0 {
                sql = ON_DEVICES[random.below(ON_DEVICES.len())];
            }
            let (expected, _) = answer(&plain, sql).await;
            let (rows, kept) = answer(&ctx, sql).await;
            assert!(rows == expected, "{sql}");
            found += kept;
        }
        println!("{found} found");
        assert!(found > 3, "{found}");
        for table in ["p", "q"] {
            for session in [&tables, &ctx, &plain] {
                session.deregister_table(table).expect("a table");
            }
        }
        // A task of the last query may end after its last row was returned.
        let begin = Instant::now();
        while device_bytes(&ctx).await > 0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "still kept");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        while fake.held.load(Relaxed) > 0 {
            assert!(begin.elapsed() < Duration::from_secs(10));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_files_are_read_again() {
    if skipped() {
        return;
    }
    let fake = Fake::real();
    let tables = tables().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("p.parquet");
    write(&tables, &file, "SELECT * FROM p").await;
    settle().await;
    let (ctx, plain) = (on_devices(&fake, &tables).await, plain(&tables).await);
    for session in [&ctx, &plain] {
        session.deregister_table("p").expect("p");
        let sql = format!(
            "CREATE EXTERNAL TABLE p STORED AS PARQUET LOCATION '{}'",
            file.display()
        );
        run(session, &sql).await.expect("a table");
    }
    for kept in [0, 1] {
        let (expected, _) = answer(&plain, ON_DEVICES[0]).await;
        assert_eq!(answer(&ctx, ON_DEVICES[0]).await, (expected, kept));
    }
    write(&tables, &file, "SELECT id, s, t, u, v - 5 AS v FROM p").await;
    settle().await;
    for kept in [0, 1] {
        let (expected, _) = answer(&plain, ON_DEVICES[0]).await;
        assert_eq!(answer(&ctx, ON_DEVICES[0]).await, (expected, kept));
    }
}

/// What is kept gives way to what a query needs, and is not found any more once a device has failed.
#[tokio::test(flavor = "multi_thread")]
async fn memory_of_devices_is_given_back() {
    if skipped() {
        return;
    }
    let fake = Fake::real();
    let tables = tables().await;
    let (ctx, plain) = (on_devices(&fake, &tables).await, plain(&tables).await);
    answer(&ctx, ON_DEVICES[0]).await;
    let limit = device_bytes(&ctx).await * 5;
    set(&ctx, "rmq.device_memory_limit", &limit.to_string());
    for sql in ON_DEVICES {
        let (expected, _) = answer(&plain, sql).await;
        let (rows, _) = answer(&ctx, sql).await;
        assert!(rows == expected, "{sql}");
        assert!(device_bytes(&ctx).await <= limit, "{sql}");
    }
    let kept = bigint(&ctx, "SELECT count(*) FROM rmq_indexes()").await;
    assert!(kept < Some(5), "{kept:?}");
    set(&ctx, "rmq.index_memory_limit", "1K");
    answer(&ctx, ON_DEVICES[0]).await;
    assert_eq!(device_bytes(&ctx).await, 0);
    assert_eq!(fake.held.load(Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cpu_takes_over_where_devices_fail_to_answer_from_what_they_keep() {
    // Devices cost nothing.
    let fake = Arc::new(Fake::default());
    let tables = tables().await;
    let (ctx, plain) = (on_threads(&fake, &tables).await, plain(&tables).await);
    set(&ctx, "rmq.engine", "auto");
    for sql in ON_DEVICES {
        let (expected, _) = answer(&plain, sql).await;
        answer(&ctx, sql).await;
        fake.join_fault
            .lock()
            .expect("a fault")
            .replace((1, rmq_engine::EngineError::OutOfMemory { bytes: 7 }));
        let (rows, found) = answer(&ctx, sql).await;
        assert!(rows == expected, "{sql}");
        assert_eq!(found, 1, "{sql}");
        let (rows, found) = answer(&ctx, sql).await;
        assert!(rows == expected, "{sql}");
        assert_eq!(found, 0, "{sql}");
    }
    set(&ctx, "rmq.engine", "cuda");
    answer(&ctx, ON_DEVICES[0]).await;
    fake.join_fault
        .lock()
        .expect("a fault")
        .replace((1, device_error(0)));
    let failed = run(&ctx, ON_DEVICES[0]).await.expect_err("a lost device");
    assert!(failed.to_string().contains("a test said so"), "{failed}");
}

/// `auto` takes the engine that has the rows, unless the other is faster with its build.
#[tokio::test(flavor = "multi_thread")]
async fn the_engine_that_has_the_rows_is_preferred() {
    let fake = Arc::new(Fake {
        costs: Costs {
            // A build on devices takes longer than all that the CPU does, and a query nothing.
            cuda_sort: 1e12,
            ..crate::fake::FREE
        },
        ..Fake::default()
    });
    let tables = tables().await;
    let ctx = on_threads(&fake, &tables).await;
    let engine = async |ctx: &SessionContext| {
        let plan = ctx.sql(ON_DEVICES[0]).await.expect("a query");
        let plan = plan.create_physical_plan().await.expect("a plan");
        let rows = datafusion::physical_plan::collect(Arc::clone(&plan), ctx.task_ctx());
        rows.await.expect("rows");
        (metric(&plan, "index_kept"), metric(&plan, "device_batches"))
    };
    set(&ctx, "rmq.engine", "auto");
    assert_eq!(engine(&ctx).await, (0, 0));
    assert_eq!(engine(&ctx).await, (1, 0));
    set(&ctx, "rmq.engine", "cuda");
    let (kept, batches) = engine(&ctx).await;
    assert!(kept == 0 && batches > 0);
    set(&ctx, "rmq.engine", "auto");
    let (kept, batches) = engine(&ctx).await;
    assert!(kept == 1 && batches > 0);
}
