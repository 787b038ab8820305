//! Indexes of the engines, with the time that building them takes.

use std::sync::Arc;

use rmq_engine::{BuildOptions, Column, Encoding, Engine, EngineError, Key, RangeIndex};

use rmq_bench::clock::measure;
use rmq_bench::data::Value;

use crate::args::ResultKind;

/// A width of keys that engines build indexes of. The keys of a column are the bits of floats.
pub trait IndexableKey: Key + Value {
    /// Builds an index.
    fn build(
        engine: &dyn Engine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError>;

    /// Returns the bytes as they are in the device's memory.
    fn bytes(self) -> impl Iterator<Item = u8>;
}

impl IndexableKey for u32 {
    fn build(
        engine: &dyn Engine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError> {
        engine.build_u32(column, options)
    }

    fn bytes(self) -> impl Iterator<Item = u8> {
        self.to_le_bytes().into_iter()
    }
}

impl IndexableKey for u64 {
    fn build(
        engine: &dyn Engine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<Self>>, EngineError> {
        engine.build_u64(column, options)
    }

    fn bytes(self) -> impl Iterator<Item = u8> {
        self.to_le_bytes().into_iter()
    }
}

/// Wraps values for an engine, without a copy.
pub fn float_column<K: IndexableKey>(values: &Arc<Vec<K>>) -> Column<K> {
    Column::new(Arc::<Vec<K>>::clone(values), Encoding::float())
}

/// An index and the seconds that building it took.
pub struct TimedIndex<K> {
    pub index: Arc<dyn RangeIndex<K>>,
    pub seconds: f64,
}

/// Builds an index for such results on `threads` threads, several times.
pub fn build<K: IndexableKey>(
    engine: &dyn Engine,
    column: &Column<K>,
    result: ResultKind,
    threads: u32,
    rounds: u32,
) -> Result<TimedIndex<K>, EngineError> {
    let options = BuildOptions {
        positions: result == ResultKind::Position,
        threads: threads as usize,
    };
    let mut index = None;
    let time = measure(rounds, || {
        index = None;
        index = Some(K::build(engine, column.clone(), &options)?);
        Ok::<_, EngineError>(())
    })?;
    Ok(TimedIndex {
        index: index.expect("built at least once"),
        seconds: time.median,
    })
}
