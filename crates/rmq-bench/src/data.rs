//! Columns: what they look like decides how far a search goes down that stops where nothing smaller can come.

use std::sync::Arc;

use clap::ValueEnum;
use rmq_engine::{Column, Encoding, Key};

use crate::random::{mix, unit};

/// What a column looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Data {
    /// Uniform in [0, 1), as in the paper
    Uniform,
    /// Each value greater than the one before, as timestamps
    Increasing,
    /// Each value smaller than the one before
    Decreasing,
    /// One value
    Constant,
    /// A random walk, as prices
    Walk,
}

impl Data {
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Increasing => "increasing",
            Self::Decreasing => "decreasing",
            Self::Constant => "constant",
            Self::Walk => "walk",
        }
    }
}

/// The bits of a value.
pub trait Cell: Key {
    /// The bits of a float near `value`.
    fn of(value: f64) -> Self;

    /// The bits of the float that is `rank`th of those whose order is asked for.
    fn ranked(rank: u64) -> Self;

    /// As the device has them in memory.
    fn bytes(self) -> impl Iterator<Item = u8>;
}

impl Cell for u32 {
    fn of(value: f64) -> Self {
        (value as f32).to_bits()
    }

    fn ranked(rank: u64) -> Self {
        rank as Self
    }

    fn bytes(self) -> impl Iterator<Item = u8> {
        self.to_le_bytes().into_iter()
    }
}

impl Cell for u64 {
    fn of(value: f64) -> Self {
        value.to_bits()
    }

    fn ranked(rank: u64) -> Self {
        rank << 29
    }

    fn bytes(self) -> impl Iterator<Item = u8> {
        self.to_le_bytes().into_iter()
    }
}

/// Steps of a walk between places that a thread can begin at.
const STRIDE: usize = 1 << 16;

/// A column of `n` values, filled on all cores.
pub fn column<K: Cell>(data: Data, n: usize) -> Arc<Vec<K>> {
    let mut values = vec![K::ZERO; n];
    part(data, n, 0, &mut values);
    Arc::new(values)
}

/// Values `first..` of a column of `n`, filled on all cores; `first` is a multiple of [`STRIDE`].
pub fn part<K: Cell>(data: Data, n: usize, first: usize, values: &mut [K]) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let strides = values.len().div_ceil(STRIDE);
    let share = strides.div_ceil(threads) * STRIDE;
    std::thread::scope(|scope| {
        for (part, values) in values.chunks_mut(share).enumerate() {
            scope.spawn(move || {
                for (stride, values) in values.chunks_mut(STRIDE).enumerate() {
                    fill(data, n, first + part * share + stride * STRIDE, values);
                }
            });
        }
    });
}

/// Values `first..` of a column of `n`.
fn fill<K: Cell>(data: Data, n: usize, first: usize, values: &mut [K]) {
    // Floats have 2^30 patterns between these; a longer column repeats each some times.
    let shift = n.next_power_of_two().trailing_zeros().saturating_sub(29);
    // Far above 0: bits of floats that are not negative have the floats' order.
    let mut walk = 1e6 + far(first);
    for (i, value) in (first..).zip(values) {
        *value = match data {
            // Cut to 24 bits, so that no float is rounded to 1.
            Data::Uniform => K::of((mix(i as u64) >> 40) as f64 / f64::from(1 << 24)),
            Data::Increasing => K::ranked(0x2000_0000 + (i >> shift) as u64),
            Data::Decreasing => K::ranked(0x4000_0000 - (i >> shift) as u64),
            Data::Constant => K::of(0.5),
            Data::Walk => {
                walk += unit(i as u64) - 0.5;
                K::of(walk)
            }
        };
    }
}

/// About where a walk stands at a place that is a whole number of strides away. It jumps there, by what a stride's steps add up to.
fn far(first: usize) -> f64 {
    let strides = first / STRIDE;
    let step = |i: usize| unit(i as u64 ^ 1 << 60) - 0.5;
    let root = (STRIDE as f64).sqrt();
    (0..strides).map(step).sum::<f64>() * root
}

/// The values as an engine takes them.
pub fn shared<K: Cell>(values: &Arc<Vec<K>>) -> Column<K> {
    Column::new(Arc::<Vec<K>>::clone(values), Encoding::float())
}
