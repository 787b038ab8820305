//! Succinct indexes on the CPU beside our engine, by number of threads: HRMQ, and the crate `range_minimum_query`.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use range_minimum_query::Rmq;
use rmq_engine::cpu::CpuEngine;
use rmq_engine::{Answers, BuildOptions, Crossings, Encoding, EngineError, RangeEnd, RangeIndex};

use rmq_bench::workload::Bounds;
use rmq_bench::{clock, data, memory};

use crate::hrmq::Hrmq;
use crate::record::{Case, Record, Section, Setting};
use crate::run::Run;
use rmq_bench::batches::{self, BatchOptions, CPU_BATCH_SIZE, CollectedAnswers};
use rmq_bench::index::{self, IndexableKey};
use rmq_bench::kinds::Width;

/// An index that finds the position of a minimum without the column.
trait FindMinimum: Send + Sync + std::fmt::Debug {
    /// Returns the position of the leftmost minimum of values `left..=right`.
    fn position(&self, left: usize, right: usize) -> usize;
}

impl FindMinimum for Hrmq {
    fn position(&self, left: usize, right: usize) -> usize {
        Hrmq::position(self, left, right)
    }
}

impl FindMinimum for Rmq {
    fn position(&self, left: usize, right: usize) -> usize {
        self.range_minimum(left..=right).unwrap_or(left)
    }
}

/// A succinct index and its column. Ranges must be within the column and not empty.
#[derive(Debug)]
struct SuccinctIndex<K, F> {
    values: Arc<Vec<K>>,
    find: F,
    bytes: usize,
}

impl<K: IndexableKey, F: FindMinimum> RangeIndex<K> for SuccinctIndex<K, F> {
    fn len(&self) -> usize {
        self.values.len()
    }

    fn encoding(&self) -> Encoding<K> {
        Encoding::unsigned()
    }

    fn has_positions(&self) -> bool {
        true
    }

    fn index_bytes(&self) -> usize {
        self.bytes
    }

    fn memory_bytes(&self) -> usize {
        self.bytes
    }

    fn answer(&self, left: &[i64], right: &[i64], out: Answers<'_, K>) -> Result<(), EngineError> {
        out.check(left, right)?;
        let ranges = left.iter().zip(right);
        let positions = ranges.map(|(l, r)| self.find.position(*l as usize, *r as usize));
        if let Some(outputs) = out.positions {
            for (output, position) in outputs.iter_mut().zip(positions) {
                *output = position as i64;
            }
        } else if let Some(outputs) = out.values {
            for (output, position) in outputs.iter_mut().zip(positions) {
                *output = self.values[position];
            }
        }
        out.valid.fill(u64::MAX);
        Ok(())
    }

    fn crossings(
        &self,
        _: &[i64],
        _: &[i64],
        _: &[K],
        _: RangeEnd,
        _: Crossings<'_>,
    ) -> Result<(), EngineError> {
        let why = "a succinct index keeps no minima to search for thresholds";
        Err(EngineError::Invalid(why.to_string()))
    }
}

/// A contender, its index and what building it took.
struct Built<K> {
    contender: &'static str,
    index: Arc<dyn RangeIndex<K>>,
    seconds: f64,
    /// The most queries of a measurement for each thread.
    timed: usize,
}

/// Builds a succinct index once, and counts the bytes that the allocator has handed out for it.
fn succinct<K: IndexableKey, F: FindMinimum + 'static>(
    contender: &'static str,
    values: &Arc<Vec<K>>,
    build: impl FnOnce(&[K]) -> F,
) -> Built<K> {
    let before = memory::allocated_bytes();
    let start = Instant::now();
    let find = build(values);
    let seconds = start.elapsed().as_secs_f64();
    let bytes = memory::allocated_bytes().saturating_sub(before);
    let values = Arc::clone(values);
    let index = Arc::new(SuccinctIndex {
        values,
        find,
        bytes: bytes as usize,
    });
    Built {
        contender,
        index,
        seconds,
        timed: TIMED,
    }
}

/// The most queries of a measurement of a succinct index for each thread: they answer about a million a second.
const TIMED: usize = 1 << 18;

