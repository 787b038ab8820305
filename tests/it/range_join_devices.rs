//! Range joins on simulated devices (`fake`): the same results as on the CPU, even if devices fail.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
use datafusion::prelude::SessionContext;

use crate::fake::Fake;
use crate::support::{error, register, run};
use rmq_testing::Random;

/// A build side `p`, unsorted, and a probe side `q`, both with NULLs and with the same rows each time.
fn tables(ctx: &SessionContext) {
    let mut random = Random::from_seed(11);
    let rows = 3000;
    let mut number = |limit: usize| -> Option<i64> {
        (random.below(20) > 0).then(|| random.below(limit) as i64 - 5)
    };
    let column = |values: Vec<Option<i64>>| Arc::new(Int64Array::from(values)) as ArrayRef;
    let mut numbers =
        |n: usize, limit: usize| column((0..n).map(|_| number(limit)).collect::<Vec<_>>());
    let (sym, ts, v) = (
        numbers(rows, 7),
        numbers(rows, 4000),
        numbers(rows, 1_000_000),
    );
    let (asked_sym, a, width) = (
        numbers(20_000, 8),
        numbers(20_000, 4000),
        numbers(20_000, 300),
    );
    let name = |values: &ArrayRef| {
        let values = values.as_primitive::<datafusion::arrow::datatypes::Int64Type>();
        let names = values.iter().map(|v| v.map(|v| format!("{v:06}")));
        Arc::new(names.collect::<StringArray>()) as ArrayRef
    };
    let columns = [("name", name(&ts)), ("sym", sym), ("ts", ts), ("v", v)];
    register(ctx, "p", &columns, &[1000, 700]);
    let columns = [
        ("id", column((0..20_000).map(Some).collect())),
        ("sym", asked_sym),
        ("name", name(&a)),
        ("a", a),
        ("width", width),
    ];
    register(ctx, "q", &columns, &vec![500; 39]);
}

