//! Workers that lack something, that have less memory, or that die.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::object_store::local::LocalFileSystem;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_distributed::{
    DistributedExt, SessionStateBuilderExt as _, Worker, WorkerQueryContext,
};
use datafusion_rmq::{EngineChoice, JoinModeChoice, RmqOptions, SessionStateBuilderExt as _};
use datafusion_rmq_distributed::{session, worker};
use datafusion_rmq_proto::RmqCodec;
use futures::{StreamExt, TryStreamExt};
use tonic::codegen::http::{HeaderMap, HeaderName};

use crate::support::{Started, Workers, distributed, lines, local, move_to_files, run, start};

const QUERY: &str =
    "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.g = q.g AND p.k BETWEEN q.k AND q.k + 90) FROM q";

async fn tables(ctx: &SessionContext) {
    for sql in [
        "CREATE TABLE p AS SELECT value AS id, value % 7 AS g, value * 7919 % 100003 AS k, value * 53 % 9973 AS v FROM generate_series(1, 60000) AS t(value)",
        "CREATE TABLE q AS SELECT id, g, k FROM p WHERE id % 9 = 0",
    ] {
        run(ctx, sql).await;
    }
    move_to_files(ctx).await.expect("files");
}

async fn error(workers: Vec<Worker>, option: Option<&str>) -> String {
    let workers = Workers::new(workers.into_iter().map(start).collect());
    let ctx = distributed(workers, JoinModeChoice::Collected);
    tables(&ctx).await;
    if let Some(option) = option {
        run(&ctx, option).await;
    }
    lines(&ctx, QUERY).await.expect_err(QUERY).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_the_codec_is_an_error() {
    let workers = vec![Worker::default(), Worker::default()];
    let error = error(workers, None).await;
    assert!(error.contains("codec"), "{error}");
}

/// The engine is the client's choice, the devices are the worker's.
#[tokio::test(flavor = "multi_thread")]
async fn a_forced_engine_without_a_device_is_an_error() {
    let mut options = RmqOptions::default();
    options.devices = "63".parse().expect("a list");
    let workers = [(); 2].map(|()| worker(&RmqCodec::default(), &options));
    let error = error(workers.into(), Some("SET rmq.engine = 'cuda'")).await;
    assert!(error.contains("rmq.engine = 'cuda'"), "{error}");
}

/// Workers that spill return what one node returns.
#[tokio::test(flavor = "multi_thread")]
async fn workers_may_have_little_memory() {
    let limited = |megabytes: usize| {
        let pool = Arc::new(FairSpillPool::new(megabytes << 20));
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc();
        let worker = worker(&RmqCodec::default(), &RmqOptions::default());
        start(worker.with_runtime_env(runtime.expect("a runtime")))
    };
    let workers = Workers::new(vec![limited(3), limited(6), limited(400)]);
    let (ctx, one) = (distributed(workers, JoinModeChoice::Collected), local());
    tables(&one).await;
    for name in ["p", "q"] {
        let table = one.table_provider(name).await.expect("a table");
        ctx.register_table(name, table).expect("a new table");
    }
    let found = lines(&ctx, QUERY).await.expect(QUERY);
    assert_eq!(found, lines(&one, QUERY).await.expect(QUERY));
    let analyze = format!("EXPLAIN ANALYZE {QUERY}");
    let text = lines(&ctx, &analyze).await.expect(&analyze).join("\n");
    let spills = text.split("spill_count=").skip(1);
    let spills = spills.filter(|spills| !spills.starts_with('0')).count();
    assert!(spills > 0, "{text}");
}

/// A worker that can't be reached is an error, not a part of the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_gone_is_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let gone = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let alive = start(worker(&RmqCodec::default(), &RmqOptions::default()));
    let workers = Workers::new(vec![alive, gone.parse().expect("an address")]);
    let ctx = distributed(workers, JoinModeChoice::Collected);
    tables(&ctx).await;
    lines(&ctx, QUERY).await.expect_err("a worker is gone");
}

/// A query whose rows take some time.
const LONG: &str = "SELECT q.id, p.id FROM q JOIN p ON p.k BETWEEN q.k AND q.k + 1500";

const COUNTS: &str =
    "SELECT q.g, count(*) FROM q JOIN p ON p.k BETWEEN q.k AND q.k + 9 GROUP BY q.g";

