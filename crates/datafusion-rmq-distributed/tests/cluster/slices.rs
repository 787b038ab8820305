//! Tasks that read what their windows reach of the searched side, and no more.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use datafusion::arrow::array::AsArray;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use datafusion_distributed::{
    DISTRIBUTED_DATAFUSION_TASK_ID_LABEL, DistributedMetricsFormat, display_plan_ascii,
    rewrite_distributed_plan_with_metrics,
};
use datafusion_rmq::{ByteSize, JoinModeChoice, RmqOptions};
use datafusion_rmq_distributed::worker;
use datafusion_rmq_proto::RmqCodec;
use futures::StreamExt;
use rmq_testing::{Random, runs};
use tempfile::TempDir;

use crate::answers::most_tasks_of_joins;
use crate::sliced_tables::{FILES, QUERIES, WHOLE, register, tables, with_tables, write};
use crate::support::{CLUSTER, Started, Workers, distributed_with, lines, local, run, start};

/// Workers that keep nothing: kept rows go first.
static FORGETFUL: LazyLock<Workers> = LazyLock::new(|| {
    let mut options = RmqOptions::default();
    options.keep_indexes = false;
    let workers = (0..3).map(|_| start(worker(&RmqCodec::default(), &options)));
    Workers::new(workers.collect())
});

/// Workers that read no row ahead: the row groups of a task's files tell what its windows reach.
static AT_ONCE: LazyLock<Workers> = LazyLock::new(|| {
    let mut options = RmqOptions::default();
    options.pruning_memory = ByteSize(1);
    let workers = (0..3).map(|_| start(worker(&RmqCodec::default(), &options)));
    Workers::new(workers.collect())
});

/// Workers that read few rows ahead: the keys of a task's files are read first, if nearest rows are sought.
static KEYS_FIRST: LazyLock<Workers> = LazyLock::new(|| {
    let mut options = RmqOptions::default();
    options.pruning_memory = FEW_KEYS;
    options.keep_indexes = false;
    let workers = (0..3).map(|_| start(worker(&RmqCodec::default(), &options)));
    Workers::new(workers.collect())
});

/// Room for some keys, and for fewer rows than a task has.
const FEW_KEYS: ByteSize = ByteSize(100 << 10);

async fn session(folder: &TempDir, mode: JoinModeChoice, limit: usize) -> SessionContext {
    let ctx = distributed_with(3, FORGETFUL.clone(), mode, limit);
    with_tables(&ctx, folder).await;
    ctx
}

/// What each task with a range join has scanned of a searched side that it has pruned.
async fn scanned(plan: Arc<dyn ExecutionPlan>) -> Vec<usize> {
    let format = DistributedMetricsFormat::PerTask;
    let plan = rewrite_distributed_plan_with_metrics(plan, format).await;
    let mut scanned = vec![];
    add_scanned(&plan.expect("metrics"), &mut scanned);
    scanned
}

fn add_scanned(plan: &Arc<dyn ExecutionPlan>, scanned: &mut Vec<usize>) {
    for metric in plan.metrics().iter().flat_map(|metrics| metrics.iter()) {
        let mut labels = metric.labels().iter();
        let is_of_task = labels.any(|label| label.name() == DISTRIBUTED_DATAFUSION_TASK_ID_LABEL);
        if is_of_task && metric.value().name() == "rows_scanned" {
            scanned.push(metric.value().as_usize());
        }
    }
    for input in plan.children() {
        add_scanned(input, scanned);
    }
}

/// A query that has run.
struct Executed {
    plan: Arc<dyn ExecutionPlan>,
    /// What each of its tasks has scanned.
    scanned: Vec<usize>,
    /// Its rows, as sorted lines.
    lines: Vec<String>,
    text: String,
}

