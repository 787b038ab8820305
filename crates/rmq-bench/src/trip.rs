//! From memory of the host to memory of the host: what a query of a database sees.

use std::error::Error;

use rmq_engine::cuda::CudaEngine;
use rmq_engine::{Engine, EngineError};

use crate::args::{EngineKind, Width};
use crate::ask::{self, Found, Way};
use crate::clock;
use crate::cpu::{self, Built};
use crate::data;
use crate::record::{Record, Section, Setting};
use crate::run::{Run, case};
use crate::table::{Table, short};

/// The engines that take part, each with its name and the queries of a batch.
pub fn engines<'a>(
    run: &Run,
    on_cpu: &'a dyn Engine,
    cuda: Option<&'a CudaEngine>,
) -> Vec<(&'static str, &'a dyn Engine, usize)> {
    let mut engines: Vec<(_, &dyn Engine, _)> = Vec::new();
    if run.args.uses(EngineKind::Cpu) {
        engines.push(("CPU", on_cpu, ask::ON_CPU));
    }
    if let Some(cuda) = cuda {
        engines.push(("GPU", cuda, ask::ON_GPU));
    }
    engines
}

/// Measures both engines with more and more threads, and what the first query costs.
pub fn measure(run: &mut Run, cuda: Option<&CudaEngine>) -> Result<(), Box<dyn Error>> {
    let mut first = Table::new(
        "Host to host: an index on all threads, the column in host memory",
        ["", "ms", "GB/s of the column"].map(str::to_owned),
    );
    for key in run.args.key.clone() {
        for n in run.host_sizes(key) {
            let built = match key {
                Width::U32 => column::<u32>(run, cuda, key, n)?,
                Width::U64 => column::<u64>(run, cuda, key, n)?,
            };
            for (engine, seconds) in built {
                let bytes = ((key.bytes() as u64) << n) as f64;
                first.row(
                    format!("{engine}, 2^{n} {}", key.name()),
                    [short(seconds * 1e3), short(bytes / seconds / 1e9)],
                );
            }
        }
    }
    run.tables.push(first);
    Ok(())
}

/// One column: what was measured goes to the run, what building took comes back.
fn column<K: Built>(
    run: &mut Run,
    cuda: Option<&CudaEngine>,
    key: Width,
    n: u32,
) -> Result<Vec<(&'static str, f64)>, EngineError> {
    let (data, wanted, workload) = (run.args.data[0], run.args.result[0], run.args.workload[0]);
    let case = case(key, data, wanted, workload, n);
    run.progress
        .now(&format!("host to host: a column of 2^{n} values"));
    let values = data::column::<K>(data, 1 << n);
    let column = data::shared(&values);
    let all = workload.bounds(1 << n, 1 << run.args.batch);
    let on_cpu = cpu::engine();
    let engines = engines(run, &on_cpu, cuda);
    let mut reference: Option<Found<K>> = None;
    let mut builds = Vec::new();
    for (name, engine, batch) in engines {
        // The CPU is measured with fewer: it is slower, and needs not so many to be at full speed.
        let queries = if batch == ask::ON_CPU {
            run.args.cpu_batch
        } else {
            run.args.batch
        };
        let bounds = all.first(1 << queries);
        let options = cpu::options(wanted, run.threads());
        let built = cpu::build(engine, &column, &options, run.args.rounds.min(3))?;
        builds.push((name, built.seconds));
        let index = &*built.index;
        let way = |threads: u32| Way {
            wanted,
            threads: threads as usize,
            batch,
        };
        let found = ask::collect(index, bounds, way(run.threads()))?;
        let wrong = match &reference {
            Some(reference) => found.differ(reference),
            None => {
                let scanned = ask::scan(
                    &values,
                    |bits| column.encoding().encode(bits),
                    bounds,
                    wanted,
                );
                found.differ(&scanned)
            }
        };
        reference.get_or_insert(found);
        run.progress.expect(run.args.threads.len());
        for threads in run.args.threads.clone() {
            run.progress
                .now(&format!("host to host: {name}, {threads} threads"));
            let seconds =
                clock::measure(run.args.rounds, || ask::ask(index, bounds, way(threads)))?;
            run.found(Record {
                section: Section::Trip,
                case,
                contender: name.to_owned(),
                setting: Setting::default(),
                queries: bounds.len() as u64,
                threads,
                seconds,
                build_seconds: Some(built.seconds),
                index_bytes: Some(index.index_bytes() as u64),
                wrong,
            });
            run.progress.done();
        }
    }
    Ok(builds)
}