fn worker_here() -> Worker {
    worker(&RmqCodec::default(), &RmqOptions::default())
}

/// Rows of a worker that dies are missing, so the query fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_in_a_query_is_an_error() {
    let [dying, other] = [(); 2].map(|()| Started::new(worker_here()));
    let workers = Workers::new(vec![dying.address.clone(), other.address.clone()]);
    let ctx = distributed(workers, JoinModeChoice::Collected);
    tables(&ctx).await;
    let frame = ctx.sql(LONG).await.expect(LONG);
    let mut rows = frame.execute_stream().await.expect(LONG);
    rows.next().await.expect("rows").expect("rows");
    drop(dying);
    let rest: Result<Vec<_>> = rows.try_collect().await;
    let error = rest.expect_err("a worker has died").to_string();
    println!("{error}");
    // Queries go on with the workers that are there.
    let workers = Workers::new(vec![other.address.clone()]);
    let (later, one) = (distributed(workers, JoinModeChoice::Collected), local());
    for name in ["p", "q"] {
        let table = ctx.table_provider(name).await.expect("a table");
        for ctx in [&later, &one] {
            ctx.register_table(name, Arc::clone(&table))
                .expect("a new table");
        }
    }
    let found = lines(&later, QUERY).await.expect(QUERY);
    assert_eq!(found, lines(&one, QUERY).await.expect(QUERY));
}

/// A query that the client drops leaves neither memory, nor files, nor tasks on workers.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_query_leaves_nothing_on_workers() {
    for mode in [JoinModeChoice::Collected, JoinModeChoice::Partitioned] {
        let runtimes = [(); 2].map(|()| {
            let pool = Arc::new(FairSpillPool::new(400 << 20));
            let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc();
            runtime.expect("a runtime")
        });
        let workers = runtimes
            .each_ref()
            .map(|runtime| Started::new(worker_here().with_runtime_env(Arc::clone(runtime))));
        let addresses = workers.iter().map(|worker| worker.address.clone());
        let ctx = distributed(Workers::new(addresses.collect()), mode);
        tables(&ctx).await;
        let sql = match mode {
            JoinModeChoice::Collected => LONG.to_string(),
            _ => format!("{LONG}0 AND p.g = q.g"),
        };
        let tasks = || {
            workers
                .each_ref()
                .map(|worker| worker.runtime.metrics().num_alive_tasks())
        };
        let reserved = || {
            runtimes
                .each_ref()
                .map(|runtime| runtime.memory_pool.reserved())
        };
        // Connections stay.
        lines(&ctx, QUERY).await.expect(QUERY);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let idle = tasks();
        for _ in 0..3 {
            let frame = ctx.sql(&sql).await.expect(&sql);
            let mut rows = frame.execute_stream().await.expect(&sql);
            rows.next().await.expect("rows").expect("rows");
            let [busy, used] = [tasks(), reserved()].map(|all| all.iter().sum::<usize>());
            assert!(
                busy > idle.iter().sum() && used > 0,
                "{busy} tasks, {used} bytes"
            );
            drop(rows);
        }
        let begin = Instant::now();
        let is_left = || {
            let files = runtimes
                .iter()
                .map(|runtime| runtime.disk_manager.used_disk_space());
            reserved().iter().sum::<usize>() > 0
                || files.sum::<u64>() > 0
                || tasks().iter().zip(&idle).any(|(now, idle)| now > idle)
        };
        while is_left() {
            let left = format!(
                "{mode}: {:?} tasks of {idle:?}, {:?} bytes",
                tasks(),
                reserved()
            );
            assert!(begin.elapsed() < Duration::from_secs(20), "{left}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        println!("{mode}: nothing is left after {:?}", begin.elapsed());
    }
}

/// Workers have the codec, the client has the rules alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_the_codec_is_an_error() {
    let workers = Workers::new(vec![start(worker_here()), start(worker_here())]);
    let mut options = RmqOptions::default();
    options.join_mode = JoinModeChoice::Partitioned;
    let config = SessionConfig::new().with_option_extension(options);
    let builder = SessionStateBuilder::new_with_default_features().with_config(config);
    let builder = builder
        .with_rmq()
        .with_distributed_worker_resolver(workers)
        .with_distributed_planner()
        .with_distributed_file_scan_config_bytes_per_partition(1);
    let ctx = SessionContext::new_with_state(builder.expect("an option").build());
    tables(&ctx).await;
    let error = lines(&ctx, QUERY).await.expect_err(QUERY).to_string();
    // The engine reports what comes first: that it can't write the plan, or that a worker gets none.
    let is_clear = error.contains("codec") || error.contains("waiting for the plan");
    assert!(is_clear, "{error}");
}

