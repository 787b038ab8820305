//! Range joins and range functions at the size of a machine with many cores or a GPU: wall time, CPU time, the
//! operators' own times and memory, by number of threads, beside what the machine's memory allows.
//!
//! `cargo bench -p datafusion-rmq --profile quick --bench range_join_scale -- --threads 1,4,16`; `--help` lists the
//! options. The binary needs no other file, so that it can be copied to another machine.
//! `benches/range_join_scale_peers.py` runs the queries in DuckDB.

mod append;
mod cancel;
mod data;
mod limits;
mod queries;
mod start;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::metrics::MetricValue;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use tokio::runtime::Runtime;

use rmq_bench::clock::{median, process_time};
use rmq_bench::memory::{Resident, release_unused};

use data::Table;
use limits::MemoryLimits;
use queries::{Dataset, Query};

/// Measures range joins at the size of a machine with many cores or a GPU.
#[derive(Parser)]
struct Options {
    /// The queries to run: subquery, grouped, first_value, no_symbol, many_trades, pairs, partitioned_inputs,
    /// range_min, unsorted; all if none is named
    queries: Vec<String>,
    /// Numbers of threads and partitions
    #[arg(long, value_delimiter = ',', default_value = "1,4,16")]
    threads: Vec<usize>,
    /// Numbers of partitions, if other than the threads
    #[arg(long)]
    partitions: Option<usize>,
    /// The engine
    #[arg(long, value_enum, default_value_t = Engine::Cpu)]
    engine: Engine,
    /// Settings, such as `rmq.device_memory_limit=600M`
    #[arg(long)]
    set: Vec<String>,
    /// Modes of range joins, which must give the same answers: auto, shared, partitioned
    #[arg(long, value_enum, value_delimiter = ',', default_value = "auto")]
    modes: Vec<Mode>,
    /// A factor for all sizes that are not given
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Quotes, 50,000,000 by default
    #[arg(long)]
    quotes: Option<usize>,
    /// Trades, 5,000,000 by default
    #[arg(long)]
    trades: Option<usize>,
    /// Trades of the query many_trades, 50,000,000 by default
    #[arg(long)]
    many_trades: Option<usize>,
    /// Values of the query range_min, 2^27 by default
    #[arg(long)]
    values: Option<usize>,
    /// Ranges of the query range_min, 2^26 by default
    #[arg(long)]
    ranges: Option<usize>,
    /// Rows of the query unsorted, 100,000,000 by default
    #[arg(long)]
    unsorted_rows: Option<usize>,
    /// Ranges of the query unsorted, 100,000 by default
    #[arg(long)]
    unsorted_ranges: Option<usize>,
    /// Keep the searched sides of range joins: the first run of a query builds them, the others find them
    #[arg(long)]
    keep: bool,
    /// Measure what new processes pay for searched sides over Parquet files, instead: a directory for `quotes` and the
    /// indexes
    #[arg(long)]
    start: Option<PathBuf>,
    /// With --start: as after a boot, with nothing in Linux's page cache. Needs root
    #[arg(long, requires = "start")]
    cold: bool,
    /// Measure what indexes cost where the searched tables grow, instead: this many INSERTs, each before a query
    #[arg(long, default_value_t = 0)]
    appends: usize,
    /// Runs of each query after the first
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Drop each query at this many random moments, and tell how soon it ends
    #[arg(long, default_value_t = 0)]
    cancel: usize,
    /// Print the plan of the last run with its metrics
    #[arg(long)]
    explain: bool,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Engine {
    Cpu,
    Cuda,
    Auto,
}

/// The values of `rmq.join_mode`.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mode {
    Auto,
    Shared,
    Partitioned,
}

macro_rules! size {
    ($($name:ident = $default:expr;)+) => {
        impl Options {
            $(fn $name(&self) -> usize {
                self.$name.unwrap_or((f64::from($default) * self.scale) as usize).max(1)
            })+
        }
    };
}

size! {
    quotes = 50_000_000;
    trades = 5_000_000;
    many_trades = 50_000_000;
    values = 1 << 27;
    ranges = 1 << 26;
    unsorted_rows = 100_000_000;
    unsorted_ranges = 100_000;
}

/// One run of a query.
struct Run {
    wall: f64,
    /// The seconds of planning among them.
    planning: f64,
    cpu: f64,
    /// Bytes of memory at the peak, above those before the query. `None` if the system does not report it.
    peak: Option<usize>,
    plan: Arc<dyn ExecutionPlan>,
    answer: String,
}

/// A session and the threads that run its queries.
struct Runner {
    ctx: SessionContext,
    runtime: Runtime,
}

