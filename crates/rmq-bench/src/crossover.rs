//! From how many rows and queries on the GPU is faster than the CPU, on all cores.

use std::error::Error;

use rmq_engine::EngineError;
use rmq_engine::cuda::CudaEngine;

use crate::args::Width;
use crate::ask::{self, Way};
use crate::clock;
use crate::cpu::{self, Built};
use crate::data;
use crate::record::{Record, Section, Setting};
use crate::run::{Run, case};
use crate::table::{Table, power, short};
use crate::trip;

/// What an engine takes for one column.
struct Cost {
    engine: &'static str,
    build: f64,
    /// (queries, seconds), by queries.
    batches: Vec<(u64, f64)>,
}

impl Cost {
    /// Seconds for that many queries once the index is there: those of a single query, and what each one more takes.
    fn fixed(&self) -> f64 {
        self.batches.first().map_or(0.0, |(_, seconds)| *seconds)
    }

    /// Of the largest batch.
    fn per_query(&self) -> f64 {
        let last = self.batches.last();
        last.map_or(0.0, |(queries, seconds)| {
            (seconds - self.fixed()).max(0.0) / *queries as f64
        })
    }
}

/// Sweeps lengths of columns and numbers of queries.
pub fn measure(run: &mut Run, cuda: Option<&CudaEngine>) -> Result<(), Box<dyn Error>> {
    for key in run.args.key.clone() {
        let sizes = run.host_sizes(key);
        let mut all = Vec::new();
        for n in &sizes {
            let costs = match key {
                Width::U32 => column::<u32>(run, cuda, key, *n)?,
                Width::U64 => column::<u64>(run, cuda, key, *n)?,
            };
            all.push((*n, costs));
        }
        run.tables.push(constants(key, &all));
        run.tables.extend(crossings(key, &all));
    }
    Ok(())
}

fn column<K: Built>(
    run: &mut Run,
    cuda: Option<&CudaEngine>,
    key: Width,
    n: u32,
) -> Result<Vec<Cost>, EngineError> {
    let (data, wanted, workload) = (run.args.data[0], run.args.result[0], run.args.workload[0]);
    let case = case(key, data, wanted, workload, n);
    let (threads, rounds) = (run.threads(), run.args.rounds);
    run.progress
        .now(&format!("crossover: a column of 2^{n} values"));
    let values = data::column::<K>(data, 1 << n);
    let column = data::shared(&values);
    let powers: Vec<u32> = (0..=run.args.batch).step_by(2).collect();
    let mut costs = Vec::new();
    let on_cpu = cpu::engine();
    for (engine, through, batch) in trip::engines(run, &on_cpu, cuda) {
        let options = cpu::options(wanted, threads);
        let built = cpu::build(through, &column, &options, rounds.min(3))?;
        let index = &*built.index;
        run.progress.expect(powers.len());
        let mut batches = Vec::new();
        for power in &powers {
            run.progress.now(&format!(
                "crossover: {engine}, n = 2^{n}, 2^{power} queries"
            ));
            let bounds = workload.bounds(1 << n, 1 << power);
            let bounds = bounds.all();
            let way = Way {
                wanted,
                // Waking a thread takes longer than some thousand queries.
                threads: threads.min((bounds.len() >> 13) as u32).max(1) as usize,
                batch,
            };
            let seconds = clock::measure(rounds, || ask::ask(index, bounds, way))?;
            batches.push((bounds.len() as u64, seconds));
            run.records.push(Record {
                section: Section::Crossover,
                case,
                contender: engine.to_owned(),
                setting: Setting::default(),
                queries: bounds.len() as u64,
                threads: way.threads as u32,
                seconds,
                build_seconds: Some(built.seconds),
                index_bytes: Some(index.index_bytes() as u64),
                wrong: 0,
            });
            run.progress.done();
        }
        costs.push(Cost {
            engine,
            build: built.seconds,
            batches,
        });
    }
    Ok(costs)
}

/// What an estimate of costs needs to know.
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
                cost.build * 1e3,
                cost.build * 1e9 / (1_u64 << n) as f64,
                cost.fixed() * 1e6,
                cost.per_query() * 1e9,
            ];
            table.row(format!("{}, 2^{n}", cost.engine), numbers.map(short));
        }
    }
    table
}

/// From how many queries on the GPU is the faster one.
fn crossings(key: Width, all: &[(u32, Vec<Cost>)]) -> Option<Table> {
    let mut table = Table::new(
        format!(
            "Crossover: the GPU is faster from so many queries on, {} values",
            key.name()
        ),
        ["", "index on both", "build included"].map(str::to_owned),
    );
    for (n, costs) in all {
        let [cpu, gpu] = costs.as_slice() else {
            continue;
        };
        let from = |build: bool| {
            let extra = if build { gpu.build - cpu.build } else { 0.0 };
            let pairs = cpu.batches.iter().zip(&gpu.batches);
            // The first from which on the GPU stays ahead.
            let slower = pairs.rev().take_while(|(cpu, gpu)| gpu.1 + extra < cpu.1);
            let first = slower.last().map(|(cpu, _)| cpu.0.ilog2());
            first.map_or_else(|| "never".to_owned(), power)
        };
        table.row(power(*n), [from(false), from(true)]);
    }
    (!table.rows.is_empty()).then_some(table)
}
