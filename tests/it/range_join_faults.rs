//! Range joins that devices sort and answer, on fake devices and on those of the driver: the CPU's results, also if any
//! step fails.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use datafusion::arrow::array::{
    ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, UInt64Array,
};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::UnboundedMemoryPool;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::SessionContext;
use datafusion_rmq::{DeviceEngine, DeviceSource, register_with_devices};
use futures::StreamExt;
use rmq_engine::EngineError;
use rmq_engine::cost_model::Costs;
use rmq_engine::cuda::{CudaEngine, CudaOptions, DeviceInfo, Fault, devices};

use crate::fake::{FREE, Fake, step_faults};
use crate::range_join::{lines, metric};
use crate::range_join_devices::wait_until_released;
use crate::spilling::{self, ForRangeJoins, in_order, planned, share};
use crate::support::{context_of_pool, error, register, run, session_of_pool, set};
use rmq_testing::Random;

/// A build side `p` in no order and a probe side `q`, the same each time. Sums of `price` are exact.
fn tables(ctx: &SessionContext, build: usize, probe: usize) {
    let mut random = Random::from_seed(23);
    let mut numbers = |n: usize, limit: usize| -> Vec<Option<i64>> {
        let mut number = |_| (random.below(15) > 0).then(|| random.below(limit) as i64);
        (0..n).map(&mut number).collect()
    };
    let column = |values: Vec<Option<i64>>| Arc::new(Int64Array::from(values)) as ArrayRef;
    let symbols = |values: Vec<Option<i64>>| {
        let names = values.iter().map(|v| v.map(|v| format!("S{v}")));
        Arc::new(names.collect::<StringArray>()) as ArrayRef
    };
    let prices = |values: Vec<Option<i64>>| {
        let prices = values.iter().map(|v| v.map(|v| v as f64 / 8.0 - 50.0));
        Arc::new(prices.collect::<Float64Array>()) as ArrayRef
    };
    let sizes = |values: Vec<Option<i64>>| {
        let sizes = values.iter().map(|v| v.map(|v| v as u64 * 3));
        Arc::new(sizes.collect::<UInt64Array>()) as ArrayRef
    };
    let columns = [
        ("sym", symbols(numbers(build, 5))),
        ("ts", column(numbers(build, 1000))),
        ("v", column(numbers(build, 100_000))),
        ("price", prices(numbers(build, 800))),
        ("size", sizes(numbers(build, 90))),
        ("venue", symbols(numbers(build, 40))),
    ];
    register(ctx, "p", &columns, &[build / 3, build / 5]);
    let columns = [
        ("id", column((0..probe as i64).map(Some).collect())),
        ("sym", symbols(numbers(probe, 6))),
        ("a", column(numbers(probe, 1000))),
        ("width", column(numbers(probe, 200))),
    ];
    register(ctx, "q", &columns, &[probe / 10; 9]);
}

/// Queries that devices sort and answer.
const QUERIES: [&str; 8] = [
    "SELECT q.id, min(v), max(price), count(*), count(v), sum(v), sum(size), sum(price), avg(price) FROM q LEFT JOIN p ON p.sym = q.sym \
     AND ts BETWEEN a AND a + width GROUP BY q.id",
    "SELECT q.id, min(v), avg(v), sum(price) FROM q JOIN p ON ts > a AND ts <= a + width GROUP BY q.id",
    "SELECT q.id, x.* FROM q CROSS JOIN LATERAL (SELECT max(v) AS m, first_value(price ORDER BY v) AS at, last_value(v ORDER BY ts) AS last, \
     sum(price) AS total FROM p WHERE p.sym = q.sym AND ts BETWEEN a AND a + width) AS x",
    "SELECT q.id, (SELECT min(price) FROM p WHERE p.sym = q.sym AND ts >= a) FROM q",
    // Neither minima nor maxima.
    "SELECT q.id, sum(v), avg(price) FROM q JOIN p ON p.sym = q.sym AND ts BETWEEN a AND a + width GROUP BY q.id",
    "SELECT q.id, (SELECT count(*) FROM p WHERE p.sym = q.sym AND ts <= a) FROM q",
    // Ranks, counts of values of any type, and decimals.
    "SELECT q.id, min(venue), max(venue), count(venue), count(p.sym), sum(v) FROM q LEFT JOIN p ON p.sym = q.sym AND ts BETWEEN a AND a + width      GROUP BY q.id",
    "SELECT q.id, x.* FROM q CROSS JOIN LATERAL (SELECT max(CAST(v AS DECIMAL(10, 2))) AS m, sum(CAST(v AS DECIMAL(10, 2))) AS total,      avg(CAST(v AS DECIMAL(10, 2))) AS mean, first_value(v ORDER BY venue) AS at FROM p WHERE p.sym = q.sym AND ts BETWEEN a AND a + width) AS x",
];

