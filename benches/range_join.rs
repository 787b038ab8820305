//! Plain SQL as a range join: whole queries, beside DataFusion's own plan where that ends in reasonable time.
//!
//! `cargo bench -p datafusion-rmq --profile quick --bench range_join`; names as arguments run only those parts:
//! `positions`, `trades`, `plan`, `few`, `scale`, `memory`, and `devices`, which runs only if named. `RMQ_BENCH_DATA`
//! names a folder to which the tables of the first two are written as Parquet, for `benches/range_join_peers.py`, which
//! runs the same queries in DuckDB and Polars.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{Array, ArrayRef, Float32Array, Int64Array, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};

use rmq_bench::clock::process_time;
use rmq_bench::env::var_or;
use rmq_bench::memory::{Resident, release_unused};
use rmq_bench::random::Random;
use rmq_bench::workload::{Bounds, Workload};

use common::{BATCH_SIZE, register_table};

/// Returns the number of threads of a query.
fn threads() -> usize {
    var_or("RMQ_BENCH_THREADS", 2)
}

fn session() -> SessionContext {
    let ctx =
        SessionContext::new_with_config(SessionConfig::new().with_target_partitions(threads()));
    datafusion_rmq::register(&ctx);
    keep_indexes(&ctx, false);
    if let Ok(engine) = std::env::var("RMQ_BENCH_ENGINE") {
        let set = format!("SET rmq.engine = '{engine}'");
        runtime().block_on(ctx.sql(&set)).expect("an engine");
    }
    ctx
}

/// Whether the index of `range_min`, and the sorted rows of range joins, are kept from run to run.
fn keep_indexes(ctx: &SessionContext, keep: bool) {
    let set = format!("SET rmq.keep_indexes = {keep}");
    runtime().block_on(ctx.sql(&set)).expect("an option");
}

fn table(ctx: &SessionContext, name: &str, columns: Vec<(&str, ArrayRef)>) {
    register_table(ctx, name, columns, 1, BATCH_SIZE).expect("the table is new");
}

/// Writes a table as Parquet for the peers, if `RMQ_BENCH_DATA` is set.
fn export(ctx: &SessionContext, case: &str, table: &str) {
    let Some(folder) = std::env::var_os("RMQ_BENCH_DATA") else {
        return;
    };
    let file = std::path::Path::new(&folder).join(case).join(table);
    let sql = format!("COPY {table} TO '{}.parquet'", file.display());
    runtime().block_on(async {
        let frame = ctx.sql(&sql).await.expect(&sql);
        frame.collect().await.expect(&sql);
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads())
        .build()
        .expect("a runtime")
}

/// Runs a query once; returns its CPU time, its wall time and its only value.
fn run(ctx: &SessionContext, sql: &str) -> (Duration, Duration, String) {
    let runtime = runtime();
    let (cpu, wall) = (process_time(), Instant::now());
    let batches = runtime.block_on(async {
        let frame = ctx.sql(sql).await.expect(sql);
        let plan = frame.create_physical_plan().await.expect(sql);
        collect(plan, ctx.task_ctx()).await.expect(sql)
    });
    let times = (process_time() - cpu, wall.elapsed());
    let value = array_value_to_string(batches[0].column(0), 0).expect("a value");
    (times.0, times.1, value)
}

/// Runs a query `RMQ_BENCH_RUNS` times (5) and prints the best CPU time with its wall time and the answer.
/// `RMQ_BENCH_ONLY` skips queries whose names do not contain it, for use with a profiler.
fn measure(ctx: &SessionContext, what: &str, sql: &str) {
    if std::env::var("RMQ_BENCH_ONLY").is_ok_and(|only| !what.contains(&only)) {
        return;
    }
    let runs = var_or("RMQ_BENCH_RUNS", 5);
    let runs = (0..runs.max(1)).map(|_| run(ctx, sql));
    let (cpu, wall, value) = runs.min().expect("at least one run");
    println!(
        "  {what:<58} {:>9.3} s CPU {:>9.3} s  = {value}",
        cpu.as_secs_f64(),
        wall.as_secs_f64()
    );
}

fn column(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<Int64Array>())
}

/// Creates a table of rows by position and one of ranges of positions.
fn position_tables(n: usize, ranges: usize) -> SessionContext {
    let ctx = session();
    let mut random = Random::from_seed(1);
    let values: Float32Array = (0..n).map(|_| Some(random.unit() as f32)).collect();
    let Bounds { left, right } = Workload::Mixed.bounds(n, ranges);
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
    ctx
}

fn positions(n: usize, ranges: usize) {
    let case = format!("positions-{n}");
    println!("{case}: {n} f32, {ranges} mixed ranges");
    let ctx = position_tables(n, ranges);
    export(&ctx, &case, "vals");
    export(&ctx, &case, "q");
    keep_indexes(&ctx, true);
    measure(
        &ctx,
        "range_min('vals.v', l, r)",
        "SELECT sum(m) FROM (SELECT id, range_min('vals.v', l, r) AS m FROM q)",
    );
    keep_indexes(&ctx, false);
    measure(&ctx, "subquery", POSITIONS_SUBQUERY);
    measure(&ctx, "LEFT JOIN … GROUP BY q.id", POSITIONS_JOIN);
}

