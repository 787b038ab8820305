//! What a new process pays for a searched side over Parquet files: built, and read from the files of an earlier
//! process.

use std::path::Path;
use std::time::{Duration, Instant};

use datafusion::arrow::array::AsArray;
use datafusion::arrow::datatypes::Int64Type;
use datafusion::error::Result;

use rmq_bench::clock::median;

use crate::data::Table;
use crate::queries::Query;
use crate::{Mode, Options, Run, Runner, seconds_of};

/// Runs a query in sessions that know nothing: without a directory for indexes, and with one in which an earlier
/// session has written. `directory` gets the table `quotes` as a Parquet file, and the indexes.
pub fn measure(
    query: &Query,
    options: &Options,
    threads: usize,
    tables: &[Table],
    directory: &Path,
) -> Result<()> {
    let indexes = directory.join("indexes");
    let file = directory.join("quotes.parquet");
    if !file.exists() {
        std::fs::create_dir_all(directory)?;
        let runner = Runner::new(options, threads, Mode::Shared, tables)?;
        runner.set(&format!(
            "COPY quotes TO '{}' STORED AS PARQUET",
            file.display()
        ))?;
        // A file that is too new is not kept.
        std::thread::sleep(Duration::from_secs(3));
    }
    let start = |indexes: Option<&Path>| {
        let runner = Runner::new(options, threads, Mode::Shared, tables)?;
        runner.ctx.deregister_table("quotes")?;
        runner.set(&format!(
            "CREATE EXTERNAL TABLE quotes STORED AS PARQUET LOCATION '{}'",
            file.display()
        ))?;
        if let Some(indexes) = indexes {
            runner.set(&format!(
                "SET rmq.index_directory = '{}'",
                indexes.display()
            ))?;
        }
        Ok::<_, datafusion::error::DataFusionError>(runner)
    };
    let _ = std::fs::remove_dir_all(&indexes);
    let built: Vec<Run> = (0..options.runs.max(1))
        .map(|_| start(None)?.run(query.sql))
        .collect::<Result<_>>()?;
    let writer = start(Some(&indexes))?;
    let writing = writer.run(query.sql)?;
    let started = Instant::now();
    while is_writing(&writer)? {
        std::thread::sleep(Duration::from_millis(5));
    }
    let written = started.elapsed().as_secs_f64();
    let loaded: Vec<Run> = (0..options.runs.max(1))
        .map(|_| start(Some(&indexes))?.run(query.sql))
        .collect::<Result<_>>()?;
    for run in loaded.iter().chain([&writing]) {
        assert_eq!(run.answer, built[0].answer, "{}", query.name);
    }
    let wall = |runs: &[Run]| median(runs.iter().map(|run| run.wall).collect());
    let side = |runs: &[Run]| {
        let times = runs.iter().map(|run| seconds_of(&run.plan, "build_time"));
        median(times.collect())
    };
    let entries = std::fs::read_dir(&indexes)?;
    let bytes = entries.map(|entry| Ok(entry?.metadata()?.len()));
    let bytes = bytes.sum::<Result<u64>>()?;
    println!(
        "  {:<18} built {:.3} (side {:.3}), while it is written {:.3}, written {:.3} later, {:.1} MB; loaded {:.3} (side {:.3}): \
         {:.2} of the build",
        query.name,
        wall(&built),
        side(&built),
        writing.wall,
        written,
        bytes as f64 / 1e6,
        wall(&loaded),
        side(&loaded),
        side(&loaded) / side(&built)
    );
    Ok(())
}

/// Whether a session has not written all of its indexes.
fn is_writing(runner: &Runner) -> Result<bool> {
    let sql = "SELECT count(*) FROM rmq_indexes() WHERE disk = 'writing'";
    let count = async { runner.ctx.sql(sql).await?.collect().await };
    let count = runner.runtime.block_on(count)?;
    Ok(count[0].column(0).as_primitive::<Int64Type>().value(0) > 0)
}