async fn executed(ctx: &SessionContext, sql: &str) -> Executed {
    let plan = ctx.sql(sql).await.expect(sql).create_physical_plan().await;
    let plan = plan.expect(sql);
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await;
    let lines = pretty_format_batches(&batches.expect(sql)).expect("text");
    let mut lines: Vec<_> = lines.to_string().lines().map(str::to_string).collect();
    lines.sort();
    Executed {
        scanned: scanned(Arc::clone(&plan)).await,
        text: display_plan_ascii(plan.as_ref(), false),
        plan,
        lines,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_read_what_their_windows_reach() {
    let folder = tables().await;
    let (one, plain) = (local(), local());
    for ctx in [&one, &plain] {
        with_tables(ctx, &folder).await;
    }
    run(&plain, "SET rmq.rewrite = false").await;
    let mut expected = vec![];
    for sql in QUERIES {
        let rows = lines(&one, sql).await.expect(sql);
        assert!(rows.len() > 50, "{sql} has rows");
        assert_eq!(rows, lines(&plain, sql).await.expect(sql), "{sql}");
        expected.push(rows);
    }
    for (mode, limit, pruning) in [
        (JoinModeChoice::Auto, 64 << 20, "auto"),
        (JoinModeChoice::Auto, 64 << 20, "always"),
        (JoinModeChoice::Auto, 64 << 20, "never"),
        (JoinModeChoice::Collected, 64 << 20, "auto"),
        // A slice is within the limit, the whole side is not.
        (JoinModeChoice::Auto, 800 << 10, "auto"),
    ] {
        let ctx = session(&folder, mode, limit).await;
        run(&ctx, &format!("SET rmq.pruning = '{pruning}'")).await;
        for (number, (sql, expected)) in QUERIES.iter().zip(&expected).enumerate() {
            let found = executed(&ctx, sql).await;
            let (text, scanned) = (&found.text, &found.scanned);
            let case = format!("{mode}, {limit}, {pruning}: {sql}\n{text}\n{scanned:?}");
            assert_eq!(*expected, found.lines, "{case}");
            let explained = lines(&ctx, &format!("EXPLAIN {sql}")).await.expect(sql);
            let says_pruned = explained.concat().contains("index=pruned");
            if number >= QUERIES.len() - WHOLE || pruning == "never" {
                assert!(scanned.is_empty() && !says_pruned, "{case}");
                continue;
            }
            assert!(says_pruned, "{case}\n{explained:#?}");
            assert_eq!(most_tasks_of_joins(&found.plan, 1), 3, "{case}");
            assert!(!text.contains("BroadcastExec"), "{case}");
            assert_eq!(scanned.len(), 3, "{case}");
            let sum: usize = scanned.iter().sum();
            assert!(!scanned.contains(&0) && sum < 12_000, "{case}");
        }
    }
}

/// Each task reads little more than its slice, and the answer is that of one node.
async fn reads_little(ctx: &SessionContext, one: &SessionContext, sql: &str) {
    let Executed {
        scanned,
        lines: found,
        text,
        ..
    } = executed(ctx, sql).await;
    assert_eq!(scanned.len(), 3, "{text}");
    let most = scanned.iter().max();
    assert!(most < Some(&46_000), "{scanned:?}\n{text}");
    assert_eq!(found, lines(one, sql).await.expect(sql), "{sql}");
}

/// More rows of a task than are read ahead: its row groups tell what is read.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_read_no_row_ahead_read_slices() {
    let folder = tables().await;
    let one = local();
    with_tables(&one, &folder).await;
    let ctx = distributed_with(3, AT_ONCE.clone(), JoinModeChoice::Auto, 64 << 20);
    with_tables(&ctx, &folder).await;
    run(&ctx, "SET rmq.pruning_memory = '1'").await;
    for sql in [
        "SELECT w.id, (SELECT min(p.v) FROM p WHERE p.k BETWEEN w.k - 100 AND w.k) FROM w",
        "SELECT w.id, count(*) FROM w JOIN p ON p.g = w.g AND p.k BETWEEN w.k AND w.k + 200 WHERE w.id % 3 = 0 GROUP BY w.id",
    ] {
        reads_little(&ctx, &one, sql).await;
    }
}

/// Nearest rows of more rows than a task reads ahead: their keys tell what is read.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_read_keys_first_where_nearest_rows_are_sought() {
    let folder = tables().await;
    let w = "i AS id, i % 7 AS g, i * 3 AS k";
    write(30_000, w, FILES, &folder.path().join("w30")).await;
    let one = local();
    let ctx = distributed_with(3, KEYS_FIRST.clone(), JoinModeChoice::Auto, 1 << 20);
    for ctx in [&one, &ctx] {
        with_tables(ctx, &folder).await;
        register(ctx, "w30", folder.path()).await;
    }
    run(&ctx, &format!("SET rmq.pruning_memory = '{FEW_KEYS}'")).await;
    for sql in [
        "SELECT w.id, (SELECT max(p.k) FROM p WHERE p.g = w.g AND p.k <= w.k) FROM w30 w",
        "SELECT w.id, (SELECT p.v FROM p WHERE p.g = w.g AND p.k > w.k ORDER BY p.k LIMIT 1) FROM w30 w",
        "SELECT w.id, x.k, x.v FROM w30 w LEFT JOIN LATERAL (SELECT p.k, p.v FROM p WHERE p.g = w.g ORDER BY abs(p.k - w.k) LIMIT 2) x ON true",
        "SELECT w.id FROM w30 w WHERE EXISTS (SELECT 1 FROM p WHERE p.g = w.g AND p.k < w.k)",
    ] {
        reads_little(&ctx, &one, sql).await;
    }
}

