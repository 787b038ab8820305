//! Range joins on simulated devices (`fake`): the same results as on the CPU, even if devices fail.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
use datafusion::prelude::SessionContext;

use crate::fake::{Fake, step_faults};
use crate::support::{register, run};
use rmq_engine::EngineError;
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

/// Queries of every shape that runs on devices.
const QUERIES: [&str; 8] = [
    "SELECT q.id, min(v), max(v), count(v), count(*) FROM q JOIN p ON ts BETWEEN a AND a + width GROUP BY q.id",
    "SELECT q.id, min(v), count(*) FROM q LEFT JOIN p ON p.sym = q.sym AND ts > a AND ts < a + width GROUP BY q.id",
    "SELECT q.id, (SELECT max(v) FROM p WHERE p.sym = q.sym AND ts <= a) FROM q",
    "SELECT q.id, (SELECT min(v) FROM p WHERE ts >= a) FROM q",
    "SELECT q.id, x.* FROM q CROSS JOIN LATERAL (SELECT min(v) AS m, first_value(ts ORDER BY v) AS at, last_value(v ORDER BY ts) AS last, \
     sum(v) AS total FROM p WHERE p.sym = q.sym AND ts BETWEEN a AND a + width) AS x",
    // Two lower bounds.
    "SELECT q.id, min(v) FROM q LEFT JOIN p ON ts > a AND ts >= width AND ts < a + 50 GROUP BY q.id",
    // Ranks.
    "SELECT q.id, max(p.name) FROM q JOIN p ON ts BETWEEN a AND a + width GROUP BY q.id",
    // Neither minima nor maxima.
    "SELECT q.id, count(*), sum(v) FROM q JOIN p ON ts BETWEEN a AND a + width GROUP BY q.id",
];

/// Queries that the CPU answers as a whole, and the reasons.
const ON_CPU: [(&str, &str); 4] = [
    (
        "SELECT q.id, min(v) FROM q JOIN p ON p.name >= q.name AND p.sym = q.sym GROUP BY q.id",
        "devices do not sort by Utf8",
    ),
    (
        "SELECT q.id, min(v), median(v) FROM q JOIN p ON p.sym = q.sym AND ts BETWEEN a AND a + width GROUP BY q.id",
        "devices do not compute median(CAST(p.v AS Float64))",
    ),
    (
        "SELECT q.id, (SELECT v FROM p WHERE ts >= a AND v <= width ORDER BY ts LIMIT 1) FROM q",
        "devices do not compute aggregates by thresholds",
    ),
    (
        "SELECT q.id, x.* FROM q CROSS JOIN LATERAL (SELECT max(v) AS m, sum(CAST(v AS DECIMAL(50, 0))) AS total FROM p \
         WHERE p.sym = q.sym AND ts BETWEEN a AND a + width) AS x",
        "devices do not compute an aggregate of Decimal256",
    ),
];

async fn rows(ctx: &SessionContext, sql: &str) -> datafusion::arrow::array::RecordBatch {
    let ordered = format!("SELECT * FROM ({sql}) ORDER BY 1");
    run(ctx, &ordered)
        .await
        .unwrap_or_else(|e| panic!("{sql}: {e}"))
}

/// The physical plan of an EXPLAIN.
async fn explain(ctx: &SessionContext, sql: &str) -> String {
    let plan = run(ctx, sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    let last = plan.num_rows() - 1;
    plan.column(1).as_string::<i32>().value(last).to_string()
}

fn session(fake: &Arc<Fake>, engine: &str) -> SessionContext {
    let ctx = fake.session(&[("rmq.engine", engine), ("rmq.keep_indexes", "false")]);
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
        for sql in QUERIES {
            fake.batches.lock().unwrap().clear();
            assert_eq!(rows(&ctx, sql).await, rows(&cpu, sql).await, "{sql}");
            assert_eq!(fake.ranges(), 20_000, "{sql}");
        }
        wait_until_released(&ctx, &fake).await;
    }
    assert_eq!(none.ranges(), 0);
}

