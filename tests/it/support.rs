//! Helpers that several tests share.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{Int64Type, Schema};
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};
use datafusion_rmq::{JoinModeChoice, RmqOptions};
use rmq_engine::cuda::devices;
use rmq_testing::Random;

use crate::fake::Fake;

/// The engine that `RMQ_TEST_ENGINE` sets in sessions, or `threads` for devices that are threads.
pub fn engine() -> Option<String> {
    std::env::var("RMQ_TEST_ENGINE").ok()
}

/// Whether tests with the engine of `RMQ_TEST_ENGINE` cannot run on this machine. Prints a line if so.
pub fn skipped() -> bool {
    let skipped = engine().is_some_and(|e| e == "cuda")
        && devices().map_or(true, |all| all.iter().all(|d| d.unusable.is_some()));
    if skipped {
        println!("skipped: no CUDA device");
    }
    skipped
}

/// A session with four partitions and the extension.
pub fn session() -> SessionContext {
    let config = SessionConfig::new()
        .with_information_schema(true)
        .with_target_partitions(4);
    with_extension(SessionContext::new_with_config(config))
}

/// The session with the extension, which uses the engine of `RMQ_TEST_ENGINE` and has the partitions of
/// `RMQ_TEST_PARTITIONS`.
pub fn with_extension(ctx: SessionContext) -> SessionContext {
    if let Ok(partitions) = std::env::var("RMQ_TEST_PARTITIONS") {
        set(&ctx, "datafusion.execution.target_partitions", &partitions);
    }
    match engine().as_deref() {
        Some("threads") => return Fake::real().register(ctx, &[("rmq.engine", "cuda")]),
        Some(engine) if !skipped() => {
            datafusion_rmq::register(&ctx);
            set(&ctx, "rmq.engine", engine);
        }
        _ => datafusion_rmq::register(&ctx),
    }
    ctx
}

/// A session whose indexes are in this machine's memory.
pub fn cpu_session() -> SessionContext {
    let ctx = session();
    set(&ctx, "rmq.engine", "cpu");
    ctx
}

/// A session with the extension whose memory comes from this pool, and which uses the engine of `RMQ_TEST_ENGINE`.
pub fn session_of_pool(config: SessionConfig, pool: Arc<dyn MemoryPool>) -> SessionContext {
    with_extension(context_of_pool(config, pool))
}

/// The same without the extension.
pub fn context_of_pool(config: SessionConfig, pool: Arc<dyn MemoryPool>) -> SessionContext {
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc();
    SessionContext::new_with_config_rt(config, runtime.expect("a runtime"))
}

/// Sets an option.
pub fn set(ctx: &SessionContext, name: &str, value: &str) {
    let state = ctx.state_ref();
    let mut state = state.write();
    let options = state.config_mut().options_mut();
    options.set(name, value).expect("an option");
}

/// A query in words that DataFusion alone understands as they are meant: it loses the fraction of the seconds between
/// two times, here `extract(epoch FROM (a - b))`, and compares days with a difference of times by the days alone.
pub fn in_datafusion(sql: &str) -> String {
    let seconds = "extract(epoch FROM TIMESTAMP '1970-01-01T00:00:00' + (";
    let sql = sql.replace("extract(epoch FROM (", seconds);
    let days = -10..10;
    days.fold(sql, |sql, days| {
        let (written, meant) = (
            format!("INTERVAL '{days} days'"),
            format!("INTERVAL '{} hours'", days * 24),
        );
        sql.replace(&written, &meant)
    })
}

/// Sets `rmq.join_mode` to that of `RMQ_TEST_JOIN_MODE`, or to a random one. Leaves `random` as it is, so that cases of
/// earlier seeds stay the same.
pub fn draw_join_mode(ctx: &SessionContext, random: &Random) {
    let mut random = random.clone();
    // The next number decides about something else.
    random.next();
    let drawn = ["auto", "shared", "collected", "partitioned"][random.below(4)];
    let mode = std::env::var("RMQ_TEST_JOIN_MODE").unwrap_or_else(|_| drawn.into());
    set(ctx, "rmq.join_mode", &mode);
}

/// How many build sides of a range join share the memory of a session.
pub fn builds_at_once(ctx: &SessionContext) -> usize {
    let state = ctx.state();
    match RmqOptions::of(state.config_options()).join_mode {
        JoinModeChoice::Partitioned => state.config().target_partitions(),
        _ => 1,
    }
}

/// Plans one statement, which may have ASOF joins. Runs one that is no query.
pub async fn plan(ctx: &SessionContext, sql: &str) -> Result<DataFrame> {
    datafusion_rmq::sql(ctx, sql).await
}

/// Runs one statement and returns its rows as one batch.
pub async fn run(ctx: &SessionContext, sql: &str) -> Result<RecordBatch> {
    let frame = plan(ctx, sql).await?;
    let schema = Arc::clone(frame.schema().inner());
    Ok(concat_batches(&schema, &frame.collect().await?)?)
}

/// Runs a query with one row and returns its first column, a BIGINT.
pub async fn bigint(ctx: &SessionContext, sql: &str) -> Option<i64> {
    let batch = run(ctx, sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    assert_eq!(batch.num_rows(), 1, "{sql}");
    let column = batch.column(0).as_primitive::<Int64Type>();
    column.is_valid(0).then(|| column.value(0))
}

/// Runs a statement that must fail and returns its error message.
pub async fn error(ctx: &SessionContext, sql: &str) -> String {
    match run(ctx, sql).await {
        Ok(_) => panic!("no error from: {sql}"),
        Err(e) => e.to_string(),
    }
}

/// Registers columns as a table in memory, in batches of these lengths.
pub fn register(ctx: &SessionContext, name: &str, columns: &[(&str, ArrayRef)], batches: &[usize]) {
    let fields: Vec<_> = columns
        .iter()
        .map(|(n, a)| datafusion::arrow::datatypes::Field::new(*n, a.data_type().clone(), true))
        .collect();
    let schema = Arc::new(Schema::new(fields));
    let arrays = columns.iter().map(|(_, a)| Arc::clone(a)).collect();
    let whole = RecordBatch::try_new(Arc::clone(&schema), arrays).expect("columns of one length");
    let mut start = 0;
    let mut parts = vec![];
    for length in batches {
        parts.push(whole.slice(start, *length));
        start += length;
    }
    parts.push(whole.slice(start, whole.num_rows() - start));
    let table = MemTable::try_new(schema, vec![parts]).expect("batches of one schema");
    ctx.register_table(name, Arc::new(table))
        .expect("the table is new");
}

/// Waits until a pool has no memory registered: what a cancelled query has begun ends a moment later.
pub async fn released(pool: &Arc<dyn MemoryPool>) {
    for _ in 0..200 {
        if pool.reserved() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{} bytes are left", pool.reserved());
}
