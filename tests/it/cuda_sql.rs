//! SQL on a real GPU, enabled by `RMQ_TEST_ENGINE=cuda`: tests that the simulated devices can't cover.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, Int64Array};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;

use crate::support::{bigint, engine, register, run, session_of_pool, set, skipped};
use rmq_testing::Random;

/// Creates a session on a GPU with a bounded memory pool; `None` if there is no GPU.
fn session() -> Option<SessionContext> {
    if engine().as_deref() != Some("cuda") || skipped() {
        println!("skipped: no CUDA device (RMQ_TEST_ENGINE=cuda requires one)");
        return None;
    }
    let pool = Arc::new(GreedyMemoryPool::new(16 << 30));
    let ctx = session_of_pool(SessionConfig::new().with_target_partitions(4), pool);
    set(&ctx, "rmq.engine", "cuda");
    set(&ctx, "rmq.keep_indexes", "false");
    Some(ctx)
}

fn tables(ctx: &SessionContext, rows: usize, ranges: usize) {
    let mut random = Random::new("SQL on a GPU");
    let numbers = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
    let values = (0..rows).map(|_| (random.next() >> 20) as i64).collect();
    let times = (0..rows as i64).map(|i| 10 * i).collect();
    let columns = [("v", numbers(values)), ("ts", numbers(times))];
    register(ctx, "t", &columns, &vec![8192; (rows - 1) / 8192]);
    let left: Vec<i64> = (0..ranges).map(|_| random.below(rows) as i64).collect();
    let right = left.iter().map(|l| l + random.below(1000) as i64).collect();
    let columns = [
        ("id", numbers((0..ranges as i64).collect())),
        ("l", numbers(left)),
        ("r", numbers(right)),
    ];
    register(ctx, "q", &columns, &vec![8192; (ranges - 1) / 8192]);
}

const POSITIONS: &str = "SELECT sum(range_min('t.v', l, r)) FROM q";
const KEYS: &str =
    "SELECT q.id, min(v) FROM q JOIN t ON t.ts BETWEEN 10 * q.l AND 10 * q.r GROUP BY q.id";

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_query_releases_all_memory() {
    let Some(ctx) = session() else { return };
    tables(&ctx, 1 << 24, 1 << 22);
    for sql in [POSITIONS, KEYS] {
        // Opens the device. This happens once and is not cancelled.
        run(&ctx, sql).await.expect("query");
        let mut slowest = Duration::ZERO;
        for timeout_ms in [0, 1, 3, 10, 20, 30, 50, 80, 120, 200] {
            let frame = ctx.sql(sql).await.expect("plan");
            let mut stream = frame.execute_stream().await.expect("start");
            let next = tokio::time::timeout(Duration::from_millis(timeout_ms), stream.next());
            drop(next.await);
            let dropped = Instant::now();
            drop(stream);
            let reserved = || ctx.runtime_env().memory_pool.reserved();
            while reserved() > 0 || device_bytes(&ctx).await > 0 {
                assert!(
                    dropped.elapsed() < Duration::from_secs(2),
                    "{} bytes reserved",
                    reserved()
                );
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            slowest = slowest.max(dropped.elapsed());
        }
        println!("cancelled: all freed after {slowest:?} at most: {sql}");
    }
}

/// Returns the device memory that the session uses, in bytes.
async fn device_bytes(ctx: &SessionContext) -> i64 {
    let used = "SELECT CAST(coalesce(sum(index_bytes), 0) AS BIGINT) FROM rmq_devices()";
    bigint(ctx, used).await.expect("a number")
}