impl Runner {
    fn new(options: &Options, threads: usize, mode: Mode, tables: &[Table]) -> Result<Self> {
        let partitions = options.partitions.unwrap_or(threads);
        let config = SessionConfig::new().with_target_partitions(partitions);
        let ctx = SessionContext::new_with_config(config);
        datafusion_rmq::register(&ctx);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .build()?;
        let engine = format!("{:?}", options.engine).to_lowercase();
        let mode = format!("{mode:?}").to_lowercase();
        let mut settings = vec![
            format!("SET rmq.engine = '{engine}'"),
            format!("SET rmq.build_threads = {threads}"),
            format!("SET rmq.join_mode = '{mode}'"),
        ];
        for setting in &options.set {
            let (name, value) = setting.split_once('=').unwrap_or((setting, "true"));
            settings.push(format!("SET {name} = '{value}'"));
        }
        let runner = Self { ctx, runtime };
        for setting in settings {
            runner.set(&setting)?;
        }
        for table in tables {
            table.register(&runner.ctx, partitions)?;
        }
        Ok(runner)
    }

    fn set(&self, setting: &str) -> Result<()> {
        let set = async { self.ctx.sql(setting).await?.collect().await };
        self.runtime.block_on(set).map(|_| ())
    }

    fn run(&self, sql: &'static str) -> Result<Run> {
        // Memory that earlier queries freed would otherwise be reused uncounted.
        release_unused();
        let before = Resident::reset_peak();
        let (cpu, wall) = (process_time(), Instant::now());
        let ctx = self.ctx.clone();
        // On the workers: the calling thread would be one more.
        let query = self.runtime.spawn(async move {
            let plan = ctx.sql(sql).await?.create_physical_plan().await?;
            let planned = wall.elapsed();
            let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
            Ok::<_, DataFusionError>((plan, planned, batches))
        });
        let query = self.runtime.block_on(query);
        let (wall, cpu) = (wall.elapsed(), process_time() - cpu);
        let (plan, planning, batches) =
            query.map_err(|e| DataFusionError::External(e.into()))??;
        let peak = before.and_then(|before| Some(Resident::now()?.peak.saturating_sub(before)));
        Ok(Run {
            wall: wall.as_secs_f64(),
            planning: planning.as_secs_f64(),
            cpu: cpu.as_secs_f64(),
            peak,
            plan,
            answer: row(&batches)?,
        })
    }

    /// Runs a query once and then `runs` times, and prints a line.
    fn measure(
        &self,
        query: &Query,
        options: &Options,
        tables: &[Table],
        limits: &MemoryLimits,
    ) -> Result<String> {
        // The index of `range_min` is kept in any case: the first run shows what it takes.
        let keeps = options.keep || query.dataset == Dataset::Positions;
        self.set(&format!("SET rmq.keep_indexes = {keeps}"))?;
        let first = self.run(query.sql)?;
        let runs = (0..options.runs.max(1)).map(|_| self.run(query.sql));
        let runs: Vec<Run> = runs.collect::<Result<_>>()?;
        let last = &runs[runs.len() - 1];
        for run in &runs {
            assert_eq!(
                run.answer, first.answer,
                "two runs of {} differ",
                query.name
            );
        }
        let wall = median(runs.iter().map(|run| run.wall).collect());
        let read = queries::bytes(tables, query.reads);
        let limit = limits.seconds(read, queries::bytes(tables, query.moves));
        let peak = runs.iter().filter_map(|run| run.peak).max();
        let peak = peak.map_or("-".into(), |more| {
            format!("{:.2}", (read + more) as f64 / read as f64)
        });
        println!(
            "  {:<18} {:>8.3} {:>8.3} {:>8.3} {:>8.3} {:>8.3} {:>6}  {}",
            query.name,
            first.wall,
            wall,
            median(runs.iter().map(|run| run.planning).collect()),
            median(runs.iter().map(|run| run.cpu).collect()),
            limit,
            peak,
            times(&last.plan)
        );
        println!("                     = {}", last.answer);
        if options.explain {
            let plan = DisplayableExecutionPlan::with_metrics(last.plan.as_ref());
            println!("{}", plan.indent(false));
        }
        if options.cancel > 0 {
            let (ctx, runtime) = (&self.ctx, &self.runtime);
            let times = cancel::times_to_end(ctx, runtime, query.sql, wall, options.cancel)?;
            let quantile =
                |part: usize| 1e3 * times[(times.len() * part / 100).min(times.len() - 1)];
            println!(
                "               dropped {} times: milliseconds to its end: median {:.1}, 99 % {:.1}, longest {:.1}",
                times.len(),
                quantile(50),
                quantile(99),
                quantile(100)
            );
        }
        Ok(first.answer)
    }
}

/// Returns the values of the only row of a result.
fn row(batches: &[RecordBatch]) -> Result<String> {
    let batch = batches.iter().find(|batch| batch.num_rows() > 0);
    let columns = batch.map_or(&[][..], RecordBatch::columns).iter();
    let values = columns.map(|column| array_value_to_string(column, 0));
    Ok(values.collect::<Result<Vec<_>, _>>()?.join(" "))
}

