//! Queries from host memory to host memory, as a database runs them.

use std::error::Error;
use std::sync::Arc;

use rmq_engine::Engine;
use rmq_engine::cpu::CpuEngine;
use rmq_engine::cuda::CudaEngine;

use rmq_bench::batches::{self, BatchOptions, CPU_BATCH_SIZE, CollectedAnswers, GPU_BATCH_SIZE};
use rmq_bench::clock;
use rmq_bench::data;
use rmq_bench::index::{self, IndexableKey};
use rmq_bench::kinds::{EngineKind, Width};
use rmq_bench::table::{Table, power_of_two, three_digits};

use crate::run::Run;

/// Returns the engines to measure, each with its name and the size of its batches.
pub fn engines<'a>(
    run: &Run,
    cpu: &'a dyn Engine,
    cuda: Option<&'a CudaEngine>,
) -> Vec<(&'static str, &'a dyn Engine, usize)> {
    let mut engines: Vec<(_, &dyn Engine, _)> = Vec::new();
    if run.args.uses(EngineKind::Cpu) {
        engines.push(("CPU", cpu, CPU_BATCH_SIZE));
    }
    if let Some(cuda) = cuda {
        engines.push(("GPU", cuda, GPU_BATCH_SIZE));
    }
    engines
}

/// Measures each engine with increasing numbers of threads, and the time to build an index.
pub fn measure(run: &mut Run, cuda: Option<&CudaEngine>) -> Result<(), Box<dyn Error>> {
    let mut builds = Table::new(
        "Host to host: an index on all threads, the column in host memory",
        ["", "ms", "GB/s of the column"].map(str::to_owned),
    );
    for key in run.args.key.clone() {
        for n in run.host_sizes(key) {
            let built = match key {
                Width::U32 => measure_column::<u32>(run, cuda, key, n)?,
                Width::U64 => measure_column::<u64>(run, cuda, key, n)?,
            };
            for (engine, seconds) in built {
                let bytes = ((key.bytes() as u64) << n) as f64;
                builds.row(
                    format!("{engine}, 2^{n} {}", key.name()),
                    [
                        three_digits(seconds * 1e3),
                        three_digits(bytes / seconds / 1e9),
                    ],
                );
            }
        }
    }
    run.tables.push(builds);
    Ok(())
}

/// Measures one column; returns each engine's name and the seconds that building its index takes.
fn measure_column<K: IndexableKey>(
    run: &mut Run,
    cuda: Option<&CudaEngine>,
    key: Width,
    n: u32,
) -> Result<Vec<(&'static str, f64)>, Box<dyn Error>> {
    let (data, result, workload) = (run.args.data, run.args.result, run.args.workload);
    run.progress
        .now(&format!("host to host: a column of 2^{n} values"));
    let values = Arc::new(data::column::<K>(data, 1 << n));
    let column = index::float_column(&values);
    let all = workload.bounds(1 << n, 1 << run.args.batch);
    let cpu = CpuEngine::new();
    let engines = engines(run, &cpu, cuda);
    let mut reference: Option<CollectedAnswers<K>> = None;
    let mut builds = Vec::new();
    let title = format!(
        "Host to host, million queries a second: {} of {} {} values, {} ranges, n = {}",
        result.name(),
        data.name(),
        key.name(),
        workload.name(),
        power_of_two(n)
    );
    let threads = run.args.threads.iter().map(u32::to_string);
    let mut table = Table::new(title, std::iter::once("threads".to_owned()).chain(threads));
    for (name, engine, batch_size) in engines {
        // The CPU is slower, and reaches its full speed with fewer queries.
        let queries = if batch_size == CPU_BATCH_SIZE {
            run.args.cpu_batch
        } else {
            run.args.batch
        };
        let bounds = all.first(1 << queries);
        let threads = run.threads();
        let built = index::build(engine, &column, result, threads, run.args.rounds.min(3))?;
        builds.push((name, built.seconds));
        let index = &*built.index;
        let options = |threads: u32| BatchOptions {
            result,
            threads: threads as usize,
            batch_size,
        };
        let collected = batches::collect(index, bounds, options(threads))?;
        let wrong = match &reference {
            Some(reference) => collected.count_differences(reference),
            None => {
                let encode = |bits| column.encoding().encode(bits);
                let scanned = batches::scan(&values, encode, bounds, result);
                collected.count_differences(&scanned)
            }
        };
        if wrong > 0 {
            return Err(format!("{wrong} answers of the {name} are wrong, n = 2^{n}").into());
        }
        reference.get_or_insert(collected);
        run.progress.expect(run.args.threads.len());
        let mut speeds = Vec::new();
        for threads in run.args.threads.clone() {
            run.progress
                .now(&format!("host to host: {name}, {threads} threads"));
            let rounds = run.args.rounds;
            let time = clock::measure(rounds, || batches::run(index, bounds, options(threads)))?;
            speeds.push(three_digits(bounds.len() as f64 / time.median / 1e6));
            run.progress.done();
        }
        table.row(name, speeds);
    }
    run.tables.push(table);
    Ok(builds)
}
