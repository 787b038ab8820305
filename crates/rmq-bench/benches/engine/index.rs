//! The types of values that are measured, and indexes of the engine over them.

use std::collections::HashMap;
use std::sync::Arc;

use rmq_bench::data::Value;
use rmq_bench::memory::MappedSlice;
use rmq_engine::cpu::CpuEngine;
use rmq_engine::{
    Answers, BuildOptions, Column, Crossings, Encoding, Engine as _, Key, RangeEnd, RangeIndex,
};

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
    /// Finds the first row of each range that is at most a threshold, which is the minimum of the range: so there is one, and it is hard to
    /// find. The first call with a slice of bounds computes the thresholds.
    fn crossings(&mut self, left: &[i64], right: &[i64]);
    fn bytes(&self) -> usize;
}

struct BufferedIndex<K> {
    index: Arc<dyn RangeIndex<K>>,
    encoding: Encoding<K>,
    /// Thresholds by the address and the number of the left bounds.
    thresholds: HashMap<(usize, usize), Vec<K>>,
    values: Vec<K>,
    positions: Vec<i64>,
    valid: Vec<u64>,
}

impl<K: Key + 'static> BufferedIndex<K> {
    fn boxed(index: Arc<dyn RangeIndex<K>>, encoding: Encoding<K>) -> Box<dyn EngineIndex> {
        Box::new(Self {
            index,
            encoding,
            thresholds: HashMap::new(),
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

    fn crossings(&mut self, left: &[i64], right: &[i64]) {
        let batch = (left.as_ptr().addr(), left.len());
        if !self.thresholds.contains_key(&batch) {
            self.values(left, right);
            let minima = self.values[..left.len()].iter();
            let minima = minima.map(|bits| self.encoding.encode(*bits));
            self.thresholds.insert(batch, minima.collect());
        }
        self.positions.resize(QUERIES, 0);
        let out = Crossings {
            positions: &mut self.positions[..left.len()],
            valid: &mut self.valid[..left.len().div_ceil(64)],
        };
        let thresholds = &self.thresholds[&batch];
        let found = self
            .index
            .crossings(left, right, thresholds, RangeEnd::First, out);
        found.expect("slices fit");
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
        let index = engine.build_u32(column, options);
        BufferedIndex::boxed(index.expect("there is memory"), Encoding::float())
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
        let index = engine.build_u64(column, options);
        BufferedIndex::boxed(index.expect("there is memory"), Encoding::signed())
    }
}
