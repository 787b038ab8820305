//! SQL on a GPU: what a whole query takes by the clock, from batches in host memory to its answer, and where that goes.
//!
//! `cargo bench --profile quick --bench whole_trip`; `RMQ_BENCH_ROWS`, `RMQ_BENCH_RANGES` and `RMQ_BENCH_PARTITIONS` change the sizes
//! (2^28, 2^27 and all cores). It prints one table a run and needs some 10 GB of memory at these sizes.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch};
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::physical_plan::collect;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};

use rmq_bench::support::random::Random;
use rmq_bench::support::workload::Workload;

/// Rows in a batch of the tables, as DataFusion's own readers make them.
const BATCH: usize = 8192;

fn size(name: &str, default: usize) -> usize {
    std::env::var(name)
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(default)
}

/// A table in memory, its rows dealt out to partitions in one piece each.
fn register(
    ctx: &SessionContext,
    name: &str,
    columns: Vec<(&str, ArrayRef)>,
    partitions: usize,
    batch: usize,
) -> Result<()> {
    let whole = RecordBatch::try_from_iter(columns)?;
    let rows = whole.num_rows();
    let share = rows.div_ceil(partitions);
    let parts = (0..rows).step_by(share).map(|start| {
        let end = rows.min(start + share);
        let batches = (start..end).step_by(batch);
        batches
            .map(|at| whole.slice(at, batch.min(end - at)))
            .collect()
    });
    let table = MemTable::try_new(whole.schema(), parts.collect())?;
    ctx.register_table(name, Arc::new(table))?;
    Ok(())
}

struct Runner {
    ctx: SessionContext,
    ranges: usize,
}

impl Runner {
    /// Runs a query once; its answer, and its plan with what was measured in it.
    async fn run(&self, sql: &str) -> Result<(Duration, String, String)> {
        let plan = self.ctx.sql(sql).await?.create_physical_plan().await?;
        let started = Instant::now();
        let batches = collect(Arc::clone(&plan), self.ctx.task_ctx()).await?;
        let took = started.elapsed();
        let metrics = DisplayableExecutionPlan::with_metrics(plan.as_ref()).indent(false);
        let answer = datafusion::arrow::util::pretty::pretty_format_batches(&batches)?;
        Ok((took, black_box(answer.to_string()), metrics.to_string()))
    }

    /// Prints the median of five runs, after the one before.
    async fn median(&self, what: &str, sql: &str) -> Result<()> {
        let mut times = vec![];
        for _ in 0..5 {
            times.push(self.run(sql).await?.0);
        }
        times.sort_unstable();
        self.print(what, times[2]);
        Ok(())
    }

    fn print(&self, what: &str, took: Duration) {
        let each = took.as_secs_f64() * 1e9 / self.ranges as f64;
        println!(
            "  {what:<52} {:>9.1} ms  {each:>7.3} ns a range  {:>7.3} billion a second",
            took.as_secs_f64() * 1e3,
            1.0 / each
        );
    }
}

async fn measure() -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let rows = size("RMQ_BENCH_ROWS", 1 << 28);
    let ranges = size("RMQ_BENCH_RANGES", 1 << 27);
    let partitions = size("RMQ_BENCH_PARTITIONS", cores);
    let config = SessionConfig::new().with_target_partitions(partitions);
    let ctx = SessionContext::new_with_config(config);
    datafusion_rmq::register(&ctx);

    let mut random = Random(1);
    let values: Vec<f32> = (0..rows).map(|_| random.unit() as f32).collect();
    let v: ArrayRef = Arc::new(Float32Array::from(values));
    register(&ctx, "vals", vec![("v", v)], 1, rows)?;
    let (left, right) = Workload::Mixed.queries(rows, ranges);
    let answers: ArrayRef = Arc::new(Float32Array::from_iter_values(
        left.iter().map(|l| *l as f32),
    ));
    let l: ArrayRef = Arc::new(Int64Array::from(left));
    let r: ArrayRef = Arc::new(Int64Array::from(right));
    register(&ctx, "queries", vec![("l", l), ("r", r)], partitions, BATCH)?;
    register(&ctx, "answers", vec![("a", answers)], partitions, BATCH)?;

    println!(
        "{rows} f32 values, {ranges} mixed ranges, {partitions} partitions, {cores} cores; medians of 5 runs by the clock"
    );
    let runner = Runner { ctx, ranges };
    let whole = "SELECT sum(range_min('vals.v', l, r)) FROM queries";
    runner
        .median(
            "the bounds alone: SELECT sum(l), sum(r)",
            "SELECT sum(l), sum(r) FROM queries",
        )
        .await?;
    runner
        .median(
            "as many answers alone: SELECT sum(a)",
            "SELECT sum(a) FROM answers",
        )
        .await?;
    let mut expected = None;
    for engine in ["cpu", "cuda", "auto"] {
        runner
            .ctx
            .sql(&format!("SET rmq.engine = '{engine}'"))
            .await?
            .collect()
            .await?;
        let first = match runner.run(whole).await {
            Ok((took, answer, _)) => {
                // Sums of floats depend on their order, which partitions leave open: the extremes of the answers don't.
                let check = "SELECT min(a), max(a), count(a) FROM (SELECT range_min('vals.v', l, r) AS a FROM queries)";
                let (_, found, _) = runner.run(check).await?;
                let expected = expected.get_or_insert_with(|| found.clone());
                assert_eq!(&found, expected, "the engines differ; sum: {answer}");
                took
            }
            Err(why) if engine == "cuda" => {
                println!("  skipped: no CUDA device ({why})");
                continue;
            }
            Err(why) => return Err(why),
        };
        runner.print(&format!("{engine}: first query, index built"), first);
        runner
            .median(&format!("{engine}: index ready"), whole)
            .await?;
        let position = "SELECT sum(range_argmin('vals.v', l, r)) FROM queries";
        runner
            .median(&format!("{engine}: positions"), position)
            .await?;
        println!("{}", runner.run(whole).await?.2);
    }
    Ok(())
}

fn main() -> Result<()> {
    // Cargo's own flags, such as `--bench`, are of no use here.
    tokio::runtime::Runtime::new()
        .map_err(datafusion::error::DataFusionError::from)?
        .block_on(measure())
}
