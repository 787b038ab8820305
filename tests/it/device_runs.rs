//! Build sides that devices build run by run, as these exceed their memory or were spilled: on devices that are threads, against the CPU.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one pair of tables; `RMQ_CASES` makes it longer.

use std::sync::Arc;

use datafusion::arrow::compute::concat_batches;
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::{MemoryPool, UnboundedMemoryPool};
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::SessionContext;

use crate::fake::{Fake, device_error, step_faults};
use crate::range_join::{Tables, lines, metric};
use crate::range_join_devices::wait_until_released;
use crate::range_join_faults::{QUERIES as QUERIES_ON_DEVICES, tables};
use crate::spilling::{self, ForRangeJoins, in_order, planned, share};
use crate::support::{context_of_pool, run, session_of_pool};
use rmq_testing::{Random, cases_with_queries, is_usual};

/// The number of queries of each test, unless `RMQ_CASES` overrides it.
const CASES: usize = 400;

/// Queries over the same pair of tables.
const QUERIES: usize = 8;

/// A session over the tables with devices that have so much memory.
async fn session(
    tables: &Tables,
    fake: &Arc<Fake>,
    engine: &str,
    pool: Arc<dyn MemoryPool>,
) -> SessionContext {
    let config = tables.with.copied_config();
    let ctx = context_of_pool(config.with_create_default_catalog_and_schema(true), pool);
    let ctx = fake.register(ctx, &[("rmq.engine", engine)]);
    share(&tables.with, &ctx).await;
    ctx
}

fn with_memory(bytes: usize) -> Fake {
    Fake {
        memory: bytes,
        joins: true,
        ..Fake::default()
    }
}

/// Whether a query may fail so: the host's memory is limited, or forced devices have too little for few rows.
fn is_expected(error: &DataFusionError) -> bool {
    let message = error.to_string();
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
        || message.contains("Resources exhausted")
        || message.contains("do not fit")
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_on_devices_return_the_same() {
    let (mut asked, mut in_runs, mut on_disk, mut failed) = (0, 0, 0, 0);
    for seed in cases_with_queries("device runs", &[], CASES, QUERIES) {
        let random = &mut Random::of_case(seed);
        let batch_size = [16, 100, 8192][random.below(3)];
        let tables = Tables::sized(random, (600, 80), batch_size);
        for query in 0..QUERIES {
            let sql = match query % 2 {
                0 => tables.grouped_join(random),
                _ => tables.correlated(random).0,
            };
            let Ok(plan) = planned(&tables.with, &sql).await else {
                continue;
            };
            let Ok(expected) = collect(plan, tables.with.task_ctx()).await else {
                continue;
            };
            let fake = Arc::new(with_memory((2 + random.below(3)) << (12 + random.below(3))));
            let engine = ["auto", "cuda", "cuda", "cuda"][random.below(4)];
            let pool: Arc<dyn MemoryPool> = match random.below(2) {
                0 => ForRangeJoins::new((64 + random.below(64)) << (10 + random.below(2))),
                _ => Arc::new(UnboundedMemoryPool::default()),
            };
            let ctx = session(&tables, &fake, engine, pool).await;
            let what = format!(
                "tables of seed {seed}, {engine}, {} bytes: {sql}",
                fake.memory
            );
            let plan = planned(&ctx, &sql).await.expect(&what);
            match collect(Arc::clone(&plan), ctx.task_ctx()).await {
                Ok(found) => assert_eq!(lines(&found), lines(&expected), "{what}"),
                Err(error) => {
                    assert!(is_expected(&error), "{what}: {error}");
                    failed += 1;
                }
            }
            let runs = metric(&plan, "device_runs");
            asked += 1;
            in_runs += usize::from(runs > 1);
            on_disk += usize::from(runs > 0 && metric(&plan, "spill_count") > 0);
            drop(plan);
            wait_until_released(&ctx, &fake).await;
        }
    }
    println!(
        "device runs: {asked} queries, {in_runs} in several runs on devices, {on_disk} from disk, {failed} without memory"
    );
    assert!(
        // About one in twenty, and one in four.
        in_runs > 0 && failed * 2 < asked || !is_usual(),
        "{in_runs} of {asked} queries in several runs, {failed} failed"
    );
}

/// Rows that memory can't hold are spilled, and devices build what is read back.
#[tokio::test(flavor = "multi_thread")]
async fn devices_build_spill_runs() {
    let config = in_order(3).with_batch_size(512);
    let all = spilling::tables().await;
    let fake = Arc::new(with_memory(1 << 30));
    let cpu = session_of_pool(config.clone(), Arc::new(UnboundedMemoryPool::default()));
    let ctx = context_of_pool(config, ForRangeJoins::new(3 << 20));
    let ctx = fake.register(ctx, &[("rmq.engine", "cuda")]);
    share(&all, &ctx).await;
    share(&all, &cpu).await;
    let sql = "SELECT q.id, min(p.v), max(p.s), count(*), count(p.n), sum(p.n), sum(p.d), avg(p.n), first_value(p.id ORDER BY p.t), \
               last_value(p.id ORDER BY p.t), first_value(p.id ORDER BY p.v), last_value(p.id ORDER BY p.v) \
               FROM q LEFT JOIN p ON p.sym = q.sym AND p.t BETWEEN q.t - 3 AND q.t GROUP BY q.id";
    let expected = run(&cpu, &format!("{sql} ORDER BY 1")).await.expect(sql);
    let plan = planned(&ctx, &format!("{sql} ORDER BY 1"))
        .await
        .expect(sql);
    let found = collect(Arc::clone(&plan), ctx.task_ctx()).await.expect(sql);
    let found = concat_batches(&expected.schema(), &found).expect(sql);
    assert_eq!(lines(&[found]), lines(&[expected]));
    assert!(metric(&plan, "spill_count") > 1 && metric(&plan, "device_runs") > 1);
    let text = displayable(plan.as_ref()).indent(false).to_string();
    assert!(text.contains("engine=cuda:0"), "{text}");
}

/// A query that is dropped between two runs, or while one is built, leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_dropped_amid_its_runs_leaves_nothing() {
    let sql = QUERIES_ON_DEVICES[0];
    let fake = Arc::new(with_memory(20_000));
    let ctx = fake.session(&[("rmq.engine", "cuda")]);
    tables(&ctx, 600, 100);
    let mut ended = 0;
    for moment in 0..60 {
        let plan = planned(&ctx, sql).await.expect(sql);
        let query = collect(plan, ctx.task_ctx());
        let moment = std::time::Duration::from_micros(moment * 500);
        ended += usize::from(tokio::time::timeout(moment, query).await.is_ok());
        wait_until_released(&ctx, &fake).await;
    }
    println!("{ended} of 60 queries ended");
    assert!(ended < 60, "no query was dropped");
}