/// What devices can't do by its kind runs on the CPU as a whole, whether or not they are forced, and EXPLAIN says why.
#[tokio::test(flavor = "multi_thread")]
async fn joins_that_devices_lack_run_on_the_cpu_with_a_reason() {
    let cpu = session(&Arc::new(Fake::default()), "cpu");
    for engine in ["cuda", "auto"] {
        let fake = Arc::new(Fake::default());
        let ctx = session(&fake, engine);
        for (sql, why) in ON_CPU {
            let plan = explain(&ctx, &format!("EXPLAIN {sql}")).await;
            assert!(plan.contains(&format!("engine=cpu ({why}")), "{plan}");
            assert_eq!(rows(&ctx, sql).await, rows(&cpu, sql).await, "{sql}");
        }
        assert_eq!((fake.ranges(), fake.built.load(Relaxed)), (0, 0));
        // Devices that have no joins at all.
        let fake = Arc::new(Fake {
            joins: false,
            ..Fake::default()
        });
        let ctx = session(&fake, engine);
        for sql in QUERIES {
            assert_eq!(rows(&ctx, sql).await, rows(&cpu, sql).await, "{sql}");
            let plan = explain(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
            assert!(
                plan.contains("engine=cpu (these devices do not join)"),
                "{plan}"
            );
        }
        assert_eq!((fake.ranges(), fake.built.load(Relaxed)), (0, 0));
    }
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
    let fake = Arc::new(Fake::default());
    let ctx = session(&fake, "auto");
    let plan = explain(&ctx, &format!("EXPLAIN {}", QUERIES[0])).await;
    assert!(
        plan.contains("engine=cuda:0 (3000 rows, ~20000 ranges)"),
        "{plan}"
    );
    let plan = explain(&ctx, &format!("EXPLAIN ANALYZE {}", QUERIES[0])).await;
    for metric in ["device_batches=", "device_bytes="] {
        assert!(plan.contains(metric), "{plan}");
    }
    assert!(!plan.contains("cuda_fallbacks=1"), "{plan}");
    // At the costs of real devices the CPU is cheaper.
    let ctx = session(&Fake::real(), "auto");
    let plan = explain(&ctx, &format!("EXPLAIN {}", QUERIES[0])).await;
    assert!(
        plan.contains("engine=cpu (3000 rows, ~20000 ranges)"),
        "{plan}"
    );
    let plan = explain(&ctx, &format!("EXPLAIN ANALYZE {}", QUERIES[0])).await;
    assert!(!plan.contains("device_batches"), "{plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn device_faults_fall_back_to_the_cpu_or_are_clear_errors() {
    let cpu = session(&Arc::new(Fake::default()), "cpu");
    for sql in [QUERIES[0], QUERIES[4]] {
        let expected = rows(&cpu, sql).await;
        for fault in step_faults() {
            // Steps of the build, and of the first and the second batch.
            for nth in [1, 3, 6, 8] {
                let fake_of = || {
                    let fake = Arc::new(Fake::default());
                    *fake.join_fault.lock().unwrap() = Some((nth, fault.clone()));
                    fake
                };
                let fake = fake_of();
                let ctx = session(&fake, "auto");
                let plan = explain(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
                assert!(plan.contains("cuda_fallbacks="), "{nth}: {plan}");
                assert_eq!(plan.contains("engine=cpu ("), nth < 6, "{plan}");
                assert_eq!(rows(&ctx, sql).await, expected, "{nth}: {sql}");
                wait_until_released(&ctx, &fake).await;
                let fake = fake_of();
                let ctx = session(&fake, "cuda");
                let ordered = format!("SELECT * FROM ({sql}) ORDER BY 1");
                match run(&ctx, &ordered).await {
                    // The memory of the host, of which the CPU may need less.
                    Ok(found) => {
                        assert!(matches!(fault, EngineError::OutOfMemory { .. }), "{fault}");
                        assert_eq!(found, expected, "{nth}: {sql}");
                    }
                    Err(error) => {
                        let message = error.to_string();
                        assert!(
                            message.contains("rmq.engine = 'cuda': a range join"),
                            "{message}"
                        );
                        assert!(message.contains(&fault.to_string()), "{nth}: {message}");
                    }
                }
                wait_until_released(&ctx, &fake).await;
            }
        }
    }
}
