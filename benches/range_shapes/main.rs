//! Queries over ranges of a key whose answer is not an aggregate: pairs, EXISTS, the nearest row, overlaps, thresholds;
//! and any aggregate.
//!
//! `cargo bench -p datafusion-rmq --profile quick --bench range_shapes -- FOLDER QUERY.sql...` reads all Parquet files
//! of a folder into memory, one table each, and runs the queries. `peers.py` writes the tables, and runs the same
//! queries in DuckDB. `--crossover` compares joins with DataFusion's.

mod crossover;
#[path = "../common/parquet_tables.rs"]
mod parquet_tables;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use datafusion::arrow::array::{Array, MutableArrayData, RecordBatch};
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};

use rmq_bench::clock::process_time;
use rmq_bench::memory::{Resident, release_unused};

use crate::crossover::Crossover;
use crate::parquet_tables::read_tables;

/// Measures queries over tables in memory.
#[derive(Parser)]
struct Options {
    /// A folder of Parquet files, each of which is a table
    #[arg(required_unless_present = "crossover")]
    tables: Option<PathBuf>,
    /// Files with one query each, which returns one row, or with `--copy` any number
    queries: Vec<PathBuf>,
    /// Compare the time with that of copying all rows that the query returns, which are collected
    #[arg(long)]
    copy: bool,
    /// Threads and partitions
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// The best of this many runs counts
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Settings, such as `rmq.rewrite=false`
    #[arg(long)]
    set: Vec<String>,
    /// Print the plan
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    crossover: Crossover,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Runs a query and returns its CPU and wall times, and its rows.
async fn collect_timed(
    ctx: &SessionContext,
    sql: &str,
) -> Result<(Duration, Duration, Vec<RecordBatch>)> {
    let (cpu, wall) = (process_time(), Instant::now());
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    let batches = collect(plan, ctx.task_ctx()).await?;
    Ok((process_time() - cpu, wall.elapsed(), batches))
}

/// Copies all rows to new memory, and returns the CPU time, the rows, and their bytes.
fn copy(batches: &[RecordBatch]) -> Result<(Duration, usize, usize)> {
    let started = process_time();
    let mut copies = vec![];
    for batch in batches {
        for column in batch.columns() {
            let data = column.to_data();
            let mut copy = MutableArrayData::new(vec![&data], false, data.len());
            copy.try_extend(0, 0, data.len())?;
            copies.push(copy.freeze());
        }
    }
    let cpu = process_time() - started;
    let bytes = copies.iter();
    let bytes = bytes.map(|copy| copy.get_slice_memory_size().unwrap_or_default());
    let rows = batches.iter().map(RecordBatch::num_rows);
    Ok((cpu, rows.sum(), bytes.sum()))
}

/// Runs a query, and prints its times and that of copying its rows.
async fn compare_with_copy(ctx: &SessionContext, name: &str, sql: &str) -> Result<()> {
    release_unused();
    let (cpu, wall, batches) = collect_timed(ctx, sql).await?;
    let (copied, rows, bytes) = copy(&batches)?;
    println!(
        "{name}: {rows} rows, {} MiB: {:.3} CPU s, {:.3} s; copying them {:.3} CPU s, ratio {:.2}",
        bytes >> 20,
        cpu.as_secs_f64(),
        wall.as_secs_f64(),
        copied.as_secs_f64(),
        cpu.as_secs_f64() / copied.as_secs_f64()
    );
    Ok(())
}

/// Runs a query and returns its CPU and wall times, the peak of memory above that before, and the only row.
async fn run(ctx: &SessionContext, sql: &str) -> Result<(Duration, Duration, usize, String)> {
    release_unused();
    let before = Resident::reset_peak();
    let (cpu, wall, batches) = collect_timed(ctx, sql).await?;
    let peak = before.and_then(|before| Some(Resident::now()?.peak.saturating_sub(before)));
    let batch = batches.iter().find(|batch| batch.num_rows() > 0);
    let columns = batch.map_or(&[][..], RecordBatch::columns).iter();
    let row = columns.map(|column| array_value_to_string(column, 0));
    let row = row.collect::<Result<Vec<_>, _>>()?.join(" ");
    Ok((cpu, wall, peak.unwrap_or_default(), row))
}

async fn measure(options: Options) -> Result<()> {
    if options.crossover.is_wanted() {
        return options
            .crossover
            .measure(options.threads, options.runs)
            .await;
    }
    let config = SessionConfig::new().with_target_partitions(options.threads);
    let ctx = SessionContext::new_with_config(config);
    datafusion_rmq::register(&ctx);
    // Each run builds.
    ctx.sql("SET rmq.keep_indexes = false").await?;
    for setting in &options.set {
        ctx.sql(&format!("SET {setting}")).await?.collect().await?;
    }
    if let Some(tables) = &options.tables {
        read_tables(&ctx, tables, options.threads).await?;
    }
    for file in &options.queries {
        let sql = std::fs::read_to_string(file)?;
        if options.explain {
            let plan = ctx.sql(&sql).await?.create_physical_plan().await?;
            println!("{}", displayable(plan.as_ref()).indent(false));
        }
        let name = file.file_stem().unwrap_or_default().display();
        if options.copy {
            for _ in 0..options.runs.max(1) {
                compare_with_copy(&ctx, &name.to_string(), &sql).await?;
            }
            continue;
        }
        let mut best: Option<(Duration, Duration, usize)> = None;
        let mut answer = None;
        for _ in 0..options.runs.max(1) {
            let (cpu, wall, peak, row) = run(&ctx, &sql).await?;
            let answer = answer.get_or_insert_with(|| row.clone());
            assert_eq!(answer, &row, "two runs of {} differ", file.display());
            if best.is_none_or(|(least, ..)| cpu < least) {
                best = Some((cpu, wall, peak));
            }
        }
        let (cpu, wall, peak) = best.unwrap_or_default();
        println!(
            "{} {:.3} {:.3} {} = {}",
            name,
            cpu.as_secs_f64(),
            wall.as_secs_f64(),
            peak >> 20,
            answer.unwrap_or_default()
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(options.threads)
        .enable_all()
        .build()?;
    runtime
        .block_on(async { tokio::spawn(measure(options)).await })
        .map_err(|error| DataFusionError::External(error.into()))?
}
