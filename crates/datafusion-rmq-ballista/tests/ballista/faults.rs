//! Executors that lack something, that are set up differently, or that die.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_core::ConfigProducer;
use ballista_core::utils::default_config_producer;
use datafusion::error::Result;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::object_store::local::LocalFileSystem;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use datafusion_rmq::{ByteSize, EngineChoice, JoinModeChoice, RmqOptions, SessionRole};
use datafusion_rmq_ballista::{SentExec, executor_config};

use crate::files::{lines, move_to_files, run};
use crate::support::{CLUSTER, Executor, Settings, local, on_executors, start_scheduler};

const QUERY: &str =
    "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.g = q.g AND p.k BETWEEN q.k AND q.k + 90) FROM q";

/// A query whose rows take minutes.
const LONG: &str = "SELECT sum(p.v % (r.k + 7)) FROM r JOIN p ON p.k BETWEEN r.k AND r.k + 24000";

async fn tables(ctx: &SessionContext) {
    for sql in [
        "CREATE TABLE p AS SELECT value AS id, value % 7 AS g, value * 7919 % 100003 AS k, value * 53 % 9973 AS v FROM generate_series(1, 60000) AS t(value)",
        "CREATE TABLE q AS SELECT id, g, k FROM p WHERE id % 9 = 0",
    ] {
        run(ctx, sql).await;
    }
    move_to_files(ctx).await.expect("files");
    run(ctx, "SET rmq.range_joins = 'always'").await;
}

/// A session of one node, and one with the same tables on the executors of a scheduler.
async fn sessions(scheduler: &str, mode: JoinModeChoice) -> (SessionContext, SessionContext) {
    let (one, ctx) = (local(), on_executors(scheduler, mode));
    tables(&one).await;
    for name in ["p", "q"] {
        let table = one.table_provider(name).await.expect("a table");
        ctx.register_table(name, table).expect("a new table");
    }
    run(&ctx, "SET rmq.range_joins = 'always'").await;
    (one, ctx)
}

fn config_of(options: &RmqOptions) -> ConfigProducer {
    let options = options.clone();
    Arc::new(move || executor_config(&options))
}

fn usual() -> ConfigProducer {
    config_of(&RmqOptions::default())
}

fn address(scheduler: u16) -> String {
    format!("http://127.0.0.1:{scheduler}")
}

async fn plan(ctx: &SessionContext, sql: &str) -> Result<Arc<dyn ExecutionPlan>> {
    let frame = datafusion_rmq::sql(ctx, sql).await?;
    frame.create_physical_plan().await
}

/// The engine is the client's choice, all else that of each executor.
#[tokio::test(flavor = "multi_thread")]
async fn options_are_those_of_executors() {
    let mut options = RmqOptions::default();
    options.devices = "63".parse().expect("a list");
    options.build_threads = 1;
    options.keep_indexes = false;
    options.index_memory_limit = ByteSize(1 << 20);
    let scheduler = start_scheduler();
    let runtime = Settings::default().runtime();
    let executor = Executor::start(scheduler, config_of(&options), runtime).await;
    let (one, ctx) = sessions(&address(scheduler), JoinModeChoice::Auto).await;
    run(&ctx, "SET rmq.build_threads = 7").await;
    let expected = lines(&one, QUERY).await.expect(QUERY);
    for engine in [EngineChoice::Auto, EngineChoice::Cpu] {
        run(&ctx, &format!("SET rmq.engine = '{engine}'")).await;
        let before = executor.count();
        // Without a device `auto` is the CPU.
        assert_eq!(lines(&ctx, QUERY).await.expect(QUERY), expected);
        options.engine = engine;
        options.role = SessionRole::RunsTasks;
        let tasks = executor.tasks.lock().expect("no panic");
        let tasks = &tasks[before..];
        let are_own = !tasks.is_empty() && tasks.iter().all(|task| *task == options);
        assert!(are_own, "{engine}: {tasks:?}");
    }
    // A client that has a device, too, plans it.
    let plan = plan(&ctx, QUERY).await.expect(QUERY);
    run(&ctx, "SET rmq.engine = 'cuda'").await;
    let error = collect(plan, ctx.task_ctx()).await.expect_err(QUERY);
    let error = error.to_string();
    assert!(error.contains("rmq.engine = 'cuda'"), "{error}");
    assert!(error.contains("job"), "of an executor: {error}");
}

