//! The CPU engine's search, on one thread and on all.

use std::error::Error;
use std::sync::Arc;

use rmq_engine::cpu::CpuEngine;
use rmq_engine::{Encoding, EngineError};

use rmq_bench::clock;
use rmq_bench::data::{self, Data};
use rmq_bench::workload::BoundsRef;

use crate::record::{Case, Record, Section, Setting};
use crate::run::Run;
use rmq_bench::batches::{self, BatchOptions, CPU_BATCH_SIZE};
use rmq_bench::index::{self, IndexableKey, TimedIndex};
use rmq_bench::kinds::Width;

/// Returns the number of steps of all columns.
pub fn steps(run: &Run) -> usize {
    let args = &run.args;
    let columns: usize = args.key.iter().map(|key| run.host_sizes(*key).len()).sum();
    columns * args.data.len() * args.result.len() * args.workload.len()
}

/// Measures all columns that fit in host memory.
pub fn measure(run: &mut Run) -> Result<(), Box<dyn Error>> {
    for key in run.args.key.clone() {
        let sizes = run.host_sizes(key);
        let left_out = run.args.n.iter().filter(|n| !sizes.contains(n));
        let left_out: Vec<_> = left_out.map(|n| format!("2^{n}")).collect();
        if !left_out.is_empty() {
            let left_out = left_out.join(", ");
            run.progress
                .say(&format!("not measured on the CPU: n = {left_out}"));
        }
        for n in sizes {
            for data in run.args.data.clone() {
                match key {
                    Width::U32 => measure_column::<u32>(run, key, n, data)?,
                    Width::U64 => measure_column::<u64>(run, key, n, data)?,
                }
            }
        }
    }
    Ok(())
}

fn measure_column<K: IndexableKey>(
    run: &mut Run,
    key: Width,
    n: u32,
    data: Data,
) -> Result<(), EngineError> {
    let (results, workloads) = (run.args.result.clone(), run.args.workload.clone());
    let (threads, rounds) = (run.threads(), run.args.rounds);
    run.progress
        .now(&format!("CPU: a column of 2^{n} {} values", data.name()));
    let values = Arc::new(data::column::<K>(data, 1 << n));
    let column = index::float_column(&values);
    for result in results {
        let built = index::build(&CpuEngine::new(), &column, result, threads, rounds)?;
        for workload in &workloads {
            let case = Case::new(key, data, result, *workload, n);
            run.progress
                .now(&format!("CPU: {}, n = 2^{n}", case.title()));
            let bounds = workload.bounds(1 << n, 1 << run.args.cpu_batch);
            for record in search(case, &values, &built, bounds.all(), threads, rounds)? {
                run.found(record);
            }
            run.progress.done();
        }
    }
    Ok(())
}

/// Measures the search and compares its answers with a scan of their ranges.
fn search<K: IndexableKey>(
    case: Case,
    values: &[K],
    built: &TimedIndex<K>,
    bounds: BoundsRef<'_>,
    threads: u32,
    rounds: u32,
) -> Result<Vec<Record>, EngineError> {
    let options = |threads: u32| BatchOptions {
        result: case.result,
        threads: threads as usize,
        batch_size: CPU_BATCH_SIZE,
    };
    let encode = |bits| Encoding::float().encode(bits);
    let index = &*built.index;
    let scanned = batches::scan(values, encode, bounds, case.result);
    let wrong = batches::collect(index, bounds, options(1))?.count_differences(&scanned);
    let mut thread_counts = vec![1, threads];
    thread_counts.dedup();
    let mut records = Vec::new();
    for threads in thread_counts {
        let time = clock::measure(rounds, || batches::run(index, bounds, options(threads)))?;
        records.push(Record {
            section: Section::Search,
            case,
            contender: match threads {
                1 => "CPU, 1 thread".to_owned(),
                _ => format!("CPU, {threads} threads"),
            },
            setting: Setting::default(),
            queries: bounds.len() as u64,
            threads,
            time,
            cold_seconds: None,
            build_seconds: Some(built.seconds),
            index_bytes: Some(index.index_bytes() as u64),
            build_bytes: 0,
            wrong,
        });
    }
    Ok(records)
}
