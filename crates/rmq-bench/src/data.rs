//! Columns. What a column looks like decides how far down a search goes that stops where nothing smaller can come.

use std::thread;

use clap::ValueEnum;

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
    /// All of them, in the order of reports.
    pub const ALL: [Self; 5] = [
        Self::Uniform,
        Self::Increasing,
        Self::Decreasing,
        Self::Walk,
        Self::Constant,
    ];

    /// Returns the name for flags and reports.
    #[must_use]
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

/// A type of values. `u32` is the bits of an `f32` and `u64` those of an `f64`; none of the floats is negative, so that
/// bits have the floats' order.
pub trait Value: Copy + Default + Send + Sync {
    /// Returns value `i` of uniform data: of floats in [0, 1), of integers among all.
    fn uniform(i: u64) -> Self;

    /// Returns the value near `value`; of integers, near its millionfold.
    fn from_f64(value: f64) -> Self;

    /// Returns a value that grows with `rank`, for ranks below 2^31.
    fn from_rank(rank: u64) -> Self;
}

impl Value for f32 {
    fn uniform(i: u64) -> Self {
        // 24 bits, so that no float is rounded to 1.
        Self::from_f64((mix(i) >> 40) as f64 / f64::from(1 << 24))
    }

    fn from_f64(value: f64) -> Self {
        value as Self
    }

    fn from_rank(rank: u64) -> Self {
        // Neighbouring floats: beyond 2^24 whole numbers would repeat.
        Self::from_bits(rank as u32)
    }
}

impl Value for f64 {
    fn uniform(i: u64) -> Self {
        f32::uniform(i).into()
    }

    fn from_f64(value: f64) -> Self {
        value
    }

    fn from_rank(rank: u64) -> Self {
        Self::from_bits(rank << 29)
    }
}

impl Value for i64 {
    fn uniform(i: u64) -> Self {
        mix(i).cast_signed()
    }

    fn from_f64(value: f64) -> Self {
        (value * 1e6) as Self
    }

    fn from_rank(rank: u64) -> Self {
        rank.cast_signed()
    }
}

macro_rules! bits {
    ($bits:ty, $float:ty) => {
        impl Value for $bits {
            fn uniform(i: u64) -> Self {
                <$float>::uniform(i).to_bits()
            }

            fn from_f64(value: f64) -> Self {
                <$float>::from_f64(value).to_bits()
            }

            fn from_rank(rank: u64) -> Self {
                <$float>::from_rank(rank).to_bits()
            }
        }
    };
}
bits!(u32, f32);
bits!(u64, f64);

/// Values of a column that are filled one after another. A random walk starts anew at each multiple.
const STRIDE: usize = 1 << 16;

/// Creates a column of `n` values, filled on all cores.
#[must_use]
pub fn column<V: Value>(data: Data, n: usize) -> Vec<V> {
    let mut values = vec![V::default(); n];
    part(data, n, 0, &mut values);
    values
}

/// Fills `values` with those from position `first` on of a column of `n`, on all cores.
///
/// # Panics
/// Where `first` is no multiple of 2^16.
pub fn part<V: Value>(data: Data, n: usize, first: usize, values: &mut [V]) {
    assert!(
        first.is_multiple_of(STRIDE),
        "parts begin at multiples of {STRIDE}"
    );
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let strides = values.len().div_ceil(STRIDE);
    let share = strides.div_ceil(threads).max(1) * STRIDE;
    thread::scope(|scope| {
        for (part, values) in values.chunks_mut(share).enumerate() {
            scope.spawn(move || {
                for (stride, values) in values.chunks_mut(STRIDE).enumerate() {
                    fill(data, n, first + part * share + stride * STRIDE, values);
                }
            });
        }
    });
}

/// Fills at most a stride, from position `first` on.
fn fill<V: Value>(data: Data, n: usize, first: usize, values: &mut [V]) {
    // There are 2^29 ranks; a longer column repeats each several times.
    let shift = n.next_power_of_two().trailing_zeros().saturating_sub(29);
    // Far above 0, so that no value is negative.
    let mut walk = 1e6 + walk_offset(first);
    for (i, value) in (first..).zip(values) {
        *value = match data {
            Data::Uniform => V::uniform(i as u64),
            Data::Increasing => V::from_rank(0x2000_0000 + (i >> shift) as u64),
            Data::Decreasing => V::from_rank(0x4000_0000 - (i >> shift) as u64),
            Data::Constant => V::from_f64(0.5),
            Data::Walk => {
                walk += unit(i as u64) - 0.5;
                V::from_f64(walk)
            }
        };
    }
}

/// How far a walk has come at the start of a stride. It jumps there, by about what the steps of a stride add up to, so
/// that each stride is computed by itself.
fn walk_offset(first: usize) -> f64 {
    let strides = first / STRIDE;
    let jump = |i: usize| unit(i as u64 ^ 1 << 60) - 0.5;
    let root = (STRIDE as f64).sqrt();
    (0..strides).map(jump).sum::<f64>() * root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_those_of_the_whole_column() {
        let n = 3 * STRIDE + 77;
        for data in Data::ALL {
            let whole = column::<u32>(data, n);
            for first in [STRIDE, 2 * STRIDE] {
                let mut values = vec![0; n - first];
                part(data, n, first, &mut values);
                assert!(values == whole[first..], "{data:?} from {first}");
            }
        }
    }

    #[test]
    fn values_have_the_order_of_the_data() {
        let n = 100_000;
        assert!(column::<f32>(Data::Increasing, n).is_sorted_by(|a, b| a < b));
        assert!(column::<i64>(Data::Decreasing, n).is_sorted_by(|a, b| a > b));
        let uniform = column::<f32>(Data::Uniform, n);
        assert!(uniform.iter().all(|value| (0.0..1.0).contains(value)));
    }
}
