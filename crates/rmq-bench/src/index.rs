//! Indexes of the engines, with the time that building them takes.

use std::sync::Arc;

use rmq_engine::{BuildOptions, Column, Encoding, Engine, EngineError, Key, RangeIndex};

use crate::clock::measure;
use crate::data::Value;

use crate::kinds::ResultKind;

/// A width of keys that engines build indexes of. The keys of a column are the bits of floats.
pub trait IndexableKey: Key + Value {
    /// Builds an index.
    ///
    /// # Errors
    /// Those of the engine.
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
    /// The index.
    pub index: Arc<dyn RangeIndex<K>>,
    /// The median of all builds.
    pub seconds: f64,
}

/// Builds an index for such results on `threads` threads, several times.
///
/// # Errors
/// Those of the engine.
///
/// # Panics
/// Never: an index is built at least once.
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