/// Files are given to tasks in the order of their keys, so that those of a task follow one another: windows of half
/// a file's keys reach little more than those of the task's files.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_have_files_that_follow_one_another() {
    let folder = tables().await;
    let one = local();
    with_tables(&one, &folder).await;
    let ctx = session(&folder, JoinModeChoice::Auto, 64 << 20).await;
    for sql in [
        "SELECT w.id, (SELECT min(p.v) FROM p WHERE p.k BETWEEN w.k - 4999 AND w.k) FROM w",
        "SELECT w.id, (SELECT min(p.v) FROM p WHERE p.g = w.g AND p.k BETWEEN w.k AND w.k + 4999) FROM w",
    ] {
        reads_little(&ctx, &one, sql).await;
    }
    // Windows that reach most of the keys: what is sent once is less than what each task would read.
    let sql = "SELECT w.id, (SELECT min(p.v) FROM p WHERE p.k BETWEEN w.k - 90000 AND w.k + 90000) FROM w";
    let Executed { scanned, text, .. } = executed(&ctx, sql).await;
    assert!(
        text.contains("BroadcastExec") && scanned.is_empty(),
        "{text}"
    );
    let explained = lines(&ctx, &format!("EXPLAIN {sql}")).await.expect(sql);
    assert!(
        !explained.concat().contains("index=pruned"),
        "{explained:#?}"
    );
}

/// The probe rows of a task may come from others. A build side that is read in its order needs no plan for slices.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_an_exchange_are_read_ahead() {
    let folder = tables().await;
    let one = local();
    with_tables(&one, &folder).await;
    let ctx = session(&folder, JoinModeChoice::Collected, 64 << 20).await;
    let sql = "SELECT b.k, b.n, (SELECT p.id FROM p WHERE p.g = b.g AND p.k BETWEEN b.k - 50 AND b.k ORDER BY p.v, p.k DESC LIMIT 1) \
               FROM (SELECT g, k, count(*) AS n FROM q GROUP BY g, k) b";
    let Executed {
        scanned,
        lines: found,
        text,
        ..
    } = executed(&ctx, sql).await;
    assert!(
        text.contains("NetworkShuffleExec") && scanned.len() > 1,
        "{scanned:?}\n{text}"
    );
    assert!(
        scanned.iter().all(|rows| *rows < 10_000),
        "{scanned:?}\n{text}"
    );
    assert_eq!(found, lines(&one, sql).await.expect(sql), "{text}");
}

/// Rows of files in their order, which tasks keep, are merged in that order.
async fn in_order(ctx: &SessionContext) {
    let sql = "SELECT k FROM q WHERE k IS NOT NULL ORDER BY k";
    let batches = ctx.sql(sql).await.expect(sql).collect().await.expect(sql);
    let keys = batches.iter().flat_map(|batch| {
        let keys = cast(batch.column(0), &DataType::Int64).expect("integers");
        keys.as_primitive::<Int64Type>().values().to_vec()
    });
    assert!(keys.is_sorted(), "{sql}");
}

