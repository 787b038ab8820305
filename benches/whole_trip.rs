//! SQL on a GPU: the wall time of a whole query, from batches in host memory to its answer, and of its parts.
//!
//! `cargo bench -p datafusion-rmq --profile quick --bench whole_trip`; `RMQ_BENCH_ROWS`, `RMQ_BENCH_RANGES` and
//! `RMQ_BENCH_PARTITIONS` change the sizes (2^28, 2^27 and all cores). It prints one table a run and needs some 10 GB
//! of memory at these sizes.

mod common;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, Float32Array, Int64Array};
use datafusion::error::Result;
use datafusion::physical_plan::collect;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};

use rmq_bench::clock;
use rmq_bench::env::var_or;
use rmq_bench::random::Random;
use rmq_bench::workload::{Bounds, Workload};

use common::{BATCH_SIZE, register_table};

struct Runner {
    ctx: SessionContext,
    ranges: usize,
}

impl Runner {
    /// Runs a query once; returns its wall time, its answer, and its plan with metrics.
    async fn run(&self, sql: &str) -> Result<(Duration, String, String)> {
        let plan = self.ctx.sql(sql).await?.create_physical_plan().await?;
        let started = Instant::now();
        let batches = collect(Arc::clone(&plan), self.ctx.task_ctx()).await?;
        let elapsed = started.elapsed();
        let metrics = DisplayableExecutionPlan::with_metrics(plan.as_ref()).indent(false);
        let answer = datafusion::arrow::util::pretty::pretty_format_batches(&batches)?;
        Ok((elapsed, black_box(answer.to_string()), metrics.to_string()))
    }

    /// Prints the median wall time of five runs.
    async fn median(&self, what: &str, sql: &str) -> Result<()> {
        let mut times = vec![];
        for _ in 0..5 {
            times.push(self.run(sql).await?.0);
        }
        self.print(what, clock::median(times));
        Ok(())
    }

    fn print(&self, what: &str, elapsed: Duration) {
        let ns = elapsed.as_secs_f64() * 1e9 / self.ranges as f64;
        println!(
            "  {what:<52} {:>9.1} ms  {ns:>7.3} ns a range  {:>7.3} billion a second",
            elapsed.as_secs_f64() * 1e3,
            1.0 / ns
        );
    }
}

async fn measure() -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let rows = var_or("RMQ_BENCH_ROWS", 1 << 28);
    let ranges = var_or("RMQ_BENCH_RANGES", 1 << 27);
    let partitions = var_or("RMQ_BENCH_PARTITIONS", cores);
    let config = SessionConfig::new().with_target_partitions(partitions);
    let ctx = SessionContext::new_with_config(config);
    datafusion_rmq::register(&ctx);

    let mut random = Random::from_seed(1);
    let values: Vec<f32> = (0..rows).map(|_| random.unit() as f32).collect();
    let v: ArrayRef = Arc::new(Float32Array::from(values));
    register_table(&ctx, "vals", vec![("v", v)], 1, rows)?;
    let Bounds { left, right } = Workload::Mixed.bounds(rows, ranges);
    let answers: ArrayRef = Arc::new(Float32Array::from_iter_values(
        left.iter().map(|l| *l as f32),
    ));
    let l: ArrayRef = Arc::new(Int64Array::from(left));
    let r: ArrayRef = Arc::new(Int64Array::from(right));
    let bounds = vec![("l", l), ("r", r)];
    register_table(&ctx, "queries", bounds, partitions, BATCH_SIZE)?;
    let answers = vec![("a", answers)];
    register_table(&ctx, "answers", answers, partitions, BATCH_SIZE)?;

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
            Ok((elapsed, answer, _)) => {
                // A sum of floats depends on the order of partitions; minimum and maximum do not.
                let check = "SELECT min(a), max(a), count(a) FROM (SELECT range_min('vals.v', l, r) AS a FROM queries)";
                let (_, found, _) = runner.run(check).await?;
                let expected = expected.get_or_insert_with(|| found.clone());
                assert_eq!(&found, expected, "the engines differ; sum: {answer}");
                elapsed
            }
            Err(error) if engine == "cuda" => {
                println!("  skipped: no CUDA device ({error})");
                continue;
            }
            Err(error) => return Err(error),
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
    tokio::runtime::Runtime::new()
        .map_err(datafusion::error::DataFusionError::from)?
        .block_on(measure())
}