/// Returns one of the times that the extension's operators report, in seconds.
fn seconds_of(plan: &Arc<dyn ExecutionPlan>, name: &str) -> f64 {
    let nanos = nanoseconds(plan).get(name).copied().unwrap_or(0);
    Duration::from_nanos(nanos as u64).as_secs_f64()
}

/// Returns the times that the extension's operators report, summed over partitions.
fn nanoseconds(plan: &Arc<dyn ExecutionPlan>) -> BTreeMap<String, usize> {
    fn visit(plan: &Arc<dyn ExecutionPlan>, times: &mut BTreeMap<String, usize>) {
        let is_ours =
            ["RangeJoinExec", "RangeLookupExec", "UniqueGroupsExec"].contains(&plan.name());
        let metrics = plan.metrics().filter(|_| is_ours);
        for metric in metrics.iter().flat_map(|set| set.iter()) {
            let name = match metric.value() {
                MetricValue::Time { name, .. } => name.to_string(),
                MetricValue::ElapsedCompute(_) => plan.name().to_string(),
                _ => continue,
            };
            *times.entry(name).or_default() += metric.value().as_usize();
        }
        for child in plan.children() {
            visit(child, times);
        }
    }
    let mut found = BTreeMap::new();
    visit(plan, &mut found);
    found
}

/// Returns the same as text, in seconds.
fn times(plan: &Arc<dyn ExecutionPlan>) -> String {
    let found = nanoseconds(plan);
    assert!(
        !found.is_empty(),
        "the query was not planned with the extension's operators"
    );
    let seconds = |nanos: usize| Duration::from_nanos(nanos as u64).as_secs_f64();
    let found = found.into_iter().filter(|(_, nanos)| *nanos > 0);
    let found = found.map(|(name, nanos)| format!("{name} {:.3}", seconds(nanos)));
    found.collect::<Vec<_>>().join(", ")
}

fn main() -> Result<()> {
    let options = Options::parse();
    for name in &options.queries {
        let is_known = queries::ALL.iter().any(|query| query.name == name);
        assert!(is_known, "no query is named '{name}'; --help lists them");
    }
    let is_wanted = |query: &&Query| {
        options.queries.is_empty() || options.queries.iter().any(|n| n == query.name)
    };
    let limits: Vec<_> = options
        .threads
        .iter()
        .map(|n| MemoryLimits::measure(*n))
        .collect();
    for (threads, limits) in options.threads.iter().zip(&limits) {
        println!(
            "{threads} threads: memory copied at {:.1} GB/s, into fresh memory at {:.1}, scattered to {} groups at {:.1}",
            limits.copy / 1e9,
            limits.fresh_copy / 1e9,
            data::SYMBOLS,
            limits.scatter / 1e9
        );
    }
    for dataset in Dataset::ALL {
        let queries = queries::ALL.iter().filter(is_wanted);
        let queries: Vec<_> = queries.filter(|query| query.dataset == dataset).collect();
        if queries.is_empty() {
            continue;
        }
        let started = Instant::now();
        let tables = dataset.tables(&options, &queries)?;
        let sizes = tables.iter().map(|t| format!("{} {}", t.rows(), t.name()));
        let sizes = sizes.collect::<Vec<_>>().join(", ");
        println!(
            "\n{sizes} (generated in {:.1} s)",
            started.elapsed().as_secs_f64()
        );
        let mut answers = BTreeMap::new();
        let settings = options.threads.iter().zip(&limits);
        let modes = options.modes.iter();
        let settings = settings.flat_map(|setting| modes.clone().map(move |mode| (setting, mode)));
        for ((threads, limits), mode) in settings {
            println!(
                "{threads} threads, engine {:?}, mode {mode:?}: seconds by the clock of the first run, the median of {}, of its planning, its CPU seconds, the limit of memory; \
                 peak of memory over the columns read; seconds of the operators, all partitions together",
                options.engine, options.runs
            );
            if let (Some(directory), Dataset::Trades) = (&options.start, dataset) {
                for query in &queries {
                    start::measure(query, &options, *threads, &tables, directory)?;
                }
                continue;
            }
            let runner = Runner::new(&options, *threads, *mode, &tables)?;
            if options.appends > 0 {
                for query in &queries {
                    append::measure(&runner, query, options.appends)?;
                }
                continue;
            }
            for query in &queries {
                let answer = runner.measure(query, &options, &tables, limits)?;
                let expected = answers.entry(query.name).or_insert_with(|| answer.clone());
                assert_eq!(
                    &answer, expected,
                    "numbers of threads or modes differ in {}",
                    query.name
                );
            }
        }
    }
    Ok(())
}