/// Ballista goes on where an executor does not know an option.
#[tokio::test(flavor = "multi_thread")]
async fn executors_may_not_know_the_options() {
    let scheduler = start_scheduler();
    let runtime = Settings::default().runtime();
    let config = Arc::new(default_config_producer);
    let executor = Executor::start(scheduler, config, runtime).await;
    let (one, ctx) = sessions(&address(scheduler), JoinModeChoice::Auto).await;
    run(&ctx, "SET rmq.engine = 'cpu'").await;
    let found = lines(&ctx, QUERY).await.expect(QUERY);
    assert_eq!(found, lines(&one, QUERY).await.expect(QUERY));
    assert!(executor.count() > 0);
}

/// Executors that spill return what one node returns.
#[tokio::test(flavor = "multi_thread")]
async fn executors_may_have_little_memory() {
    let scheduler = start_scheduler();
    let mut executors = vec![];
    for memory in [3 << 20, 6 << 20] {
        let memory = Some(memory);
        let runtime = Settings {
            memory,
            ..Settings::default()
        }
        .runtime();
        executors.push(Executor::start(scheduler, usual(), runtime).await);
    }
    for mode in [JoinModeChoice::Collected, JoinModeChoice::Partitioned] {
        let (one, ctx) = sessions(&address(scheduler), mode).await;
        let found = lines(&ctx, QUERY).await;
        let found = found.unwrap_or_else(|e| panic!("{mode}: {e}"));
        assert_eq!(found, lines(&one, QUERY).await.expect(QUERY), "{mode}");
    }
    // The folder for files of operators is made with the first file.
    let spilled = executors.iter().filter(|executor| {
        let files = &executor.runtime.disk_manager;
        !files.temp_dir_paths().is_empty()
    });
    assert!(spilled.count() > 0);
}

/// A file that the client sees and executors do not is an error that names it.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_executors_do_not_see_is_an_error() {
    let empty = tempfile::tempdir().expect("a folder");
    let files = LocalFileSystem::new_with_prefix(empty.path()).expect("a folder");
    let runtime = RuntimeEnvBuilder::new().build_arc().expect("a runtime");
    let root = "file:///".parse().expect("a URL");
    runtime.register_object_store(&root, Arc::new(files));
    let scheduler = start_scheduler();
    let _blind = Executor::start(scheduler, usual(), runtime).await;
    let (_, ctx) = sessions(&address(scheduler), JoinModeChoice::Auto).await;
    let error = lines(&ctx, QUERY).await.expect_err(QUERY).to_string();
    let is_clear = error.contains(".parquet") && error.contains("not found");
    assert!(is_clear, "{error}");
}

/// A scheduler that is not there is an error that names it.
#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_is_gone_is_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let gone = address(listener.local_addr().expect("an address").port());
    drop(listener);
    let (_, ctx) = sessions(&gone, JoinModeChoice::Auto).await;
    let error = lines(&ctx, QUERY).await.expect_err(QUERY).to_string();
    assert!(error.contains(&gone), "{error}");
}

/// Tables in memory stay with the client, unless a query reads files, too: then they are sent, up to a size.
#[tokio::test(flavor = "multi_thread")]
async fn tables_in_memory_stay_with_the_client() {
    let (_, ctx) = sessions(&CLUSTER, JoinModeChoice::Auto).await;
    for table in [
        "CREATE TABLE large AS SELECT value AS k, value AS v FROM generate_series(1, 1100000) AS t(value)",
        "CREATE TABLE small AS SELECT * FROM large WHERE k % 1000 = 0",
    ] {
        run(&ctx, table).await;
    }
    let query = |from: &str, searched: &str| {
        format!(
            "SELECT count(n) FROM (SELECT (SELECT sum({searched}.v) FROM {searched} WHERE {searched}.k <= {from}.k) AS n FROM {from})"
        )
    };
    for (from, searched, is_sent) in [("small", "large", false), ("q", "small", true)] {
        let sql = &query(from, searched);
        let plan = plan(&ctx, sql).await.expect(sql);
        assert_eq!(plan.is::<SentExec>(), is_sent, "{sql}");
        let found = lines(&ctx, sql).await.expect(sql);
        println!("{found:?}");
    }
    let sql = &query("q", "large");
    let error = lines(&ctx, sql).await.expect_err(sql).to_string();
    let is_clear = error.contains("tables in memory") && error.contains("grpc_max_message_size");
    assert!(is_clear, "{error}");
}