async fn rows(ctx: &SessionContext, sql: &str) -> RecordBatch {
    let ordered = format!("SELECT * FROM ({sql}) ORDER BY 1");
    run(ctx, &ordered)
        .await
        .unwrap_or_else(|e| panic!("{sql}: {e}"))
}

fn session(fake: &Arc<Fake>, engine: &str) -> SessionContext {
    let ctx = fake.session(&[("rmq.engine", engine), ("rmq.keep_indexes", "false")]);
    tables(&ctx, 600, 300);
    ctx
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_that_sort_return_the_same_results_as_the_cpu() {
    let cpu = session(&Arc::new(Fake::default()), "cpu");
    for engine in ["cuda", "auto"] {
        let fake = Arc::new(Fake::default());
        let ctx = session(&fake, engine);
        for sql in QUERIES {
            fake.batches.lock().unwrap().clear();
            assert_eq!(rows(&ctx, sql).await, rows(&cpu, sql).await, "{sql}");
            assert_eq!(fake.ranges(), 300, "{sql}");
        }
        wait_until_released(&ctx, &fake).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_on_devices_may_fail() {
    let cpu = session(&Arc::new(Fake::default()), "cpu");
    let mut faults = 0;
    for sql in [QUERIES[0], QUERIES[6]] {
        let expected = rows(&cpu, sql).await;
        for fault in step_faults() {
            for engine in ["auto", "cuda"] {
                for nth in 1.. {
                    let fake = Arc::new(Fake::default());
                    *fake.join_fault.lock().unwrap() = Some((nth, fault.clone()));
                    let ctx = session(&fake, engine);
                    let found = run(&ctx, &format!("SELECT * FROM ({sql}) ORDER BY 1")).await;
                    let occurred = fake.join_fault.lock().unwrap().is_none();
                    // The CPU may need less memory of the host.
                    let is_of_host = matches!(fault, EngineError::OutOfMemory { .. });
                    let ends = engine == "cuda" && !is_of_host;
                    match found {
                        Ok(found) => {
                            assert!(!(ends && occurred), "{fault}, {nth}: {sql}");
                            assert_eq!(found, expected, "{engine}, {fault}, {nth}: {sql}");
                        }
                        Err(error) => {
                            let message = error.to_string();
                            assert!(engine == "cuda" && occurred, "{nth}: {message}");
                            assert!(message.contains("rmq.engine = 'cuda'"), "{message}");
                        }
                    }
                    wait_until_released(&ctx, &fake).await;
                    if !occurred {
                        assert!(nth > 8, "only {nth} steps: {sql}");
                        break;
                    }
                    faults += 1;
                }
            }
        }
    }
    println!("{faults} faults");
}

/// Devices of the driver, which may be emulated, of which one call fails.
#[derive(Debug)]
struct Faulty {
    fault: Fault,
    nth: u64,
    engine: Mutex<Option<Arc<CudaEngine>>>,
}

impl DeviceSource for Faulty {
    fn list(&self) -> Result<Vec<DeviceInfo>, EngineError> {
        devices()
    }

    fn open(&self, options: &CudaOptions) -> Result<Arc<dyn DeviceEngine>, EngineError> {
        let engine = Arc::new(CudaEngine::open(options)?);
        engine.inject(self.fault, self.nth);
        *self.engine.lock().unwrap() = Some(Arc::clone(&engine));
        Ok(engine)
    }

    fn costs(&self) -> Costs {
        FREE
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_of_the_driver_may_fail() {
    let usable = devices().is_ok_and(|all| all.iter().any(|device| device.unusable.is_none()));
    if !usable {
        println!("skipped: no CUDA device");
        return;
    }
    let cpu = session(&Arc::new(Fake::default()), "cpu");
    let expected = rows(&cpu, QUERIES[0]).await;
    let mut faults = 0;
    for fault in Fault::ALL {
        for nth in 1.. {
            let source = Arc::new(Faulty {
                fault,
                nth,
                engine: Mutex::default(),
            });
            let ctx = SessionContext::new();
            let devices: Arc<dyn DeviceSource> = source.clone();
            register_with_devices(&ctx, devices);
            set(&ctx, "rmq.engine", "auto");
            tables(&ctx, 600, 300);
            assert_eq!(
                rows(&ctx, QUERIES[0]).await,
                expected,
                "call {nth}, {fault:?}"
            );
            let engine = source.engine.lock().unwrap().take();
            let engine = engine.expect("the devices were opened");
            if engine.inject(fault, 0) {
                assert!(nth > 1, "{fault:?} has not occurred");
                break;
            }
            faults += 1;
        }
    }
    println!("{faults} faults");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_side_that_exceeds_the_memory_of_devices_is_joined() {
    let cpu = session(&Arc::new(Fake::default()), "cpu");
    for sql in QUERIES {
        let expected = rows(&cpu, sql).await;
        let mut on_cpu = 0;
        for limit in ["100", "6000", "20000", "40000", "80000"] {
            let fake = Arc::new(Fake::default());
            let ctx = session(&fake, "auto");
            set(&ctx, "rmq.device_memory_limit", limit);
            assert_eq!(rows(&ctx, sql).await, expected, "{limit}: {sql}");
            on_cpu += usize::from(fake.built.load(Relaxed) == 0);
            wait_until_released(&ctx, &fake).await;
            // The same with devices that have no more.
            let fake = Arc::new(Fake {
                memory: limit.parse().unwrap(),
                ..Fake::default()
            });
            let ctx = session(&fake, "auto");
            assert_eq!(rows(&ctx, sql).await, expected, "{limit}: {sql}");
            wait_until_released(&ctx, &fake).await;
        }
        assert!(on_cpu > 0, "{sql}");
        for limit in ["100", "6000"] {
            let fake = Arc::new(Fake::default());
            let ctx = session(&fake, "cuda");
            set(&ctx, "rmq.device_memory_limit", limit);
            let message = error(&ctx, sql).await;
            assert!(message.contains("do not fit"), "{message}");
            wait_until_released(&ctx, &fake).await;
        }
    }
}

/// Rows that the memory of the host can't hold are built by the CPU, also if devices are forced, and EXPLAIN says so.
#[tokio::test(flavor = "multi_thread")]
async fn the_cpu_builds_spilled_rows() {
    let config = in_order(3).with_batch_size(512);
    let all = spilling::tables().await;
    let fake = Arc::new(Fake::default());
    let cpu = session_of_pool(config.clone(), Arc::new(UnboundedMemoryPool::default()));
    let ctx = context_of_pool(config, ForRangeJoins::new(3 << 20));
    let ctx = fake.register(ctx, &[("rmq.engine", "cuda")]);
    share(&all, &ctx).await;
    share(&all, &cpu).await;
    let sql = "SELECT q.id, min(p.v), count(*), sum(p.n), last_value(p.id ORDER BY p.t) \
               FROM q LEFT JOIN p ON p.sym = q.sym AND p.t BETWEEN q.t - 3 AND q.t GROUP BY q.id ORDER BY 1";
    let expected = run(&cpu, sql).await.expect(sql);
    let plan = planned(&ctx, sql).await.expect(sql);
    let found = collect(Arc::clone(&plan), ctx.task_ctx()).await.expect(sql);
    let found = concat_batches(&expected.schema(), &found).expect(sql);
    assert_eq!(lines(&[found]), lines(&[expected]));
    assert!(metric(&plan, "spill_count") > 1);
    let text = displayable(plan.as_ref()).indent(false).to_string();
    assert!(text.contains("engine=cpu (on disk)"), "{text}");
}

/// A partition of endless rows, or one that ends in an error after a few.
#[derive(Debug)]
struct Partition {
    rows: RecordBatch,
    fails: bool,
    /// The number of streams that exist.
    open: Arc<AtomicUsize>,
}

struct OpenStream(Arc<AtomicUsize>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl PartitionStream for Partition {
    fn schema(&self) -> &SchemaRef {
        self.rows.schema_ref()
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (rows, fails) = (self.rows.clone(), self.fails);
        self.open.fetch_add(1, Relaxed);
        let open = OpenStream(Arc::clone(&self.open));
        let batches = futures::stream::iter(0..).then(move |i| {
            let _ = &open;
            let rows = rows.slice(i % 7, 20);
            async move {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                if fails && i == 5 {
                    return Err(DataFusionError::Execution("a torn file".to_string()));
                }
                Ok(rows)
            }
        });
        let schema = Arc::clone(self.rows.schema_ref());
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_one_partition_ends_the_others() {
    for (side, engine) in [("p", "auto"), ("p", "cpu"), ("q", "auto"), ("q", "cpu")] {
        for sql in [QUERIES[0], QUERIES[3], QUERIES[6]] {
            let fake = Arc::new(Fake::default());
            let ctx = session(&fake, engine);
            let whole = run(&ctx, &format!("SELECT * FROM {side}")).await.unwrap();
            ctx.deregister_table(side).unwrap();
            let open = Arc::new(AtomicUsize::new(0));
            let partitions = (0..4).map(|i| {
                let partition = Partition {
                    rows: whole.clone(),
                    fails: i == 2,
                    open: Arc::clone(&open),
                };
                Arc::new(partition) as Arc<dyn PartitionStream>
            });
            let table = StreamingTable::try_new(whole.schema(), partitions.collect()).unwrap();
            ctx.register_table(side, Arc::new(table)).unwrap();
            let message = error(&ctx, sql).await;
            assert!(message.contains("a torn file"), "{side}: {message}");
            wait_until_released(&ctx, &fake).await;
            while open.load(Relaxed) > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
    }
}
