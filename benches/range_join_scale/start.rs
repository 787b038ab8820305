//! What a new process pays for a searched side over Parquet files: built, and read from the files of an earlier
//! process.

use std::fs::File;
use std::os::unix::fs::FileExt;
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
    let run_new = |indexes: Option<&Path>| {
        let runner = start(indexes)?;
        if options.cold {
            drop_page_cache()?;
        }
        runner.run(query.sql)
    };
    let runs = 0..options.runs.max(1);
    let built: Vec<Run> = runs.clone().map(|_| run_new(None)).collect::<Result<_>>()?;
    let writer = start(Some(&indexes))?;
    let writing = writer.run(query.sql)?;
    let started = Instant::now();
    while is_writing(&writer)? {
        std::thread::sleep(Duration::from_millis(5));
    }
    let written = started.elapsed().as_secs_f64();
    let loaded: Vec<Run> = runs
        .clone()
        .map(|_| run_new(Some(&indexes)))
        .collect::<Result<_>>()?;
    let read = runs.map(|_| {
        if options.cold {
            drop_page_cache()?;
        }
        let started = Instant::now();
        let bytes = read_files(&indexes, threads)?;
        Ok((started.elapsed().as_secs_f64(), bytes))
    });
    let read: Vec<(f64, u64)> = read.collect::<Result<_>>()?;
    for run in loaded.iter().chain([&writing]) {
        assert_eq!(run.answer, built[0].answer, "{}", query.name);
    }
    let wall = |runs: &[Run]| median(runs.iter().map(|run| run.wall).collect());
    let side = |runs: &[Run]| {
        let times = runs.iter().map(|run| seconds_of(&run.plan, "build_time"));
        median(times.collect())
    };
    let bytes = read.first().map_or(0, |(_, bytes)| *bytes);
    let reading = median(read.into_iter().map(|(seconds, _)| seconds).collect());
    println!(
        "  {:<18} built {:.3} (side {:.3}), while it is written {:.3}, written {:.3} later, {:.1} MB; loaded {:.3} (side {:.3}): \
         {:.2} of the build, {:.2} of reading its bytes ({:.3})",
        query.name,
        wall(&built),
        side(&built),
        writing.wall,
        written,
        bytes as f64 / 1e6,
        wall(&loaded),
        side(&loaded),
        side(&loaded) / side(&built),
        side(&loaded) / reading,
        reading,
    );
    Ok(())
}

/// Has the next process read all files from their disk.
fn drop_page_cache() -> Result<()> {
    Ok(std::fs::write("/proc/sys/vm/drop_caches", "1")?)
}

/// Reads all files of a directory, each in as many parts as there are threads. Returns their bytes.
fn read_files(directory: &Path, threads: usize) -> Result<u64> {
    let mut all = 0;
    for entry in std::fs::read_dir(directory)? {
        let file = File::open(entry?.path())?;
        let bytes = file.metadata()?.len();
        let part = bytes.div_ceil(threads as u64);
        let read = &|number: u64| {
            let (mut at, end) = (number * part, bytes.min((number + 1) * part));
            let mut buffer = vec![0; 4 << 20];
            while at < end {
                let len = (end - at).min(buffer.len() as u64) as usize;
                file.read_exact_at(&mut buffer[..len], at)?;
                at += len as u64;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let parts = (0..threads as u64).map(|number| scope.spawn(move || read(number)));
            let parts: Vec<_> = parts.collect();
            parts.into_iter().try_for_each(|part| {
                let read: std::io::Result<()> = part.join().expect("reading does not panic");
                read
            })
        })?;
        all += bytes;
    }
    Ok(all)
}

/// Whether a session has not written all of its indexes.
fn is_writing(runner: &Runner) -> Result<bool> {
    let sql = "SELECT count(*) FROM rmq_indexes() WHERE disk = 'writing'";
    let count = async { runner.ctx.sql(sql).await?.collect().await };
    let count = runner.runtime.block_on(count)?;
    Ok(count[0].column(0).as_primitive::<Int64Type>().value(0) > 0)
}
