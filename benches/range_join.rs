//! Plain SQL as a range join: whole queries, beside DataFusion's own plan where that ends in time.
//!
//! `cargo bench --profile quick --bench range_join`; names as arguments run only those parts: `positions`, `trades`, `plan`,
//! `few`. `benches/range_join_peers.py` asks DuckDB and Polars the same.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};

#[allow(dead_code)]
mod support;
use support::clock::process_time;
use support::random::Random;
use support::workload::Workload;

/// Rows in a batch, as DataFusion's own readers make them.
const BATCH: usize = 8192;

fn session() -> SessionContext {
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    datafusion_rmq::register(&ctx);
    ctx
}

fn table(ctx: &SessionContext, name: &str, columns: Vec<(&str, ArrayRef)>) {
    let whole = RecordBatch::try_from_iter(columns).expect("columns of one length");
    let batches = (0..whole.num_rows())
        .step_by(BATCH)
        .map(|at| whole.slice(at, BATCH.min(whole.num_rows() - at)))
        .collect();
    let table = MemTable::try_new(whole.schema(), vec![batches]).expect("batches of one schema");
    ctx.register_table(name, Arc::new(table))
        .expect("the table is new");
}

/// Runs a query once, and prints its CPU time and its wall time.
fn measure(ctx: &SessionContext, what: &str, sql: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("a runtime");
    let times = (0..3).map(|_| {
        let (cpu, wall) = (process_time(), Instant::now());
        runtime.block_on(async {
            let frame = ctx.sql(sql).await.expect(sql);
            let plan = frame.create_physical_plan().await.expect(sql);
            black_box(collect(plan, ctx.task_ctx()).await.expect(sql));
        });
        (process_time() - cpu, wall.elapsed())
    });
    let (cpu, wall) = times.min().expect("three runs");
    println!(
        "  {what:<58} {:>9.3} s CPU {:>9.3} s",
        cpu.as_secs_f64(),
        wall.as_secs_f64()
    );
}

fn column(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<Int64Array>())
}

fn positions(n: usize, ranges: usize) {
    println!("positions: {n} f32, {ranges} mixed ranges");
    let ctx = session();
    let mut random = Random(1);
    let values: Float32Array = (0..n).map(|_| Some(random.unit() as f32)).collect();
    let (left, right) = Workload::Mixed.queries(n, ranges);
    table(
        &ctx,
        "vals",
        vec![("pos", column(0..n as i64)), ("v", Arc::new(values))],
    );
    let ids = column(0..ranges as i64);
    table(
        &ctx,
        "q",
        vec![("id", ids), ("l", column(left)), ("r", column(right))],
    );
    measure(
        &ctx,
        "range_min('vals.v', l, r)",
        "SELECT sum(m) FROM (SELECT id, range_min('vals.v', l, r) AS m FROM q)",
    );
    measure(
        &ctx,
        "subquery",
        "SELECT sum(m) FROM (SELECT id, (SELECT min(v) FROM vals WHERE pos BETWEEN q.l AND q.r) AS m FROM q)",
    );
    measure(
        &ctx,
        "LEFT JOIN … GROUP BY q.id",
        "SELECT sum(m) FROM (SELECT q.id, min(v) AS m FROM q LEFT JOIN vals ON pos BETWEEN q.l AND q.r GROUP BY q.id)",
    );
}

