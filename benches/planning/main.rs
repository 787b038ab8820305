//! What the extension, and the crate datafusion-dependent-join alone, do to queries that have a plan without them, such
//! as those of TPC-H and TPC-DS: plans, answers, the time to plan and the time to run.
//!
//! `cargo bench -p datafusion-rmq --profile quick --bench planning -- FOLDER QUERY.sql...` reads all Parquet files of a
//! folder into memory, one table each. A file may have several statements; CREATE VIEW and DROP VIEW are run, all else
//! is compared.

#[path = "../common/parquet_tables.rs"]
mod parquet_tables;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Float64Type};
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_dependent_join::{add_to_analyzer, add_to_optimizer, single_row_udf};

use rmq_bench::clock::process_time;

use crate::parquet_tables::read_tables;

/// Compares queries with and without the extension.
#[derive(Parser)]
struct Options {
    /// A folder of Parquet files, each of which is a table
    tables: PathBuf,
    /// Files with one query or several
    queries: Vec<PathBuf>,
    /// Plan each query this often in each session, in turns; the least CPU time counts
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Run each query whose plan differs this often, in turns, and compare answers, also of all others
    #[arg(long, default_value_t = 0)]
    runs: usize,
    /// Threads and partitions
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Write plans that differ from DataFusion's to this folder
    #[arg(long)]
    plans: Option<PathBuf>,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// A session in which queries are planned.
struct Way {
    name: &'static str,
    ctx: SessionContext,
}

const DATAFUSION: &str = "DataFusion";
const DEPENDENT_JOINS: &str = "dependent joins";
const EXTENSION: &str = "extension";

fn ways(threads: usize) -> Vec<Way> {
    let builder = || {
        let config = SessionConfig::new().with_target_partitions(threads);
        SessionStateBuilder::new_with_default_features().with_config(config)
    };
    let mut dependent = builder();
    add_to_analyzer(dependent.analyzer().get_or_insert_default());
    add_to_optimizer(dependent.optimizer().get_or_insert_default());
    let functions = dependent.scalar_functions().get_or_insert_default();
    functions.push(single_row_udf());
    let extended = SessionContext::new_with_state(builder().build());
    datafusion_rmq::register(&extended);
    let way = |name, ctx| Way { name, ctx };
    vec![
        way(
            DATAFUSION,
            SessionContext::new_with_state(builder().build()),
        ),
        way(
            DEPENDENT_JOINS,
            SessionContext::new_with_state(dependent.build()),
        ),
        way(EXTENSION, extended),
    ]
}

/// Plans a query, and returns the CPU time that took. The extension has a SQL planner of its own in front, which is
/// included.
async fn plan(way: &Way, sql: &str) -> Result<(Duration, Arc<dyn ExecutionPlan>)> {
    let started = process_time();
    let frame = if way.name == EXTENSION {
        datafusion_rmq::sql(&way.ctx, sql).await?
    } else {
        way.ctx.sql(sql).await?
    };
    let plan = frame.create_physical_plan().await?;
    Ok((process_time() - started, plan))
}

/// The rows as sorted lines. Floats have nine digits: their sums depend on the order of the rows.
fn lines(batches: &[RecordBatch]) -> Result<Vec<String>> {
    let mut lines = vec![];
    for batch in batches {
        for row in 0..batch.num_rows() {
            let mut line = String::new();
            for column in batch.columns() {
                line += &match column.data_type() {
                    DataType::Float64 if column.is_valid(row) => {
                        format!("{:.9e}", column.as_primitive::<Float64Type>().value(row))
                    }
                    _ => array_value_to_string(column, row)?,
                };
                line.push('|');
            }
            lines.push(line);
        }
    }
    lines.sort();
    Ok(lines)
}

/// What one query took in each session, by its name.
type Times = BTreeMap<&'static str, Duration>;

fn keep_least(times: &mut Times, name: &'static str, time: Duration) {
    let least = times.entry(name).or_insert(time);
    *least = time.min(*least);
}

fn ratio(times: &Times, name: &str) -> f64 {
    let of = |name| times.get(name).map_or(f64::NAN, Duration::as_secs_f64);
    of(name) / of(DATAFUSION)
}

struct Compared {
    has_subquery: bool,
    planned: Times,
}

async fn compare(
    ways: &[Way],
    name: &str,
    sql: &str,
    options: &Options,
) -> Result<Option<Compared>> {
    let mut plans = BTreeMap::new();
    let mut errors = vec![];
    for way in ways {
        match plan(way, sql).await {
            Ok((_, plan)) => drop(plans.insert(way.name, plan)),
            Err(error) => errors.push((way.name, error.strip_backtrace())),
        }
    }
    if !errors.is_empty() {
        let planned: Vec<_> = plans.keys().collect();
        println!("{name}: planned by {planned:?}, errors {errors:?}");
    }
    let texts: BTreeMap<_, _> = plans
        .iter()
        .map(|(way, plan)| (*way, displayable(plan.as_ref()).indent(false).to_string()))
        .collect();
    let differs = |way: &str| texts.get(way) != texts.get(DATAFUSION);
    for (way, text) in &texts {
        if let Some(folder) = options
            .plans
            .as_ref()
            .filter(|_| texts.keys().any(|way| differs(way)))
        {
            std::fs::write(
                folder.join(format!("{name}.{}", way.replace(' ', "_"))),
                text,
            )?;
        }
    }
    let mut planned = Times::new();
    for _ in 0..options.rounds {
        for way in ways.iter().filter(|way| plans.contains_key(way.name)) {
            keep_least(&mut planned, way.name, plan(way, sql).await?.0);
        }
    }
    let mut ran = Times::new();
    let mut answers = BTreeMap::new();
    for run in 0..options.runs {
        for way in ways.iter().filter(|way| plans.contains_key(way.name)) {
            if run > 0 && !texts.keys().any(|way| differs(way)) {
                continue;
            }
            let plan = plan(way, sql).await?.1;
            let started = process_time();
            let rows = collect(plan, way.ctx.task_ctx()).await?;
            keep_least(&mut ran, way.name, process_time() - started);
            answers.entry(way.name).or_insert(lines(&rows)?);
        }
    }
    let mut line = format!("{name}:");
    for way in &ways[1..] {
        let way = way.name;
        line += &format!(
            " {way} plan {}",
            if differs(way) { "differs" } else { "equal" }
        );
        line += &format!(", planning {:.3}", ratio(&planned, way));
        if options.runs > 0 {
            let equal = answers.get(way) == answers.get(DATAFUSION);
            line += &format!(", answers {}", if equal { "equal" } else { "DIFFER" });
        }
        if differs(way) && options.runs > 0 {
            line += &format!(", running {:.3}", ratio(&ran, way));
        }
        line.push(';');
    }
    let milliseconds = planned
        .get(DATAFUSION)
        .copied()
        .unwrap_or_default()
        .as_secs_f64()
        * 1e3;
    let rows = answers.get(DATAFUSION).map_or(0, Vec::len);
    println!("{line} DataFusion plans it in {milliseconds:.2} ms, {rows} rows");
    let logical = ways[0].ctx.state().create_logical_plan(sql).await?;
    let mut has_subquery = false;
    logical.apply_with_subqueries(|plan| {
        has_subquery |= matches!(plan, LogicalPlan::Subquery(_));
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(errors.is_empty().then_some(Compared {
        has_subquery,
        planned,
    }))
}

async fn measure(options: Options) -> Result<()> {
    let ways = ways(options.threads);
    for way in &ways {
        read_tables(&way.ctx, &options.tables, options.threads).await?;
    }
    let mut all = vec![];
    for file in &options.queries {
        let text = std::fs::read_to_string(file)?;
        let name = file.file_stem().unwrap_or_default().display().to_string();
        for (number, sql) in text.split(';').enumerate() {
            let sql = sql.trim();
            let first = sql.split_whitespace().next().unwrap_or_default();
            if first.is_empty() {
                continue;
            }
            if ["create", "drop"].contains(&first.to_lowercase().as_str()) {
                for way in &ways {
                    way.ctx.sql(sql).await?.collect().await?;
                }
                continue;
            }
            let name = format!("{name}.{}", number + 1);
            all.extend(compare(&ways, &name, sql, &options).await?);
        }
    }
    if options.rounds > 0 {
        for (has_subquery, title) in [(false, "without subqueries"), (true, "with subqueries")] {
            let of_kind = || all.iter().filter(|one| one.has_subquery == has_subquery);
            println!(
                "\n{} queries {title}, CPU milliseconds to plan all:",
                of_kind().count()
            );
            let total = |name| -> f64 {
                let times = of_kind().filter_map(|one| one.planned.get(name));
                times.map(Duration::as_secs_f64).sum()
            };
            for way in &ways {
                let total_ratio = total(way.name) / total(DATAFUSION);
                println!(
                    "{}: {:.2}, ratio {total_ratio:.3}",
                    way.name,
                    total(way.name) * 1e3
                );
            }
        }
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
