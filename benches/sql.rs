//! SQL around the engine: how much the whole query takes beside the engine's own time for the same ranges.
//!
//! `cargo bench --profile quick --bench sql`; `RMQ_BENCH_ROWS` and `RMQ_BENCH_RANGES` change the sizes (2^24 and 10^7).

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use datafusion::arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};
use rmq_engine::Index;

use rmq_bench::support::clock::timed;
use rmq_bench::support::random::Random;
use rmq_bench::support::workload::Workload;

/// Rows in a batch of the table of ranges, as DataFusion's own readers make them.
const BATCH: usize = 8192;

fn size(name: &str, default: usize) -> usize {
    std::env::var(name)
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(default)
}

fn table(ctx: &SessionContext, name: &str, columns: Vec<(&str, ArrayRef)>, batch: usize) {
    let whole = RecordBatch::try_from_iter(columns).expect("columns of one length");
    let batches = (0..whole.num_rows())
        .step_by(batch)
        .map(|at| whole.slice(at, batch.min(whole.num_rows() - at)))
        .collect();
    let table = MemTable::try_new(whole.schema(), vec![batches]).expect("batches of one schema");
    ctx.register_table(name, Arc::new(table))
        .expect("the table is new");
}

/// The median CPU time of five runs on this thread.
fn median(mut run: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..5).map(|_| timed(&mut run)).collect();
    times.sort_unstable();
    times[2]
}

fn benches(criterion: &mut Criterion) {
    let (n, ranges) = (
        size("RMQ_BENCH_ROWS", 1 << 24),
        size("RMQ_BENCH_RANGES", 10_000_000),
    );
    let mut random = Random(1);
    let values: Vec<f32> = (0..n).map(|_| random.unit() as f32).collect();
    let (left, right) = Workload::Mixed.queries(n, ranges);

    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    datafusion_rmq::register(&ctx);
    let v: ArrayRef = Arc::new(Float32Array::from(values.clone()));
    table(&ctx, "vals", vec![("v", v)], n);
    let l: ArrayRef = Arc::new(Int64Array::from(left.clone()));
    let r: ArrayRef = Arc::new(Int64Array::from(right.clone()));
    table(&ctx, "queries", vec![("l", l), ("r", r)], BATCH);

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
    let mut out = vec![0.0_f32; BATCH];
    let engine = median(|| {
        for (l, r) in left.chunks(BATCH).zip(right.chunks(BATCH)) {
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

    // The window form builds an index a partition: its time is that of a sort and of these.
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
