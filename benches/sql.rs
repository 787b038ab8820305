//! SQL around the engine: the time of whole queries beside the engine's own time for the same ranges.
//!
//! `cargo bench -p datafusion-rmq --profile quick --bench sql`; `RMQ_BENCH_ROWS` and `RMQ_BENCH_RANGES` change the
//! sizes (2^24 and 10^7).

mod common;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use datafusion::arrow::array::{ArrayRef, Float32Array, Int64Array};
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};
use rmq_engine::Index;

use rmq_bench::clock::{self, timed};
use rmq_bench::env::var_or;
use rmq_bench::random::Random;
use rmq_bench::workload::{Bounds, Workload};

use common::{BATCH_SIZE, register_table};

/// Returns the median CPU time of five runs on this thread.
fn median(mut run: impl FnMut()) -> Duration {
    clock::median((0..5).map(|_| timed(&mut run)).collect())
}

fn benches(criterion: &mut Criterion) {
    let (n, ranges) = (
        var_or("RMQ_BENCH_ROWS", 1 << 24),
        var_or("RMQ_BENCH_RANGES", 10_000_000),
    );
    let mut random = Random::from_seed(1);
    let values: Vec<f32> = (0..n).map(|_| random.unit() as f32).collect();
    let Bounds { left, right } = Workload::Mixed.bounds(n, ranges);

    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    datafusion_rmq::register(&ctx);
    let v: ArrayRef = Arc::new(Float32Array::from(values.clone()));
    register_table(&ctx, "vals", vec![("v", v)], 1, n).expect("the table is new");
    let l: ArrayRef = Arc::new(Int64Array::from(left.clone()));
    let r: ArrayRef = Arc::new(Int64Array::from(right.clone()));
    let bounds = vec![("l", l), ("r", r)];
    register_table(&ctx, "queries", bounds, 1, BATCH_SIZE).expect("the table is new");

    let run = |sql: &str| {
        runtime.block_on(async {
            let frame = ctx.sql(sql).await.expect(sql);
            let plan = frame.create_physical_plan().await.expect(sql);
            black_box(collect(plan, ctx.task_ctx()).await.expect(sql));
        });
    };
    let scalar = "SELECT sum(range_min('vals.v', l, r)) FROM queries";
    let scan = "SELECT sum(l), sum(r) FROM queries";
    let table_form = "SELECT sum(min), sum(argmin) FROM range_min('vals.v', 'queries', 'l', 'r')";
    let started = Instant::now();
    run(scalar);
    println!("first query, index built: {:.0?}", started.elapsed());

    let index = Index::min(&values[..]).expect("memory for an index");
    let mut out = vec![0.0_f32; BATCH_SIZE];
    let engine = median(|| {
        for (l, r) in left.chunks(BATCH_SIZE).zip(right.chunks(BATCH_SIZE)) {
            index
                .values(l, r, &mut out[..l.len()])
                .expect("slices of one length");
            black_box(&out);
        }
    });
    println!(
        "CPU time of {ranges} mixed ranges over {n} f32, one thread, and its ratio to the engine's own:"
    );
    let print = |what: &str, time: Duration| {
        println!(
            "  {what:<34} {time:>8.0?}  {:>6.1} ns a range  {:.2}",
            time.as_secs_f64() * 1e9 / ranges as f64,
            time.as_secs_f64() / engine.as_secs_f64()
        );
    };
    print("the engine alone", engine);
    print("SQL, a scan of the bounds alone", median(|| run(scan)));
    print("SQL, scalar form", median(|| run(scalar)));
    print("SQL, table form, with position", median(|| run(table_form)));

    // The window form sorts, and builds an index per partition. `row_number()` only sorts.
    let symbols = "SELECT sum(m) FROM (SELECT frame_min(v, i - 100, i) OVER (PARTITION BY s ORDER BY i) AS m \
                   FROM (SELECT value % 1000 AS s, value / 1000 AS i, (value * 7919) % 10007 AS v FROM range(0, 1000000)))";
    let ranked = symbols.replace("frame_min(v, i - 100, i)", "row_number()");
    print_window(
        "window form, 10^6 rows, 1000 symbols",
        median(|| run(symbols)),
    );
    print_window("row_number() over the same", median(|| run(&ranked)));

    let mut group = criterion.benchmark_group("sql");
    group.sample_size(10);
    group.bench_function("scalar", |b| b.iter(|| run(scalar)));
    group.bench_function("table", |b| b.iter(|| run(table_form)));
    group.bench_function("window", |b| b.iter(|| run(symbols)));
    group.finish();
}

fn print_window(what: &str, time: Duration) {
    println!("  {what:<38} {time:>8.0?}");
}

criterion_group!(sql, benches);
criterion_main!(sql);
