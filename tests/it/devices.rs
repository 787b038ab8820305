//! Queries on devices: the choice of the engine, batching, memory and faults. The devices are threads (`fake`), so the
//! tests run without a GPU.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;
use tokio::sync::mpsc;

use crate::fake::Fake;
use crate::support::{bigint, error, register, run};
use rmq_testing::Random;

const CUDA: [(&str, &str); 1] = [("rmq.engine", "cuda")];

fn numbers(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

/// The text of an EXPLAIN, or of an EXPLAIN ANALYZE.
async fn explain(ctx: &SessionContext, sql: &str) -> String {
    let batch = run(ctx, sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    let last = batch.num_rows() - 1;
    let text = batch.column(1).as_string::<i32>().value(last);
    text.to_string()
}

/// A table `t` of random values, and `q` of ranges over it in batches of `batch` rows.
fn tables(ctx: &SessionContext, rows: usize, ranges: usize, batch: usize) {
    let mut random = Random::from_seed(7);
    let values = numbers((0..rows).map(|_| (random.next() >> 20) as i64));
    register(ctx, "t", &[("v", values)], &[rows / 3]);
    let left: Vec<_> = (0..ranges).map(|_| random.below(rows) as i64).collect();
    let right = numbers(left.iter().map(|l| l + random.below(1000) as i64));
    let columns = [
        ("id", numbers(0..ranges as i64)),
        ("l", numbers(left)),
        ("r", right),
    ];
    register(ctx, "q", &columns, &vec![batch; (ranges - 1) / batch]);
}

const ALL_FOUR: &str = "SELECT id, range_min('t.v', l, r) AS a, range_max('t.v', l, r) AS b, range_argmin('t.v', l, r) AS c, \
                        range_argmax('t.v', l, r) AS d FROM q";

#[tokio::test(flavor = "multi_thread")]
async fn small_batches_are_combined_for_the_device_and_split_again() {
    let fake = Arc::new(Fake::default());
    let one = SessionConfig::new().with_target_partitions(1);
    let ctx = fake.session_with(one, &CUDA);
    tables(&ctx, 10_000, 200_000, 100);
    let got = ctx.sql(ALL_FOUR).await.unwrap().collect().await.unwrap();
    let batches = fake.batches.lock().unwrap().clone();
    assert_eq!(batches.iter().sum::<usize>(), 2 * 200_000);
    // 2000 input batches become two lookups on the device.
    assert!(batches.len() < 200, "{batches:?}");
    assert!(got.len() >= 2000, "{}", got.len());

    // The rows are those of the CPU, in the order of the input.
    let cpu = fake.session(&[("rmq.engine", "cpu")]);
    tables(&cpu, 10_000, 200_000, 100);
    let expected = run(&cpu, &format!("{ALL_FOUR} ORDER BY id")).await.unwrap();
    let schema = got[0].schema();
    let got = datafusion::arrow::compute::concat_batches(&schema, &got).unwrap();
    assert_eq!(got, expected);
    assert_eq!(fake.ranges(), 2 * 200_000, "the CPU asked no device");
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_run_in_parallel_with_two_batches_in_flight() {
    let fake = Arc::new(Fake::default());
    *fake.delay.lock().unwrap() = Duration::from_millis(20);
    let one = SessionConfig::new().with_target_partitions(1);
    let ctx = fake.session_with(one, &CUDA);
    tables(&ctx, 1000, 1_500_000, 8192);
    let sum = "SELECT CAST(sum(range_argmin('t.v', l, r)) AS BIGINT) FROM q";
    let first = bigint(&ctx, sum).await;
    let batches = fake.batches.lock().unwrap().clone();
    assert!(
        batches.iter().all(|n| *n <= (1 << 18) + 8192),
        "{batches:?}"
    );
    assert!(batches.iter().any(|n| *n >= 1 << 18), "{batches:?}");
    assert_eq!(fake.most_under_way.load(Relaxed), 2);

    let four = fake.session(&CUDA);
    tables(&four, 1000, 1_500_000, 8192);
    assert_eq!(bigint(&four, sum).await, first);
    let most = fake.most_under_way.load(Relaxed);
    assert!((3..=8).contains(&most), "{most}");
}

/// A table whose batches a test sends one by one.
#[derive(Debug)]
struct Sent {
    schema: SchemaRef,
    batches: std::sync::Mutex<Option<mpsc::Receiver<RecordBatch>>>,
}

impl PartitionStream for Sent {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let batches = self.batches.lock().unwrap().take().expect("read once");
        let batches = futures::stream::unfold(batches, |mut batches| async {
            let batch = batches.recv().await?;
            Some((Ok::<_, DataFusionError>(batch), batches))
        });
        Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            batches,
        ))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_inputs_rows_do_not_wait_for_more() {
    let fake = Arc::new(Fake::default());
    let ctx = fake.session(&CUDA);
    register(&ctx, "t", &[("v", numbers([5, 3, 8, 1]))], &[]);
    let schema = Arc::new(Schema::new(vec![Field::new("l", DataType::Int64, true)]));
    let (sender, batches) = mpsc::channel(1);
    let sent = Arc::new(Sent {
        schema: Arc::clone(&schema),
        batches: std::sync::Mutex::new(Some(batches)),
    });
    let table = StreamingTable::try_new(Arc::clone(&schema), vec![sent])
        .unwrap()
        .with_infinite_table(true);
    ctx.register_table("q", Arc::new(table)).unwrap();
    let sql = "SELECT range_min('t.v', l, 3) FROM q";
    let mut answers = ctx.sql(sql).await.unwrap().execute_stream().await.unwrap();
    for (l, expected) in [(0, 1), (2, 1), (3, 1)] {
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![numbers([l])]).unwrap();
        sender.send(batch).await.unwrap();
        let next = tokio::time::timeout(Duration::from_secs(10), answers.next());
        let answer = next.await.expect("an answer at once").unwrap().unwrap();
        assert_eq!(
            answer.column(0).as_primitive::<Int64Type>().value(0),
            expected
        );
    }
    drop(sender);
    assert!(answers.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_pool_makes_batches_smaller() {
    let fake = Arc::new(Fake::default());
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(GreedyMemoryPool::new(2_000_000)))
        .build_arc()
        .unwrap();
    let config = SessionConfig::new().with_target_partitions(1);
    let ctx = SessionContext::new_with_config_rt(config, runtime);
    let ctx = fake.register(ctx, &CUDA);
    tables(&ctx, 1000, 300_000, 8192);
    let sql = "SELECT count(range_min('t.v', l, r)) FROM q";
    assert_eq!(bigint(&ctx, sql).await, Some(300_000));
    let batches = fake.batches.lock().unwrap().clone();
    assert!(batches.iter().all(|n| *n < 60_000), "{batches:?}");
    assert_eq!(ctx.runtime_env().memory_pool.reserved(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_query_frees_its_memory() {
    let fake = Arc::new(Fake::default());
    *fake.delay.lock().unwrap() = Duration::from_millis(30);
    let pool = Arc::new(GreedyMemoryPool::new(1 << 30));
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(pool)
        .build_arc()
        .unwrap();
    let ctx = SessionContext::new_with_config_rt(SessionConfig::new(), runtime);
    let ctx = fake.register(
        ctx,
        &[("rmq.engine", "cuda"), ("rmq.keep_indexes", "false")],
    );
    tables(&ctx, 1000, 3_000_000, 8192);
    for patience in [5, 25, 60, 100] {
        let frame = ctx.sql(ALL_FOUR).await.unwrap();
        let mut stream = frame.execute_stream().await.unwrap();
        let next = tokio::time::timeout(Duration::from_millis(patience), stream.next());
        drop(next.await);
        drop(stream);
        let dropped = Instant::now();
        let held = || {
            let reserved = ctx.runtime_env().memory_pool.reserved();
            reserved + fake.held.load(Relaxed) + fake.under_way.load(Relaxed)
        };
        while held() > 0 {
            let passed = dropped.elapsed();
            // Work in flight ends within some milliseconds, or later on a busy machine.
            assert!(passed < Duration::from_secs(10), "held {}", held());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let count = "SELECT count(range_min('t.v', l, r)) FROM q";
    assert_eq!(bigint(&ctx, count).await, Some(3_000_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_build_stops() {
    let fake = Arc::new(Fake::default());
    *fake.build_delay.lock().unwrap() = Duration::from_secs(3600);
    let ctx = fake.session(&CUDA);
    tables(&ctx, 1000, 1000, 100);
    let sql = "SELECT count(range_min('t.v', l, r)) FROM q";
    let query = tokio::spawn(ctx.sql(sql).await.unwrap().collect());
    while fake.held.load(Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    query.abort();
    let dropped = Instant::now();
    while fake.held.load(Relaxed) > 0 {
        assert!(dropped.elapsed() < Duration::from_millis(500));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    *fake.build_delay.lock().unwrap() = Duration::ZERO;
    assert_eq!(bigint(&ctx, sql).await, Some(1000));
}

#[tokio::test(flavor = "multi_thread")]
async fn auto_chooses_by_the_work_and_says_why() {
    let fake = Arc::new(Fake::default());
    let ctx = fake.session(&[]);
    tables(&ctx, 4096, 10_000, 8192);
    let sql = "SELECT count(range_min('t.v', l, r)) FROM q";
    let plan = explain(&ctx, &format!("EXPLAIN {sql}")).await;
    let expected = "engine=cuda:0 (2^12 rows, ~10000 ranges)";
    assert!(plan.contains(expected), "{plan}");
    assert_eq!(bigint(&ctx, sql).await, Some(10_000));
    assert_eq!(fake.ranges(), 10_000);

    // The number of rows of a subquery is known only when it runs.
    let subquery =
        "SELECT count(range_max((SELECT v FROM t WHERE v % 2 = 0 ORDER BY v), l, r)) FROM q";
    bigint(&ctx, subquery).await;
    assert_eq!(fake.ranges(), 20_000);
    let plan = explain(&ctx, &format!("EXPLAIN ANALYZE {subquery}")).await;
    assert!(plan.contains("engine=cuda:0 ("), "{plan}");

    // With the costs of a real device the work is too small, and devices are not opened.
    let real = Fake::real();
    let ctx = real.session(&[]);
    tables(&ctx, 4096, 10_000, 8192);
    let plan = explain(&ctx, &format!("EXPLAIN {sql}")).await;
    let expected = "engine=cpu (2^12 rows, ~10000 ranges)";
    assert!(plan.contains(expected), "{plan}");
    assert_eq!(bigint(&ctx, sql).await, Some(10_000));
    assert!(real.opened.lock().unwrap().is_empty());

    // A call in the condition of an outer join is an expression, evaluated on the CPU.
    let join =
        "SELECT count(*) FROM q a LEFT JOIN q b ON a.id = b.id AND range_min('t.v', a.l, b.r) > 0";
    let ctx = fake.session(&[]);
    tables(&ctx, 4096, 10_000, 8192);
    let plan = explain(&ctx, &format!("EXPLAIN {join}")).await;
    assert!(
        plan.contains("engine=cpu (called in a join's condition)"),
        "{plan}"
    );
    assert_eq!(bigint(&ctx, join).await, Some(10_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_device_auto_uses_the_cpu_and_cuda_is_an_error() {
    let fake = Arc::new(Fake {
        devices: 0,
        ..Fake::default()
    });
    let ctx = fake.session(&[]);
    tables(&ctx, 1000, 1000, 100);
    let sql = "SELECT count(range_min('t.v', l, r)) FROM q";
    for _ in 0..2 {
        let plan = explain(&ctx, &format!("EXPLAIN {sql}")).await;
        assert!(plan.contains("engine=cpu (no CUDA device)"), "{plan}");
        assert_eq!(bigint(&ctx, sql).await, Some(1000));
    }
    run(&ctx, "SET rmq.engine = 'cuda'").await.unwrap();
    for _ in 0..2 {
        let message = error(&ctx, sql).await;
        let expected = "rmq.engine = 'cuda', but no CUDA device can be used: no driver at all; with SET rmq.engine = 'auto'";
        assert!(message.contains(expected), "{message}");
    }
    // The absence of a device is cached.
    assert_eq!(fake.opened.lock().unwrap().len(), 1);
    let row = run(&ctx, "SELECT device, in_use, note FROM rmq_devices()").await;
    let row = row.unwrap();
    assert_eq!((row.num_rows(), row.column(0).null_count()), (1, 1));
    assert_eq!(
        row.column(2).as_string::<i32>().value(0),
        "no driver at all"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_are_opened_once_as_the_options_say() {
    let fake = Arc::new(Fake::default());
    let ctx = fake.session(&CUDA);
    tables(&ctx, 1000, 1000, 100);
    let sql = "SELECT count(range_min('t.v', l, r)) FROM q";
    let devices = "SELECT count(*) FROM rmq_devices() WHERE in_use AND index_bytes > 0 AND note IS NULL AND memory_free > 0";
    assert_eq!(bigint(&ctx, devices).await, Some(0));
    bigint(&ctx, sql).await;
    bigint(&ctx, sql).await;
    assert_eq!(bigint(&ctx, devices).await, Some(1));
    assert_eq!(*fake.opened.lock().unwrap(), [vec![0]]);
    assert_eq!(fake.built.load(Relaxed), 1);

    run(&ctx, "SET rmq.devices = '1,0'").await.unwrap();
    let plan = explain(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
    assert!(plan.contains("engine=cuda:1,0,"), "{plan}");
    assert!(plan.contains("indexes_built=1"), "{plan}");
    assert!(plan.contains("device_batches="), "{plan}");
    assert_eq!(bigint(&ctx, devices).await, Some(2));
    assert_eq!(*fake.opened.lock().unwrap(), [vec![0], vec![1, 0]]);
    // The indexes on the previous devices are freed.
    let held = bigint(
        &ctx,
        "SELECT CAST(sum(device_bytes) AS BIGINT) FROM rmq_indexes()",
    )
    .await;
    assert_eq!(held, Some(fake.held.load(Relaxed) as i64));
    assert_eq!(
        bigint(&ctx, "SELECT count(*) FROM rmq_indexes()").await,
        Some(1)
    );

    run(&ctx, "SET rmq.devices = '7'").await.unwrap();
    let message = error(&ctx, sql).await;
    assert!(message.contains("there is no device 7"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_engine_has_its_index_and_auto_uses_a_cached_one() {
    let fake = Arc::new(Fake::default());
    let ctx = fake.session(&[("rmq.engine", "cpu")]);
    tables(&ctx, 1000, 1000, 100);
    let sql = "EXPLAIN ANALYZE SELECT range_min('t.v', l, r) FROM q";
    for (engine, expected) in [
        ("cpu", "indexes_built=1"),
        ("cuda", "indexes_built=1"),
        ("cpu", "indexes_reused=1"),
        ("cuda", "indexes_reused=1"),
        ("auto", "indexes_reused=1"),
    ] {
        run(&ctx, &format!("SET rmq.engine = '{engine}'"))
            .await
            .unwrap();
        let plan = explain(&ctx, sql).await;
        assert!(plan.contains(expected), "{engine}: {plan}");
    }
    let engines = run(&ctx, "SELECT engine, device_bytes > 0 FROM rmq_indexes()").await;
    let engines = engines.unwrap();
    let names: Vec<_> = engines
        .column(0)
        .as_string::<i32>()
        .iter()
        .flatten()
        .collect();
    assert_eq!(names, ["cpu", "cuda:0"]);
    let on_device: Vec<_> = engines.column(1).as_boolean().iter().flatten().collect();
    assert_eq!(on_device, [false, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn device_memory_is_limited_and_the_least_recently_used_indexes_are_evicted() {
    let fake = Arc::new(Fake::default());
    let ctx = fake.session(&CUDA);
    for name in ["a", "b", "c"] {
        register(&ctx, name, &[("v", numbers(0..80_000))], &[]);
    }
    let ask = |name: &str| format!("SELECT range_min('{name}.v', 5, 9)");
    bigint(&ctx, &ask("a")).await;
    let bytes = fake.held.load(Relaxed);
    let limit = format!("SET rmq.device_memory_limit = '{}'", bytes * 5 / 2);
    run(&ctx, &limit).await.unwrap();
    bigint(&ctx, &ask("b")).await;
    bigint(&ctx, &ask("a")).await;
    bigint(&ctx, &ask("c")).await;
    let held = || async {
        let held = run(&ctx, "SELECT \"table\" FROM rmq_indexes()")
            .await
            .unwrap();
        let names = held.column(0).as_string::<i32>().iter().flatten();
        names.map(|n| n.chars().last().unwrap()).collect::<String>()
    };
    assert_eq!(held().await, "ac");
    assert_eq!(fake.held.load(Relaxed), 2 * bytes);
    // A lower limit takes effect with the next query.
    let limit = format!("SET rmq.device_memory_limit = '{bytes}'");
    run(&ctx, &limit).await.unwrap();
    bigint(&ctx, &ask("c")).await;
    assert_eq!(held().await, "c");

    // An index that cannot fit evicts nothing.
    register(&ctx, "d", &[("v", numbers(0..90_000))], &[]);
    let message = error(&ctx, &ask("d")).await;
    assert!(
        message.contains("rmq.engine = 'cuda': the index of d.v"),
        "{message}"
    );
    assert!(message.contains("do not fit on CUDA device 0"), "{message}");
    run(&ctx, "SET rmq.engine = 'auto'").await.unwrap();
    let plan = explain(&ctx, &format!("EXPLAIN ANALYZE {}", ask("d"))).await;
    assert!(
        plan.contains("engine=cpu (90000 rows, ~1 ranges; too large for a CUDA device)"),
        "{plan}"
    );
    assert_eq!(bigint(&ctx, &ask("d")).await, Some(5));
    assert_eq!(held().await, "cd");

    // If other processes use the memory, cached indexes are evicted; if that is not enough, the CPU takes over.
    fake.full_at.store(1, Relaxed);
    assert_eq!(bigint(&ctx, &ask("a")).await, Some(5));
    assert_eq!(held().await, "ad");
    run(&ctx, "DROP TABLE a").await.unwrap();
    fake.full_at.store(1, Relaxed);
    let plan = explain(&ctx, &format!("EXPLAIN ANALYZE {}", ask("b"))).await;
    assert!(plan.contains("cuda_fallbacks=1"), "{plan}");
    assert!(
        plan.contains("engine=cpu (7 bytes do not fit on CUDA device 0"),
        "{plan}"
    );
    assert_eq!(held().await, "bd");
    assert_eq!(fake.held.load(Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_end_on_the_cpu_with_the_same_answer_or_in_a_clear_error() {
    let sql = "SELECT CAST(sum(range_argmax('t.v', l, r)) AS BIGINT) FROM q";
    let cpu = Arc::new(Fake::default()).session(&[("rmq.engine", "cpu")]);
    tables(&cpu, 5000, 300_000, 8192);
    let expected = bigint(&cpu, sql).await;
    for at in 0..4 {
        for engine in ["auto", "cuda"] {
            let fake = Arc::new(Fake::default());
            let ctx = fake.session(&[("rmq.engine", engine)]);
            tables(&ctx, 5000, 300_000, 8192);
            match at {
                0 => fake.build_fails_at.store(1, Relaxed),
                n => fake.answer_fails_at.store(n, Relaxed),
            }
            if engine == "auto" {
                let plan = explain(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
                assert!(plan.contains("cuda_fallbacks="), "{plan}");
                assert_eq!(bigint(&ctx, sql).await, expected, "{at}");
                // Failed devices are not used again.
                let asked = fake.ranges();
                assert_eq!(bigint(&ctx, sql).await, expected);
                assert_eq!(fake.ranges(), asked);
                let plan = explain(&ctx, &format!("EXPLAIN {sql}")).await;
                assert!(
                    plan.contains("engine=cpu (the CUDA devices failed)"),
                    "{plan}"
                );
            } else {
                let message = error(&ctx, sql).await;
                let why = "CUDA device 0 failed to do as it was told: a test said so";
                assert!(message.contains(why), "{message}");
                let message = error(&ctx, sql).await;
                assert!(message.contains("no CUDA device can be used"), "{message}");
                assert!(message.contains(why), "{message}");
            }
            assert_eq!(fake.opened.lock().unwrap().len(), 1);
            let note = run(
                &ctx,
                "SELECT in_use, note FROM rmq_devices() WHERE device = 0",
            )
            .await;
            let note = note.unwrap();
            assert!(!note.column(0).as_boolean().value(0));
            let note = note.column(1).as_string::<i32>().value(0).to_string();
            assert!(
                note.starts_with("not used any more: CUDA device 0 failed"),
                "{note}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_tables_index_leaves_the_device() {
    let fake = Arc::new(Fake::default());
    let ctx = fake.session(&CUDA);
    tables(&ctx, 1000, 1000, 100);
    bigint(&ctx, "SELECT count(range_min('t.v', l, r)) FROM q").await;
    assert!(fake.held.load(Relaxed) > 0);
    run(&ctx, "DROP TABLE t").await.unwrap();
    assert_eq!(
        bigint(&ctx, "SELECT count(*) FROM rmq_indexes()").await,
        Some(0)
    );
    assert_eq!(fake.held.load(Relaxed), 0);
}
