//! The numbers of rows and queries from which on the GPU is faster than the CPU on all cores.

use std::error::Error;
use std::sync::Arc;

use rmq_engine::EngineError;
use rmq_engine::cpu::CpuEngine;
use rmq_engine::cuda::CudaEngine;

use rmq_bench::batches::{self, BatchOptions};
use rmq_bench::clock;
use rmq_bench::data;
use rmq_bench::index::{self, IndexableKey};
use rmq_bench::kinds::Width;
use rmq_bench::table::{Table, power_of_two, three_digits};

use crate::run::Run;
use crate::trip;

/// The times of an engine for one column.
struct Cost {
    engine: &'static str,
    build_seconds: f64,
    /// (queries, seconds), by queries.
    batches: Vec<(u64, f64)>,
}

impl Cost {
    /// Returns the seconds that a single query takes once the index is built.
    fn fixed(&self) -> f64 {
        self.batches.first().map_or(0.0, |(_, seconds)| *seconds)
    }

    /// Returns the seconds that each further query takes, in the largest batch.
    fn per_query(&self) -> f64 {
        let last = self.batches.last();
        last.map_or(0.0, |(queries, seconds)| {
            (seconds - self.fixed()).max(0.0) / *queries as f64
        })
    }
}

/// Measures all lengths of columns and numbers of queries.
pub fn measure(run: &mut Run, cuda: Option<&CudaEngine>) -> Result<(), Box<dyn Error>> {
    for key in run.args.key.clone() {
        let sizes = run.host_sizes(key);
        let mut all = Vec::new();
        for n in &sizes {
            let costs = match key {
                Width::U32 => measure_column::<u32>(run, cuda, *n)?,
                Width::U64 => measure_column::<u64>(run, cuda, *n)?,
            };
            all.push((*n, costs));
        }
        run.tables.push(constants(key, &all));
        run.tables.extend(crossings(key, &all));
    }
    Ok(())
}

fn measure_column<K: IndexableKey>(
    run: &mut Run,
    cuda: Option<&CudaEngine>,
    n: u32,
) -> Result<Vec<Cost>, EngineError> {
    let (data, result, workload) = (run.args.data, run.args.result, run.args.workload);
    let (threads, rounds) = (run.threads(), run.args.rounds);
    run.progress
        .now(&format!("crossover: a column of 2^{n} values"));
    let values = Arc::new(data::column::<K>(data, 1 << n));
    let column = index::float_column(&values);
    let powers: Vec<u32> = (0..=run.args.batch).step_by(2).collect();
    let mut costs = Vec::new();
    let cpu = CpuEngine::new();
    for (name, engine, batch_size) in trip::engines(run, &cpu, cuda) {
        let built = index::build(engine, &column, result, threads, rounds.min(3))?;
        let index = &*built.index;
        run.progress.expect(powers.len());
        let mut batches = Vec::new();
        for power in &powers {
            run.progress
                .now(&format!("crossover: {name}, n = 2^{n}, 2^{power} queries"));
            let bounds = workload.bounds(1 << n, 1 << power);
            let bounds = bounds.all();
            let options = BatchOptions {
                result,
                // Waking a thread takes longer than some thousand queries.
                threads: threads.min((bounds.len() >> 13) as u32).max(1) as usize,
                batch_size,
            };
            let time = clock::measure(rounds, || batches::run(index, bounds, options))?;
            batches.push((bounds.len() as u64, time.median));
            run.progress.done();
        }
        costs.push(Cost {
            engine: name,
            build_seconds: built.seconds,
            batches,
        });
    }
    Ok(costs)
}

/// The constants of a cost model.
fn constants(key: Width, all: &[(u32, Vec<Cost>)]) -> Table {
    let mut table = Table::new(
        format!(
            "Crossover, constants: {} values, all threads, host to host",
            key.name()
        ),
        [
            "",
            "build, ms",
            "build, ns a row",
            "one query, µs",
            "ns a query, of many",
        ]
        .map(str::to_owned),
    );
    for (n, costs) in all {
        for cost in costs {
            let numbers = [
                cost.build_seconds * 1e3,
                cost.build_seconds * 1e9 / (1_u64 << n) as f64,
                cost.fixed() * 1e6,
                cost.per_query() * 1e9,
            ];
            table.row(format!("{}, 2^{n}", cost.engine), numbers.map(three_digits));
        }
    }
    table
}

/// The numbers of queries from which on the GPU is faster; none where only one engine was measured.
fn crossings(key: Width, all: &[(u32, Vec<Cost>)]) -> Option<Table> {
    let mut table = Table::new(
        format!(
            "Crossover: number of queries from which on the GPU is faster, {} values",
            key.name()
        ),
        ["", "index built before", "build included"].map(str::to_owned),
    );
    for (n, costs) in all {
        let [cpu, gpu] = costs.as_slice() else {
            continue;
        };
        let from = |build: bool| {
            let extra = if build {
                gpu.build_seconds - cpu.build_seconds
            } else {
                0.0
            };
            let pairs = cpu.batches.iter().zip(&gpu.batches);
            // The first from which on the GPU stays faster.
            let slower = pairs.rev().take_while(|(cpu, gpu)| gpu.1 + extra < cpu.1);
            let first = slower.last().map(|(cpu, _)| cpu.0.ilog2());
            first.map_or_else(|| "never".to_owned(), power_of_two)
        };
        table.row(power_of_two(*n), [from(false), from(true)]);
    }
    (!table.is_empty()).then_some(table)
}