/// The indexes that are measured.
const CONTENDERS: usize = 3;

/// Returns the number of steps of all columns.
pub fn steps(run: &Run) -> usize {
    let args = &run.args;
    let columns: usize = args.key.iter().map(|key| run.host_sizes(*key).len()).sum();
    columns * args.result.len() * args.workload.len() * args.threads.len() * CONTENDERS
}

/// Measures all columns that fit in host memory.
pub fn measure(run: &mut Run) -> Result<(), Box<dyn Error>> {
    for key in run.args.key.clone() {
        for n in run.host_sizes(key) {
            match key {
                Width::U32 => measure_column::<u32>(run, key, n)?,
                Width::U64 => measure_column::<u64>(run, key, n)?,
            }
        }
    }
    Ok(())
}

fn measure_column<K: IndexableKey>(run: &mut Run, key: Width, n: u32) -> Result<(), EngineError> {
    let data = run.args.data[0];
    let (results, workloads) = (run.args.result.clone(), run.args.workload.clone());
    run.progress
        .now(&format!("succinct indexes: a column of 2^{n} values"));
    let values = Arc::new(data::column::<K>(data, 1 << n));
    let engine_column = index::float_column(&values);
    let start = Instant::now();
    let options = BuildOptions {
        positions: true,
        threads: run.threads() as usize,
    };
    let engine = K::build(&CpuEngine::new(), engine_column, &options)?;
    let contenders: [_; CONTENDERS] = [
        Built {
            contender: "CPU",
            index: engine,
            seconds: start.elapsed().as_secs_f64(),
            timed: 1 << 30,
        },
        succinct("HRMQ", &values, |values| Hrmq::new(values)),
        succinct("range_minimum_query", &values, |values| {
            values.iter().collect::<Rmq>()
        }),
    ];
    for result in results {
        for workload in &workloads {
            let case = Case::new(key, data, result, *workload, n);
            let bounds = workload.bounds(1 << n, 1 << run.args.cpu_batch);
            let mut reference = None;
            for built in &contenders {
                measure_threads(run, case, built, &bounds, &mut reference)?;
            }
        }
    }
    Ok(())
}

/// Measures an index with each number of threads; its answers are compared with the reference, or become it.
fn measure_threads<K: IndexableKey>(
    run: &mut Run,
    case: Case,
    built: &Built<K>,
    bounds: &Bounds,
    reference: &mut Option<CollectedAnswers<K>>,
) -> Result<(), EngineError> {
    let options = |threads: u32| BatchOptions {
        result: case.result,
        threads: threads as usize,
        batch_size: CPU_BATCH_SIZE,
    };
    let index = &*built.index;
    run.progress
        .now(&format!("{}: all answers", built.contender));
    let answers = batches::collect(index, bounds.all(), options(run.threads()))?;
    let wrong = (reference.as_ref()).map_or(0, |reference| reference.count_differences(&answers));
    reference.get_or_insert(answers);
    for threads in run.args.threads.clone() {
        run.progress.now(&format!(
            "{}, {threads} threads: {}, n = 2^{}",
            built.contender,
            case.title(),
            case.n
        ));
        let rounds = run.args.rounds.min(3);
        let timed = bounds.first(built.timed * threads as usize);
        let time = clock::measure(rounds, || batches::run(index, timed, options(threads)))?;
        let record = Record {
            section: Section::Succinct,
            case,
            contender: built.contender.to_owned(),
            setting: Setting::default(),
            queries: timed.len() as u64,
            threads,
            time,
            cold_seconds: None,
            build_seconds: Some(built.seconds),
            index_bytes: Some(index.index_bytes() as u64),
            build_bytes: 0,
            wrong,
        };
        // The paper's figures have the CPU's indexes beside those of the GPU.
        if run.args.paper && threads == run.threads() {
            run.keep(Record {
                section: Section::Search,
                contender: format!("{}, {threads} threads", built.contender),
                ..record.clone()
            });
        }
        run.found(record);
        run.progress.done();
    }
    Ok(())
}
