//! The types of values that are measured, and indexes of the engine over them.

use std::sync::Arc;

use rmq_bench::data::Value;
use rmq_bench::memory::MappedSlice;
use rmq_engine::cpu::CpuEngine;
use rmq_engine::{Answers, BuildOptions, Column, Encoding, Engine as _, Key, RangeIndex};

use crate::rounds::QUERIES;

/// A type of values that is measured.
pub trait ColumnValue: Value + PartialOrd + 'static {
    const NAME: &'static str;

    /// Returns a key of the same order.
    fn key(self) -> u64;

    /// Builds an index.
    fn index(
        column: Arc<MappedSlice<Self>>,
        engine: &CpuEngine,
        options: &BuildOptions,
    ) -> Box<dyn EngineIndex>;
}

/// An index of the engine, for any width of keys. Its answers go to buffers of [`QUERIES`] entries, which are used again.
pub trait EngineIndex {
    fn values(&mut self, left: &[i64], right: &[i64]);
    fn positions(&mut self, left: &[i64], right: &[i64]);
    fn bytes(&self) -> usize;
}

struct BufferedIndex<K> {
    index: Arc<dyn RangeIndex<K>>,
    values: Vec<K>,
    positions: Vec<i64>,
    valid: Vec<u64>,
}

impl<K: Key + 'static> BufferedIndex<K> {
    fn boxed(index: Arc<dyn RangeIndex<K>>) -> Box<dyn EngineIndex> {
        Box::new(Self {
            index,
            // Allocated for the first answer, not while building is timed.
            values: Vec::new(),
            positions: Vec::new(),
            valid: vec![0; QUERIES / 64],
        })
    }
}

impl<K: Key> EngineIndex for BufferedIndex<K> {
    fn values(&mut self, left: &[i64], right: &[i64]) {
        self.values.resize(QUERIES, K::MAX);
        let answers = Answers {
            values: Some(&mut self.values[..left.len()]),
            positions: None,
            valid: &mut self.valid[..left.len().div_ceil(64)],
        };
        self.index.answer(left, right, answers).expect("slices fit");
    }

    fn positions(&mut self, left: &[i64], right: &[i64]) {
        self.positions.resize(QUERIES, 0);
        let answers = Answers {
            values: None,
            positions: Some(&mut self.positions[..left.len()]),
            valid: &mut self.valid[..left.len().div_ceil(64)],
        };
        self.index.answer(left, right, answers).expect("slices fit");
    }

    fn bytes(&self) -> usize {
        self.index.index_bytes()
    }
}

/// A column's memory as keys.
struct Keys<T>(Arc<MappedSlice<T>>);

macro_rules! keys {
    ($value:ty, $key:ty) => {
        impl AsRef<[$key]> for Keys<$value> {
            fn as_ref(&self) -> &[$key] {
                // SAFETY: both are numbers of one size and alignment, and all bits of either are values.
                unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len()) }
            }
        }
    };
}
keys!(f32, u32);
keys!(i64, u64);

impl ColumnValue for f32 {
    const NAME: &'static str = "f32";

    fn key(self) -> u64 {
        u64::from(Encoding::<u32>::float().encode(self.to_bits()))
    }

    fn index(
        column: Arc<MappedSlice<Self>>,
        engine: &CpuEngine,
        options: &BuildOptions,
    ) -> Box<dyn EngineIndex> {
        let column = Column::new(Arc::new(Keys(column)), Encoding::float());
        BufferedIndex::boxed(engine.build_u32(column, options).expect("there is memory"))
    }
}

impl ColumnValue for i64 {
    const NAME: &'static str = "i64";

    fn key(self) -> u64 {
        Encoding::<u64>::signed().encode(self.cast_unsigned())
    }

    fn index(
        column: Arc<MappedSlice<Self>>,
        engine: &CpuEngine,
        options: &BuildOptions,
    ) -> Box<dyn EngineIndex> {
        let column = Column::new(Arc::new(Keys(column)), Encoding::signed());
        BufferedIndex::boxed(engine.build_u64(column, options).expect("there is memory"))
    }
}