/// Waits until something is so, at most this number of seconds, and returns whether it is.
async fn within(seconds: u64, is_so: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    while !is_so() {
        if begin.elapsed() > Duration::from_secs(seconds) {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}

/// Ballista gives the tasks of an executor that dies to another one.
#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_dies_in_a_query_loses_no_rows() {
    let scheduler = start_scheduler();
    let runtime = || Settings::default().runtime();
    let dying = Executor::start(scheduler, usual(), runtime()).await;
    let other = Executor::start(scheduler, usual(), runtime()).await;
    let (one, ctx) = sessions(&address(scheduler), JoinModeChoice::Collected).await;
    let sql = "SELECT q.id, count(*), max(p.id) FROM q JOIN p ON p.k BETWEEN q.k AND q.k + 900 AND p.v <> q.k GROUP BY q.id";
    let expected = lines(&one, sql).await.expect(sql);
    let query = tokio::spawn({
        let ctx = ctx.clone();
        async move { lines(&ctx, sql).await }
    });
    let has_begun = within(20, || dying.count() > 0).await;
    assert!(has_begun, "no task for the executor that dies");
    assert!(!query.is_finished());
    drop(dying);
    let begin = Instant::now();
    match query.await.expect("no panic") {
        Ok(found) => assert_eq!(found, expected),
        Err(error) => println!("{error}"),
    }
    println!(
        "after {:?}, {} tasks of the other",
        begin.elapsed(),
        other.count()
    );
    // Queries go on with the executors that are there.
    let found = lines(&ctx, QUERY).await.expect(QUERY);
    assert_eq!(found, lines(&one, QUERY).await.expect(QUERY));
}

/// A query that the client drops leaves neither memory, nor files, nor tasks on executors.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_query_leaves_nothing_on_executors() {
    let scheduler = start_scheduler();
    let memory = Some(400 << 20);
    let settings = Settings {
        memory,
        ..Settings::default()
    };
    let mut executors = vec![];
    for _ in 0..2 {
        executors.push(Executor::start(scheduler, usual(), settings.runtime()).await);
    }
    let (_, ctx) = sessions(&address(scheduler), JoinModeChoice::Collected).await;
    let rows = "CREATE TABLE r AS SELECT value * 7919 % 100003 AS k FROM generate_series(1, 510000) AS t(value)";
    run(&ctx, rows).await;
    move_to_files(&ctx).await.expect("files");
    // A task ends when it is done with the rows that it has read.
    run(&ctx, "SET datafusion.execution.batch_size = 100").await;
    let reserved = |runtime: &RuntimeEnv| runtime.memory_pool.reserved();
    let used = || {
        executors
            .iter()
            .map(|executor| reserved(&executor.runtime))
            .sum::<usize>()
    };
    for _ in 0..2 {
        let query = tokio::spawn({
            let ctx = ctx.clone();
            async move { lines(&ctx, LONG).await }
        });
        assert!(within(60, || used() > 0).await, "no task has begun");
        assert!(!query.is_finished());
        query.abort();
        let is_idle = || {
            let jobs = executors.iter().map(|executor| executor.jobs().len());
            used() == 0 && jobs.sum::<usize>() == 0
        };
        let begin = Instant::now();
        let jobs = || {
            executors
                .iter()
                .flat_map(Executor::jobs)
                .collect::<Vec<_>>()
        };
        assert!(within(120, is_idle).await, "{} bytes, {:?}", used(), jobs());
        println!("nothing is left after {:?}", begin.elapsed());
    }
    // They take other queries: each has one core.
    lines(&ctx, QUERY).await.expect(QUERY);
}