fn trades(quotes: usize, trades: usize, spread: i64, name: &str) {
    println!("trades ({name}): {quotes} quotes, {trades} trades, 1000 symbols");
    let mut random = Random(2);
    let mut below = |n: u64| (random.unit() * n as f64) as i64;
    let time = |values: Vec<i64>| {
        let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
        cast(&column(values), &micros).expect("numbers are times")
    };
    let span = quotes as i64 * spread;
    let symbols = |n: usize, below: &mut dyn FnMut(u64) -> i64| -> ArrayRef {
        let symbol = (0..n).map(|_| Some(format!("S{:04}", below(1000))));
        Arc::new(symbol.collect::<StringArray>())
    };
    let times: Vec<i64> = (0..quotes as i64).map(|i| i * spread).collect();
    let symbol = symbols(quotes, &mut below);
    let prices = column((0..quotes).map(|_| below(1_000_000)));
    let ids = column(0..trades as i64);
    let mut asked: Vec<i64> = (0..trades).map(|_| below(span as u64)).collect();
    asked.sort_unstable();
    let asked_symbols = symbols(trades, &mut below);
    let trades_columns = vec![("id", ids), ("sym", asked_symbols), ("ts", time(asked))];

    let by_time = session();
    let quote_columns = vec![("sym", symbol), ("ts", time(times)), ("price", prices)];
    table(&by_time, "quotes", quote_columns);
    table(&by_time, "trades", trades_columns);
    let condition =
        "p.sym = q.sym AND p.ts BETWEEN q.ts - INTERVAL '1 second' AND q.ts + INTERVAL '1 second'";
    let subquery = format!(
        "SELECT sum(m) FROM (SELECT id, (SELECT min(price) FROM quotes p WHERE {condition}) AS m FROM trades q)"
    );
    let join = format!(
        "SELECT sum(m) FROM (SELECT q.id, min(price) AS m FROM trades q LEFT JOIN quotes p ON {condition} GROUP BY q.id)"
    );
    measure(&by_time, "quotes by time, subquery", &subquery);
    measure(&by_time, "quotes by time, LEFT JOIN … GROUP BY q.id", &join);

    let by_symbol = session();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let read = |sql: &str| {
        runtime.block_on(async {
            by_time
                .sql(sql)
                .await
                .expect(sql)
                .collect()
                .await
                .expect(sql)
        })
    };
    for (name, sql) in [
        ("quotes", "SELECT * FROM quotes ORDER BY sym, ts"),
        ("trades", "SELECT * FROM trades ORDER BY id"),
    ] {
        let batches = read(sql);
        let table = MemTable::try_new(batches[0].schema(), vec![batches]).expect("one schema");
        by_symbol
            .register_table(name, Arc::new(table))
            .expect("the table is new");
    }
    measure(&by_symbol, "quotes by symbol and time, subquery", &subquery);
    measure(&by_symbol, "quotes by symbol and time, LEFT JOIN …", &join);
}

/// DataFusion's own plan beside ours: a range, and few ranges over a large table that is not sorted.
fn own_plan(n: usize, ranges: usize) {
    println!("DataFusion's own plan: {n} rows in no order, {ranges} ranges");
    let ctx = session();
    let mut random = Random(3);
    let keys = column((0..n).map(|_| (random.unit() * n as f64) as i64));
    let values = column((0..n).map(|_| (random.unit() * 1e6) as i64));
    let (left, right) = Workload::Mixed.queries(n, ranges);
    table(&ctx, "vals", vec![("pos", keys), ("v", values)]);
    let ids = column(0..ranges as i64);
    table(
        &ctx,
        "q",
        vec![("id", ids), ("l", column(left)), ("r", column(right))],
    );
    let join = "SELECT q.id, min(v) AS m FROM q JOIN vals ON pos BETWEEN q.l AND q.r GROUP BY q.id";
    measure(&ctx, "JOIN … GROUP BY q.id", join);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let off = runtime.block_on(ctx.sql("SET rmq.rewrite = false"));
    off.expect("the option is known");
    measure(&ctx, "the same with rmq.rewrite = false", join);
}

fn main() {
    let asked: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let wants = |name: &str| asked.is_empty() || asked.iter().any(|a| a == name);
    if wants("positions") {
        positions(1 << 20, 1_000_000);
        positions(1 << 24, 100_000);
    }
    if wants("trades") {
        // About one quote of the symbol in two seconds, and two hundred.
        trades(10_000_000, 1_000_000, 2_000, "sparse");
        trades(10_000_000, 1_000_000, 10, "dense");
    }
    if wants("plan") {
        own_plan(100_000, 10_000);
    }
    if wants("few") {
        for ranges in [1, 4, 16, 64, 256] {
            own_plan(4_000_000, ranges);
        }
    }
}