/// Each step of the devices, run after run, may fail.
#[tokio::test(flavor = "multi_thread")]
async fn each_step_of_runs_may_fail() {
    let sql = QUERIES_ON_DEVICES[0];
    let session = |fake: &Arc<Fake>, engine: &str| {
        let ctx = fake.session(&[("rmq.engine", engine)]);
        tables(&ctx, 600, 100);
        ctx
    };
    let cpu = session(&Arc::new(Fake::default()), "cpu");
    let plan = planned(&cpu, sql).await.expect(sql);
    let expected = collect(plan, cpu.task_ctx()).await.expect(sql);
    let mut faults = 0;
    for fault in step_faults() {
        for nth in 1.. {
            let fake = Arc::new(with_memory(20_000));
            *fake.join_fault.lock().unwrap() = Some((nth, fault.clone()));
            let ctx = session(&fake, "cuda");
            let plan = planned(&ctx, sql).await.expect(sql);
            let found = collect(Arc::clone(&plan), ctx.task_ctx()).await;
            let occurred = fake.join_fault.lock().unwrap().is_none();
            let lost = occurred && fault == device_error(0);
            match found {
                Ok(found) => {
                    assert!(!lost, "{nth}");
                    assert_eq!(lines(&found), lines(&expected), "{fault}, {nth}");
                }
                Err(error) => {
                    // A part of a few rows that does not fit is not halved again.
                    assert!(lost || is_expected(&error), "{fault}, {nth}: {error}");
                    let message = error.to_string();
                    assert!(message.contains("rmq.engine = 'cuda'"), "{message}");
                }
            }
            let runs = metric(&plan, "device_runs");
            drop(plan);
            wait_until_released(&ctx, &fake).await;
            if !occurred {
                assert!(runs > 2 && nth > 12, "{runs} runs, {nth} steps");
                break;
            }
            faults += 1;
        }
    }
    println!("{faults} faults");
}