/// Random windows over many small files, against one node without pruning.
#[tokio::test(flavor = "multi_thread")]
async fn random_windows_of_tasks_reach_all_that_they_match() {
    for mut random in runs("slices", &[]) {
        let folder = tempfile::tempdir().expect("a folder");
        let (keys, files) = (1 + random.below(400), 1 + random.below(12));
        let value = |random: &mut Random| {
            let (factor, limit) = (1 + random.below(999), 1 + random.below(keys));
            format!(
                "CASE WHEN i % 13 > {} THEN i * {factor} % {limit} END",
                random.below(3)
            )
        };
        for (name, rows) in [("p", 1 + random.below(3000)), ("q", 1 + random.below(600))] {
            let sorted = random.below(2) == 0;
            let k = if sorted {
                "i / 3".to_string()
            } else {
                value(&mut random)
            };
            let [g, v] = [(); 2].map(|()| value(&mut random));
            let select = format!("i AS id, {g} AS g, {k} AS k, {v} AS v");
            write(rows, &select, files, &folder.path().join(name)).await;
        }
        let one = local();
        let (workers, ahead) = match random.below(3) {
            0 => (&CLUSTER, None),
            1 => (&AT_ONCE, Some(ByteSize(1))),
            _ => (&KEYS_FIRST, Some(FEW_KEYS)),
        };
        let ctx = distributed_with(3, Workers::clone(workers), JoinModeChoice::Auto, 64 << 20);
        if let Some(ahead) = ahead {
            run(&ctx, &format!("SET rmq.pruning_memory = '{ahead}'")).await;
        }
        for ctx in [&one, &ctx] {
            for name in ["p", "q"] {
                register(ctx, name, folder.path()).await;
            }
            run(ctx, "SET rmq.range_joins = 'always'").await;
        }
        run(&one, "SET rmq.rewrite = false").await;
        run(&ctx, "SET rmq.pruning = 'always'").await;
        in_order(&ctx).await;
        for _ in 0..6 {
            let equality = ["", "p.g = q.g AND", "p.g = q.g AND p.v = q.v AND"][random.below(3)];
            let window = match random.below(4) {
                0 => format!("p.k >= q.k - {}", random.below(20)),
                1 => format!("p.k < q.k + {}", random.below(20)),
                2 => "p.k BETWEEN q.k AND q.v".to_string(),
                _ => format!(
                    "p.k BETWEEN q.k - {} AND q.k + {}",
                    random.below(20),
                    random.below(20)
                ),
            };
            let sql = match random.below(6) {
                4 => format!(
                    "SELECT q.id, max(p.k) FROM q LEFT JOIN p ON {equality} p.k <= q.k GROUP BY q.id"
                ),
                5 => format!(
                    "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE {equality} {window})"
                ),
                0 => format!(
                    "SELECT q.id, min(p.v), avg(p.k) FROM q JOIN p ON {equality} {window} GROUP BY q.id"
                ),
                1 => format!(
                    "SELECT q.id, count(p.v), sum(p.id) FROM q LEFT JOIN p ON {equality} {window} GROUP BY q.id"
                ),
                2 => format!(
                    "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE {equality} {window} AND p.v > q.v)"
                ),
                _ => format!("SELECT q.id, p.id FROM q JOIN p ON {equality} {window}"),
            };
            let found = lines(&ctx, &sql).await.expect(&sql);
            assert_eq!(found, lines(&one, &sql).await.expect(&sql), "{sql}");
        }
    }
}

/// A query that is dropped leaves neither memory nor tasks on workers, whether they read probe rows ahead or join.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_query_in_slices_leaves_nothing_on_workers() {
    let folder = tables().await;
    let runtimes = [(); 2].map(|()| {
        let pool = Arc::new(FairSpillPool::new(400 << 20));
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc();
        runtime.expect("a runtime")
    });
    let workers = runtimes.each_ref().map(|runtime| {
        let worker = worker(&RmqCodec::default(), &RmqOptions::default());
        Started::new(worker.with_runtime_env(Arc::clone(runtime)))
    });
    let addresses = workers.iter().map(|worker| worker.address.clone());
    let addresses = Workers::new(addresses.collect());
    let ctx = distributed_with(3, addresses, JoinModeChoice::Auto, 64 << 20);
    with_tables(&ctx, &folder).await;
    let sql = "SELECT q.id, p.id FROM q JOIN p ON p.k BETWEEN q.k - 2000 AND q.k + 2000";
    let plan = ctx.sql(sql).await.expect(sql).create_physical_plan().await;
    let text = display_plan_ascii(plan.expect(sql).as_ref(), false);
    assert!(text.contains("slices of"), "{text}");
    let tasks = || {
        let all = workers
            .each_ref()
            .map(|worker| worker.runtime.metrics().num_alive_tasks());
        all.iter().sum::<usize>()
    };
    lines(&ctx, QUERIES[0])
        .await
        .expect("connections, which stay");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let idle = tasks();
    for has_begun in [true, false, true, false] {
        let frame = ctx.sql(sql).await.expect(sql);
        let mut rows = frame.execute_stream().await.expect(sql);
        if has_begun {
            rows.next().await.expect("rows").expect("rows");
        } else {
            let next = tokio::time::timeout(Duration::from_millis(20), rows.next());
            drop(next.await);
        }
        drop(rows);
    }
    let begin = Instant::now();
    let reserved = || {
        let all = runtimes
            .each_ref()
            .map(|runtime| runtime.memory_pool.reserved());
        all.iter().sum::<usize>()
    };
    while reserved() > 0 || tasks() > idle {
        let left = format!("{} tasks of {idle}, {} bytes", tasks(), reserved());
        assert!(begin.elapsed() < Duration::from_secs(20), "{left}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(lines(&ctx, QUERIES[0]).await.expect("rows").len() > 3000);
}
