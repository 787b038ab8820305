//! The columns: what they look like decides how far a pruned search goes down.

use super::random::Random;

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
pub trait Cell: datafusion_rmq::engine::alone::Value + PartialOrd {
    const NAME: &'static str;
    fn of(value: f64) -> Self;
    fn uniform(random: &mut Random) -> Self;
    /// Strictly increasing in `i`.
    fn counting(i: usize) -> Self;
}

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
}