const POSITIONS_SUBQUERY: &str = "SELECT sum(m) FROM (SELECT id, (SELECT min(v) FROM vals WHERE pos BETWEEN q.l AND q.r) AS m FROM q)";
const POSITIONS_JOIN: &str = "SELECT sum(m) FROM (SELECT q.id, min(v) AS m FROM q LEFT JOIN vals ON pos BETWEEN q.l AND q.r GROUP BY q.id)";

/// Creates tables of quotes by time and trades by time; returns the session and the bytes of the columns.
fn trade_tables(quotes: usize, trades: usize, spread: i64) -> (SessionContext, usize) {
    let mut random = Random::from_seed(2);
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
    let mut trade_times: Vec<i64> = (0..trades).map(|_| below(span as u64)).collect();
    trade_times.sort_unstable();
    let trade_symbols = symbols(trades, &mut below);
    let trade_columns = vec![
        ("id", ids),
        ("sym", trade_symbols),
        ("ts", time(trade_times)),
    ];
    let quote_columns = vec![("sym", symbol), ("ts", time(times)), ("price", prices)];
    let columns = trade_columns.iter().chain(&quote_columns);
    let bytes = columns.map(|(_, column)| column.get_buffer_memory_size());
    let bytes = bytes.sum();
    let ctx = session();
    table(&ctx, "quotes", quote_columns);
    table(&ctx, "trades", trade_columns);
    (ctx, bytes)
}

/// Returns SQL for the lowest price around each trade, as a subquery and as a join. `trades` names the table of trades.
fn trade_queries(trades: &str) -> (String, String) {
    let condition =
        "p.sym = q.sym AND p.ts BETWEEN q.ts - INTERVAL '1 second' AND q.ts + INTERVAL '1 second'";
    let subquery = format!(
        "SELECT sum(m) FROM (SELECT id, (SELECT min(price) FROM quotes p WHERE {condition}) AS m FROM {trades} q)"
    );
    let join = format!(
        "SELECT sum(m) FROM (SELECT q.id, min(price) AS m FROM {trades} q LEFT JOIN quotes p ON {condition} GROUP BY q.id)"
    );
    (subquery, join)
}

/// Registers the result of a query as a table.
fn keep(from: &SessionContext, to: &SessionContext, name: &str, sql: &str) {
    let batches = runtime().block_on(async {
        let frame = from.sql(sql).await.expect(sql);
        frame.collect().await.expect(sql)
    });
    let table = MemTable::try_new(batches[0].schema(), vec![batches]).expect("one schema");
    to.register_table(name, Arc::new(table))
        .expect("the table is new");
}

fn trades(quotes: usize, trades: usize, spread: i64, name: &str) {
    println!("trades-{name}: {quotes} quotes, {trades} trades, 1000 symbols");
    let (by_time, _) = trade_tables(quotes, trades, spread);
    export(&by_time, &format!("trades-{name}"), "quotes");
    export(&by_time, &format!("trades-{name}"), "trades");
    let (subquery, join) = trade_queries("trades");
    measure(&by_time, "quotes by time, subquery", &subquery);
    measure(&by_time, "quotes by time, LEFT JOIN … GROUP BY q.id", &join);
    let shuffled = "SELECT * FROM trades ORDER BY id * 7919 % 1000003";
    keep(&by_time, &by_time, "shuffled", shuffled);
    let (in_no_order, _) = trade_queries("shuffled");
    measure(
        &by_time,
        "quotes by time, trades in no order, subquery",
        &in_no_order,
    );

    let by_symbol = session();
    let sorted = "SELECT * FROM quotes ORDER BY sym, ts";
    keep(&by_time, &by_symbol, "quotes", sorted);
    keep(
        &by_time,
        &by_symbol,
        "trades",
        "SELECT * FROM trades ORDER BY id",
    );
    keep(&by_time, &by_symbol, "shuffled", shuffled);
    drop(by_time);
    measure(&by_symbol, "quotes by symbol and time, subquery", &subquery);
    measure(&by_symbol, "quotes by symbol and time, LEFT JOIN …", &join);
    let what = "quotes by symbol and time, trades in no order, subquery";
    measure(&by_symbol, what, &in_no_order);
}