/// A file that the client sees and a worker does not is an error that names it.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_a_worker_does_not_see_is_an_error() {
    let empty = tempfile::tempdir().expect("a folder");
    let files = LocalFileSystem::new_with_prefix(empty.path()).expect("a folder");
    let runtime = RuntimeEnvBuilder::new().build_arc().expect("a runtime");
    let root = "file:///".parse().expect("a URL");
    runtime.register_object_store(&root, Arc::new(files));
    let blind = worker_here().with_runtime_env(runtime);
    let error = error(vec![blind, worker_here()], None).await;
    assert!(
        error.contains(".parquet") && error.contains("not found"),
        "{error}"
    );
}

/// A table in memory whose order decides is sent with each task, up to a size.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_table_in_memory_whose_order_decides_is_an_error() {
    let workers = Workers::new(vec![start(worker_here()), start(worker_here())]);
    let ctx = distributed(workers, JoinModeChoice::Auto);
    tables(&ctx).await;
    let large = "CREATE TABLE large AS SELECT value AS k, value AS v FROM generate_series(1, 1100000) AS t(value)";
    run(&ctx, large).await;
    let sql = "SELECT q.id, (SELECT large.v FROM large WHERE large.k <= q.k ORDER BY large.k DESC LIMIT 1) FROM q";
    let error = lines(&ctx, sql).await.expect_err(sql).to_string();
    let is_clear = error.contains("are in memory") && error.contains("write the table to files");
    assert!(is_clear, "{error}");
}

/// The engine of the client's session is that of its tasks.
#[tokio::test(flavor = "multi_thread")]
async fn the_engine_of_the_client_is_sent() {
    let engines = Arc::new(Mutex::new(vec![]));
    let seen = Arc::clone(&engines);
    let worker = Worker::from_session_builder(move |query: WorkerQueryContext| {
        let state = session(query, &RmqCodec::default(), &RmqOptions::default());
        let state = state.map(SessionStateBuilder::build);
        if let Ok(state) = &state {
            let engine = RmqOptions::of(state.config_options()).engine;
            seen.lock().expect("no panic").push(engine);
        }
        async move { state }
    });
    let workers = Workers::new(vec![start(worker), start(worker_here())]);
    let ctx = distributed(workers, JoinModeChoice::Collected);
    tables(&ctx).await;
    for engine in [EngineChoice::Auto, EngineChoice::Cpu] {
        run(&ctx, &format!("SET rmq.engine = '{engine}'")).await;
        let before = engines.lock().expect("no panic").len();
        lines(&ctx, COUNTS).await.expect(COUNTS);
        let engines = &engines.lock().expect("no panic")[before..];
        let is_sent = !engines.is_empty() && engines.iter().all(|sent| *sent == engine);
        assert!(is_sent, "{engine}: {engines:?}");
    }
}

/// A worker ignores options that it does not know, as those of a later release, and refuses values that it does not.
#[test]
fn unknown_values_of_options_are_an_error() {
    let session = |name: &'static str, value: &str| {
        let mut headers = HeaderMap::new();
        let name = HeaderName::from_static(name);
        headers.insert(name, value.parse().expect("a value"));
        let builder = SessionStateBuilder::new_with_default_features();
        let query = WorkerQueryContext { builder, headers };
        session(query, &RmqCodec::default(), &RmqOptions::default()).map(|_| ())
    };
    let engine = "x-datafusion-distributed-config-rmq.engine";
    session(engine, "cpu").expect("a known value");
    let later = "x-datafusion-distributed-config-rmq.colour";
    session(later, "red").expect("an option of another release");
    let error = session(engine, "tpu")
        .expect_err("an unknown value")
        .to_string();
    assert!(error.contains("rmq.engine = 'tpu'"), "{error}");
}
