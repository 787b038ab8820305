//! Workers that lack something, that have less memory, or that die.

use std::sync::Arc;

use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::SessionContext;
use datafusion_distributed::Worker;
use datafusion_rmq::{JoinModeChoice, RmqOptions};
use datafusion_rmq_distributed::worker;
use datafusion_rmq_proto::RmqCodec;

use crate::support::{Workers, distributed, lines, local, move_to_files, run, start};

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
