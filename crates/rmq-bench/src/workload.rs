//! The four distributions of ranges of the GPU-RMQ paper (Kreis et al., 2026).

use crate::lab::limit::Ranges;
use clap::ValueEnum;

use crate::random::{mix, unit};

/// How long ranges are; the left bound is uniform over where the length fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Workload {
    /// Lengths log-normal around n^0.3
    Small,
    /// Lengths log-normal around n^0.6
    Medium,
    /// Lengths uniform in [1, n]
    Large,
    /// A third of each, in random order
    Mixed,
}

impl Workload {
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
            Self::Mixed => "mixed",
        }
    }

    fn length(self, n: usize, i: u64) -> usize {
        let around = |power: f64| {
            let normal = (-2.0 * unit(i * 4 + 1).ln()).sqrt()
                * (std::f64::consts::TAU * unit(i * 4 + 2)).cos();
            ((n as f64).ln() * power + 0.3 * normal).exp() as usize
        };
        let length = match self {
            Self::Large => 1 + (unit(i * 4) * n as f64) as usize,
            Self::Medium => around(0.6),
            Self::Small => around(0.3),
            Self::Mixed => {
                let kinds = [Self::Large, Self::Medium, Self::Small];
                kinds[(mix(i * 31 + (5 << 40)) % 3) as usize].length(n, i)
            }
        };
        length.clamp(1, n)
    }

    /// Inclusive bounds of `count` ranges.
    pub fn bounds(self, n: usize, count: usize) -> AllBounds {
        let seed = mix(n as u64) >> 8;
        let (mut left, mut right) = (vec![0; count], vec![0; count]);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = count.div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            let parts = left.chunks_mut(share).zip(right.chunks_mut(share));
            for (part, (left, right)) in parts.enumerate() {
                scope.spawn(move || {
                    for (j, (l, r)) in left.iter_mut().zip(right).enumerate() {
                        let i = seed + (part * share + j) as u64;
                        let length = self.length(n, i);
                        let room = n - length + 1;
                        let start = ((unit(i * 4 + 3) * room as f64) as usize).min(room - 1);
                        *l = start as i64;
                        *r = (start + length - 1) as i64;
                    }
                });
            }
        });
        AllBounds { left, right }
    }
}

impl From<Workload> for Ranges {
    fn from(workload: Workload) -> Self {
        match workload {
            Workload::Small => Self::Small,
            Workload::Medium => Self::Medium,
            Workload::Large => Self::Large,
            Workload::Mixed => Self::Mixed,
        }
    }
}

/// Inclusive bounds of ranges.
#[derive(Debug)]
pub struct AllBounds {
    left: Vec<i64>,
    right: Vec<i64>,
}

/// Some of them.
#[derive(Debug, Clone, Copy)]
pub struct Bounds<'a> {
    pub left: &'a [i64],
    pub right: &'a [i64],
}

impl AllBounds {
    /// All of them.
    pub fn all(&self) -> Bounds<'_> {
        self.first(self.left.len())
    }

    /// The first `count`, or all where there are fewer.
    pub fn first(&self, count: usize) -> Bounds<'_> {
        let count = count.min(self.left.len());
        Bounds {
            left: &self.left[..count],
            right: &self.right[..count],
        }
    }
}

impl Bounds<'_> {
    pub fn len(self) -> usize {
        self.left.len()
    }
}