/// Waits until all memory is released: work that was running when a query ended runs to completion.
pub async fn wait_until_released(ctx: &SessionContext, fake: &Fake) {
    let begun = Instant::now();
    let held = || ctx.runtime_env().memory_pool.reserved() + fake.held.load(Relaxed);
    while held() > 0 {
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(10), "{} bytes held", held());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Queries of every shape that runs on devices, and of some that don't.
const QUERIES: [&str; 9] = [
    "SELECT q.id, min(v), max(v), count(v), count(*) FROM q JOIN p ON ts BETWEEN a AND a + width GROUP BY q.id",
    "SELECT q.id, min(v), count(*) FROM q LEFT JOIN p ON p.sym = q.sym AND ts > a AND ts < a + width GROUP BY q.id",
    "SELECT q.id, (SELECT max(v) FROM p WHERE p.sym = q.sym AND ts <= a) FROM q",
    "SELECT q.id, (SELECT min(v) FROM p WHERE ts >= a) FROM q",
    "SELECT q.id, x.* FROM q CROSS JOIN LATERAL (SELECT min(v) AS m, first_value(ts ORDER BY v) AS at, last_value(v ORDER BY ts) AS last, \
     sum(v) AS total FROM p WHERE p.sym = q.sym AND ts BETWEEN a AND a + width) AS x",
    // The key of a string is too wide for devices.
    "SELECT q.id, min(v) FROM q JOIN p ON p.name >= q.name AND p.sym = q.sym GROUP BY q.id",
    // Two lower bounds.
    "SELECT q.id, min(v) FROM q LEFT JOIN p ON ts > a AND ts >= width AND ts < a + 50 GROUP BY q.id",
    "SELECT q.id, max(p.name) FROM q JOIN p ON ts BETWEEN a AND a + width GROUP BY q.id",
    // Only aggregates that devices don't compute.
    "SELECT q.id, count(*), sum(v) FROM q JOIN p ON ts BETWEEN a AND a + width GROUP BY q.id",
];

async fn rows(ctx: &SessionContext, sql: &str) -> datafusion::arrow::array::RecordBatch {
    let ordered = format!("SELECT * FROM ({sql}) ORDER BY 1");
    run(ctx, &ordered)
        .await
        .unwrap_or_else(|e| panic!("{sql}: {e}"))
}

fn session(fake: &Arc<Fake>, engine: &str) -> SessionContext {
    let ctx = fake.session(&[("rmq.engine", engine)]);
    tables(&ctx);
    ctx
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_return_the_same_results_as_the_cpu() {
    let none = Arc::new(Fake::default());
    let cpu = session(&none, "cpu");
    for engine in ["cuda", "auto"] {
        let fake = Arc::new(Fake::default());
        let ctx = session(&fake, engine);
        for (i, sql) in QUERIES.iter().enumerate() {
            fake.searched.store(0, Relaxed);
            fake.batches.lock().unwrap().clear();
            assert_eq!(rows(&ctx, sql).await, rows(&cpu, sql).await, "{sql}");
            let searched = fake.searched.load(Relaxed);
            assert_eq!(searched > 0, ![5, 6, 8].contains(&i), "{sql}");
            assert_eq!(fake.ranges() > 0, i != 8, "{sql}");
        }
        wait_until_released(&ctx, &fake).await;
    }
    assert_eq!(none.ranges(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn small_batches_are_coalesced_for_devices() {
    let fake = Arc::new(Fake::default());
    let ctx = session(&fake, "cuda");
    rows(&ctx, QUERIES[3]).await;
    let batches = fake.batches.lock().unwrap().clone();
    assert_eq!(batches.iter().sum::<usize>(), 20_000);
    // The input has 40 batches.
    assert!(batches.len() < 20, "{batches:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_the_engine_and_the_reason() {
    let text = |batch: datafusion::arrow::array::RecordBatch| {
        let last = batch.num_rows() - 1;
        let text = batch.column(1).as_string::<i32>().value(last);
        text.to_string()
    };
    let fake = Arc::new(Fake::default());
    let ctx = session(&fake, "auto");
    let plan = text(run(&ctx, &format!("EXPLAIN {}", QUERIES[0])).await.unwrap());
    assert!(
        plan.contains("engine=cuda:0 (3000 rows, ~20000 ranges)"),
        "{plan}"
    );
    let plan = text(
        run(&ctx, &format!("EXPLAIN ANALYZE {}", QUERIES[0]))
            .await
            .unwrap(),
    );
    for metric in ["device_batches=", "device_bytes="] {
        assert!(plan.contains(metric), "{plan}");
    }
    assert!(!plan.contains("cuda_fallbacks=1"), "{plan}");
    // At the costs of real devices the CPU is cheaper.
    let ctx = session(&Fake::real(), "auto");
    let plan = text(run(&ctx, &format!("EXPLAIN {}", QUERIES[0])).await.unwrap());
    assert!(
        plan.contains("engine=cpu (3000 rows, ~20000 ranges)"),
        "{plan}"
    );
    let plan = text(
        run(&ctx, &format!("EXPLAIN ANALYZE {}", QUERIES[0]))
            .await
            .unwrap(),
    );
    assert!(!plan.contains("device_batches"), "{plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn device_faults_fall_back_to_the_cpu_or_are_clear_errors() {
    let cpu = session(&Arc::new(Fake::default()), "cpu");
    for sql in [QUERIES[0], QUERIES[4]] {
        let expected = rows(&cpu, sql).await;
        for fault in 0..5 {
            for engine in ["auto", "cuda"] {
                let fake = Arc::new(Fake::default());
                let ctx = session(&fake, engine);
                match fault {
                    0 => fake.build_fails_at.store(1, Relaxed),
                    1 => fake.full_at.store(1, Relaxed),
                    2 => fake.search_fails_at.store(1, Relaxed),
                    3 => fake.answer_fails_at.store(1, Relaxed),
                    _ => fake.answer_fails_at.store(2, Relaxed),
                }
                if engine == "auto" {
                    let analyze = format!("EXPLAIN ANALYZE {sql}");
                    let plan = run(&ctx, &analyze).await.unwrap();
                    let plan = plan.column(1).as_string::<i32>().value(0).to_string();
                    assert!(plan.contains("cuda_fallbacks="), "{fault}: {plan}");
                    assert_eq!(rows(&ctx, sql).await, expected, "{fault}: {sql}");
                } else {
                    let message = error(&ctx, sql).await;
                    assert!(message.contains("CUDA device 0"), "{fault}: {message}");
                }
                wait_until_released(&ctx, &fake).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_side_too_large_for_devices_is_probed_on_the_cpu() {
    let cpu = session(&Arc::new(Fake::default()), "cpu");
    let expected = rows(&cpu, QUERIES[0]).await;
    let fake = Arc::new(Fake::default());
    let ctx = session(&fake, "auto");
    // Enough memory for an index but not for the keys; then for neither.
    for limit in ["60000", "1000"] {
        run(&ctx, &format!("SET rmq.device_memory_limit = '{limit}'"))
            .await
            .unwrap();
        assert_eq!(rows(&ctx, QUERIES[0]).await, expected, "{limit}");
    }
}
