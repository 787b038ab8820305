//! The engine for CPUs.

use std::sync::Arc;

use rmq_engine::cpu::CpuEngine;
use rmq_engine::{BuildOptions, Column, Engine, EngineError, RangeIndex};

use crate::args::Wanted;
use crate::ask::{self, Way};
use crate::clock::measure;
use crate::data::Cell;
use crate::record::{Case, Record, Section, Setting};
use crate::workload::Bounds;

/// A width of keys that engines build indexes of.
pub trait Built: Cell {
    fn build(
        engine: &dyn Engine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError>;
}

impl Built for u32 {
    fn build(
        engine: &dyn Engine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError> {
        engine.build_u32(column, options)
    }
}

impl Built for u64 {
    fn build(
        engine: &dyn Engine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError> {
        engine.build_u64(column, options)
    }
}

/// How an index is built for such answers on that many threads.
pub fn options(wanted: Wanted, threads: u32) -> BuildOptions {
    BuildOptions {
        positions: wanted == Wanted::Position,
        threads: threads as usize,
    }
}

/// An index with the seconds that it took.
pub struct Timed<K> {
    pub index: Arc<dyn RangeIndex<K>>,
    pub seconds: f64,
}

/// Builds an index some times.
pub fn build<K: Built>(
    engine: &dyn Engine,
    column: &Column<K>,
    options: &BuildOptions,
    rounds: u32,
) -> Result<Timed<K>, EngineError> {
    let mut index = None;
    let seconds = measure(rounds, || {
        index = None;
        index = Some(K::build(engine, column.clone(), options)?);
        Ok::<_, EngineError>(())
    })?;
    Ok(Timed {
        index: index.expect("built at least once"),
        seconds,
    })
}

/// Measures the search on one thread and on all, and compares answers with a scan of their ranges.
pub fn search<K: Built>(
    case: Case,
    values: &[K],
    built: &Timed<K>,
    bounds: Bounds<'_>,
    threads: u32,
    rounds: u32,
) -> Result<Vec<Record>, EngineError> {
    let way = |threads: u32| Way {
        wanted: case.wanted,
        threads: threads as usize,
        batch: ask::ON_CPU,
    };
    let encode = |bits| rmq_engine::Encoding::float().encode(bits);
    let index = &*built.index;
    let wrong = ask::collect(index, bounds, way(1))?.differ(&ask::scan(
        values,
        encode,
        bounds,
        case.wanted,
    ));
    let mut counts = vec![1, threads];
    counts.dedup();
    let mut records = Vec::new();
    for threads in counts {
        let seconds = measure(rounds, || ask::ask(index, bounds, way(threads)))?;
        records.push(Record {
            section: Section::Search,
            case,
            contender: name(threads),
            setting: Setting::default(),
            queries: bounds.len() as u64,
            threads,
            seconds,
            build_seconds: Some(built.seconds),
            index_bytes: Some(index.index_bytes() as u64),
            wrong,
        });
    }
    Ok(records)
}

/// The engine for CPUs as a contender.
pub fn name(threads: u32) -> String {
    match threads {
        1 => "CPU, 1 thread".to_owned(),
        _ => format!("CPU, {threads} threads"),
    }
}

/// The engine for CPUs.
pub fn engine() -> CpuEngine {
    CpuEngine::new()
}
