//! The columns: what they look like decides how far a pruned search goes down.

use std::sync::Arc;

use rmq_engine::cpu::CpuEngine;
use rmq_engine::{Answers, BuildOptions, Column, Encoding, Engine as _, Key, RangeIndex};

use super::memory::Values;
use rmq_bench::support::random::Random;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    Uniform,
    /// Strictly increasing, as a time series of timestamps.
    Increasing,
    /// A random walk, as a time series of prices.
    Walk,
    Constant,
}

impl Data {
    pub const ALL: [Self; 4] = [Self::Uniform, Self::Increasing, Self::Walk, Self::Constant];

    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Increasing => "increasing",
            Self::Walk => "walk",
            Self::Constant => "constant",
        }
    }

    pub fn fill<T: Cell>(self, values: &mut [T]) {
        let mut random = Random(42);
        let mut walk = 0.0;
        for (i, value) in values.iter_mut().enumerate() {
            *value = match self {
                Self::Uniform => T::uniform(&mut random),
                Self::Increasing => T::counting(i),
                Self::Walk => {
                    walk += random.unit() - 0.5;
                    T::of(walk)
                }
                Self::Constant => T::of(1.0),
            };
        }
    }
}

/// A type of value that is measured.
pub trait Cell: Copy + PartialOrd + Send + Sync + 'static {
    const NAME: &'static str;
    fn of(value: f64) -> Self;
    fn uniform(random: &mut Random) -> Self;
    /// Strictly increasing in `i`.
    fn counting(i: usize) -> Self;
    /// A key of the same order, of the positive values here.
    fn key(self) -> u64;
    /// An index by the engine, on one thread.
    fn index(
        column: Arc<Values<Self>>,
        engine: &CpuEngine,
        options: &BuildOptions,
    ) -> Box<dyn Answer>;
}

/// An index of the engine, whatever the width of its keys.
pub trait Answer {
    fn values(&mut self, left: &[i64], right: &[i64]);
    fn positions(&mut self, left: &[i64], right: &[i64]);
    fn bytes(&self) -> usize;
}

struct Engine<K> {
    index: Arc<dyn RangeIndex<K>>,
    keys: Vec<K>,
    positions: Vec<i64>,
    valid: Vec<u64>,
}

impl<K: Key> Engine<K> {
    fn boxed(index: Arc<dyn RangeIndex<K>>) -> Box<dyn Answer>
    where
        K: 'static,
    {
        Box::new(Self {
            index,
            // Made at the first answer, so that a build's time is that of the build.
            keys: Vec::new(),
            positions: Vec::new(),
            valid: vec![0; rmq_bench::support::QUERIES / 64],
        })
    }
}

impl<K: Key> Answer for Engine<K> {
    fn values(&mut self, left: &[i64], right: &[i64]) {
        self.keys.resize(rmq_bench::support::QUERIES, K::MAX);
        let out = Answers {
            values: Some(&mut self.keys[..left.len()]),
            positions: None,
            valid: &mut self.valid[..left.len().div_ceil(64)],
        };
        self.index.answer(left, right, out).expect("slices fit");
    }

    fn positions(&mut self, left: &[i64], right: &[i64]) {
        self.positions.resize(rmq_bench::support::QUERIES, 0);
        let out = Answers {
            values: None,
            positions: Some(&mut self.positions[..left.len()]),
            valid: &mut self.valid[..left.len().div_ceil(64)],
        };
        self.index.answer(left, right, out).expect("slices fit");
    }

    fn bytes(&self) -> usize {
        self.index.index_bytes()
    }
}

/// A column's memory as keys.
struct Keys<T>(Arc<Values<T>>);

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

impl Cell for f32 {
    const NAME: &'static str = "f32";
    fn of(value: f64) -> Self {
        value as Self
    }
    fn uniform(random: &mut Random) -> Self {
        random.unit() as Self
    }
    fn counting(i: usize) -> Self {
        // Neighbouring floats: past 2^24 whole numbers would repeat.
        Self::from_bits(0x2000_0000 + i as u32)
    }
    fn key(self) -> u64 {
        u64::from(Encoding::<u32>::float().encode(self.to_bits()))
    }
    fn index(
        column: Arc<Values<Self>>,
        engine: &CpuEngine,
        options: &BuildOptions,
    ) -> Box<dyn Answer> {
        let column = Column::new(Arc::new(Keys(column)), Encoding::float());
        Engine::boxed(engine.build_u32(column, options).expect("there is memory"))
    }
}

impl Cell for i64 {
    const NAME: &'static str = "i64";
    fn of(value: f64) -> Self {
        (value * 1e6) as Self
    }
    fn uniform(random: &mut Random) -> Self {
        random.next().cast_signed()
    }
    fn counting(i: usize) -> Self {
        i as Self
    }
    fn key(self) -> u64 {
        Encoding::<u64>::signed().encode(self.cast_unsigned())
    }
    fn index(
        column: Arc<Values<Self>>,
        engine: &CpuEngine,
        options: &BuildOptions,
    ) -> Box<dyn Answer> {
        let column = Column::new(Arc::new(Keys(column)), Encoding::signed());
        Engine::boxed(engine.build_u64(column, options).expect("there is memory"))
    }
}
