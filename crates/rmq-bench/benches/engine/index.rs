//! The types of values that are measured, and indexes of the engine over them.

use std::collections::HashMap;
use std::sync::Arc;

use rmq_bench::data::Value;
use rmq_bench::memory::MappedSlice;
use rmq_bench::random::unit;
use rmq_bench::workload::Bounds;
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

/// The threshold of a range. There is always a row that is at most this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Threshold {
    /// The minimum of the range: rows are passed up to it.
    Minimum,
    /// The minimum of a random part of the range, of any order of magnitude: rows are found at all distances.
    PartMinimum,
}

/// An index of the engine, for any width of keys. Its answers go to buffers of [`QUERIES`] entries, which are used
/// again.
pub trait EngineIndex {
    fn values(&mut self, left: &[i64], right: &[i64]);
    fn positions(&mut self, left: &[i64], right: &[i64]);
    /// Finds the first row of each range that is at most a threshold. The first call with a slice of bounds computes
    /// the thresholds.
    fn crossings(&mut self, left: &[i64], right: &[i64], threshold: Threshold);
    fn bytes(&self) -> usize;
}

struct BufferedIndex<K> {
    index: Arc<dyn RangeIndex<K>>,
    encoding: Encoding<K>,
    /// Thresholds by the address and the number of the left bounds.
    thresholds: HashMap<(usize, usize, Threshold), Vec<K>>,
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

    fn crossings(&mut self, left: &[i64], right: &[i64], threshold: Threshold) {
        let batch = (left.as_ptr().addr(), left.len(), threshold);
        if !self.thresholds.contains_key(&batch) {
            match threshold {
                Threshold::Minimum => self.values(left, right),
                Threshold::PartMinimum => {
                    let parts = random_parts(left, right);
                    self.values(&parts.left, &parts.right);
                }
            }
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

/// Returns a random part of each range. The logarithm of its length is uniform up to that of the range.
fn random_parts(left: &[i64], right: &[i64]) -> Bounds {
    let ranges = left.iter().zip(right).zip(0..);
    let part = ranges.map(|((left, right), i)| {
        let length = (right - left + 1) as f64;
        let part = length.powf(unit(2 * i)).floor();
        let start = left + (unit(2 * i + 1) * (length - part)) as i64;
        (start, start + part as i64 - 1)
    });
    let (left, right) = part.unzip();
    Bounds { left, right }
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
