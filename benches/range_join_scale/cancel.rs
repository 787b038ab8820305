//! How soon a dropped query ends.

use std::time::{Duration, Instant};

use datafusion::error::{DataFusionError, Result};
use datafusion::prelude::SessionContext;
use fastrand::Rng;
use tokio::runtime::Runtime;

/// A query that still works this long after it was dropped does not end.
const TOO_LONG: Duration = Duration::from_secs(60);

/// Drops `sql`, which takes `wall` seconds, at `moments` random moments. Returns the ascending times, in seconds, from
/// each drop until the query had released all of its memory: until then one of its threads may be working.
pub fn times_to_end(
    ctx: &SessionContext,
    runtime: &Runtime,
    sql: &'static str,
    wall: f64,
    moments: usize,
) -> Result<Vec<f64>> {
    let mut random = Rng::with_seed(20_260_901);
    let pool = &ctx.runtime_env().memory_pool;
    let kept = pool.reserved();
    let mut times = Vec::with_capacity(moments);
    for _ in 0..moments {
        let frame = runtime.block_on(ctx.sql(sql))?;
        let query = runtime.spawn(frame.collect());
        std::thread::sleep(Duration::from_secs_f64(random.f64() * wall));
        let dropped = Instant::now();
        query.abort();
        // Ends as soon as the task has been dropped, or with its result.
        let ended = runtime.block_on(query);
        if let Ok(Err(error)) = ended {
            return Err(error);
        }
        while pool.reserved() > kept {
            if dropped.elapsed() > TOO_LONG {
                let bytes = pool.reserved() - kept;
                let message = format!("{bytes} bytes are reserved a minute after a drop: {sql}");
                return Err(DataFusionError::Execution(message));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        times.push(dropped.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}