/// Time by number of rows, which come unsorted, and by number of ranges.
fn scale() {
    const STEPS: [usize; 5] = [10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
    println!("scale: time per N log N + Q log N");
    let by_rows = STEPS.map(|n| (n, 100_000));
    let by_ranges = STEPS.map(|q| (100_000, q));
    for (n, q) in by_rows.into_iter().chain(by_ranges) {
        let ctx = session();
        let mut random = Random::from_seed(4);
        let keys = column((0..n).map(|_| (random.unit() * n as f64) as i64));
        let values: Float32Array = (0..n).map(|_| Some(random.unit() as f32)).collect();
        let Bounds { left, right } = Workload::Mixed.bounds(n, q);
        table(&ctx, "vals", vec![("pos", keys), ("v", Arc::new(values))]);
        table(&ctx, "q", vec![("l", column(left)), ("r", column(right))]);
        let sql = "SELECT sum(m) FROM (SELECT (SELECT min(v) FROM vals WHERE pos BETWEEN q.l AND q.r) AS m FROM q)";
        let runs = if n.max(q) > 10_000_000 { 1 } else { 3 };
        let (cpu, ..) = (0..runs).map(|_| run(&ctx, sql)).min().expect("runs");
        let work = (n + q) as f64 * (n as f64).log2();
        println!(
            "  N = {n:>9}, Q = {q:>9} {:>9.3} s CPU {:>9.3} ns",
            cpu.as_secs_f64(),
            cpu.as_secs_f64() * 1e9 / work
        );
    }
}

/// Prints the peak memory of a query: that beside the tables, and all as a multiple of the columns used.
fn peak(ctx: &SessionContext, what: &str, columns: usize, sql: &str) {
    // Memory that earlier queries freed would otherwise be reused uncounted.
    release_unused();
    let before = Resident::reset_peak().expect("this is Linux");
    run(ctx, sql);
    let after = Resident::now().expect("this is Linux");
    let more = after.peak.saturating_sub(before);
    println!(
        "  {what:<58} {:>6} MiB of columns, {:>6} MiB more, {:.2} times",
        columns >> 20,
        more >> 20,
        (columns + more) as f64 / columns as f64
    );
}

fn memory() {
    println!("memory: the columns used and the peak of a query beside them");
    let (n, ranges) = (1 << 24, 100_000);
    let ctx = position_tables(n, ranges);
    let bytes = n * 12 + ranges * 24;
    peak(&ctx, "2^24 f32, subquery", bytes, POSITIONS_SUBQUERY);
    peak(
        &ctx,
        "2^24 f32, LEFT JOIN … GROUP BY",
        bytes,
        POSITIONS_JOIN,
    );
    drop(ctx);
    let (by_time, bytes) = trade_tables(10_000_000, 1_000_000, 2_000);
    let (subquery, join) = trade_queries("trades");
    peak(&by_time, "quotes by time, subquery", bytes, &subquery);
    peak(
        &by_time,
        "quotes by time, LEFT JOIN … GROUP BY",
        bytes,
        &join,
    );
    let by_symbol = session();
    let sorted = "SELECT * FROM quotes ORDER BY sym, ts";
    keep(&by_time, &by_symbol, "quotes", sorted);
    keep(
        &by_time,
        &by_symbol,
        "trades",
        "SELECT * FROM trades ORDER BY id",
    );
    drop(by_time);
    peak(
        &by_symbol,
        "quotes by symbol and time, subquery",
        bytes,
        &subquery,
    );
}

/// DataFusion's own plan beside ours, over an unsorted table.
fn own_plan(n: usize, ranges: usize) {
    println!("DataFusion's own plan: {n} rows in no order, {ranges} ranges");
    let ctx = session();
    let mut random = Random::from_seed(3);
    let keys = column((0..n).map(|_| (random.unit() * n as f64) as i64));
    let values = column((0..n).map(|_| (random.unit() * 1e6) as i64));
    let Bounds { left, right } = Workload::Mixed.bounds(n, ranges);
    table(&ctx, "vals", vec![("pos", keys), ("v", values)]);
    let ids = column(0..ranges as i64);
    table(
        &ctx,
        "q",
        vec![("id", ids), ("l", column(left)), ("r", column(right))],
    );
    let join = "SELECT sum(m) FROM (SELECT q.id, min(v) AS m FROM q JOIN vals ON pos BETWEEN q.l AND q.r GROUP BY q.id)";
    measure(&ctx, "JOIN … GROUP BY q.id", join);
    // A join whose probe side is known to be small is left to DataFusion, a subquery is not.
    let subquery = POSITIONS_SUBQUERY;
    measure(&ctx, "a subquery", subquery);
    let some = "SELECT sum(m) FROM (SELECT id, (SELECT min(v) FROM vals WHERE pos BETWEEN q.l AND q.l + 1000) AS m FROM q)";
    measure(&ctx, "a subquery over 1,000 rows a range", some);
    let off = runtime().block_on(ctx.sql("SET rmq.rewrite = false"));
    off.expect("the option is known");
    measure(&ctx, "the same with rmq.rewrite = false", join);
}

fn main() {
    let names: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let wants = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    if wants("positions") {
        positions(1 << 20, 1_000_000);
        positions(1 << 24, 100_000);
    }
    if names.iter().any(|n| n == "devices") {
        // Enough for a GPU: RMQ_BENCH_ENGINE=cuda RMQ_BENCH_THREADS=16.
        positions(1 << 26, 1 << 24);
    }
    if wants("trades") {
        // Per window of two seconds, about one quote of a symbol, and two hundred.
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
    if wants("scale") {
        scale();
    }
    if wants("memory") {
        memory();
    }
}
