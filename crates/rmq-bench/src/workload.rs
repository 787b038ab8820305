//! The four distributions of ranges of the GPU-RMQ paper (Kreis et al., 2026), and ranges in order.

use std::f64::consts::TAU;
use std::thread;

use clap::ValueEnum;

use crate::random::{mix, unit};

/// A distribution of lengths of ranges. The left bound is uniform among the positions where the length fits.
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
    /// Those of mixed in the order of their left bounds, as windows come
    Ascending,
}

impl Workload {
    /// The paper's, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Small, Self::Medium, Self::Large, Self::Mixed];

    /// Returns the name for flags and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
            Self::Mixed => "mixed",
            Self::Ascending => "ascending",
        }
    }

    /// Returns the mean length of ranges in a column of `n` values, roughly.
    #[must_use]
    pub fn mean_length(self, n: usize) -> f64 {
        let n = n as f64;
        match self {
            Self::Small => n.powf(0.3),
            Self::Medium => n.powf(0.6),
            Self::Large => n / 2.0,
            Self::Mixed | Self::Ascending => n / 6.0,
        }
    }

    fn length(self, n: usize, i: u64) -> usize {
        let log_normal = |power: f64| {
            let radius = (-2.0 * unit(i * 4 + 1).ln()).sqrt();
            let normal = radius * (TAU * unit(i * 4 + 2)).cos();
            ((n as f64).ln() * power + 0.3 * normal).exp() as usize
        };
        let length = match self {
            Self::Large => 1 + (unit(i * 4) * n as f64) as usize,
            Self::Medium => log_normal(0.6),
            Self::Small => log_normal(0.3),
            Self::Mixed | Self::Ascending => {
                let kinds = [Self::Large, Self::Medium, Self::Small];
                kinds[(mix(i * 31 + (5 << 40)) % 3) as usize].length(n, i)
            }
        };
        length.clamp(1, n)
    }

    /// Computes the bounds of `count` ranges in a column of `n` values, on all cores. They are the same in every run.
    ///
    /// # Panics
    /// Where `n` is 0.
    #[must_use]
    pub fn bounds(self, n: usize, count: usize) -> Bounds {
        let seed = mix(n as u64) >> 8;
        let (mut left, mut right) = (vec![0; count], vec![0; count]);
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let share = count.div_ceil(threads).max(1);
        thread::scope(|scope| {
            let parts = left.chunks_mut(share).zip(right.chunks_mut(share));
            for (part, (left, right)) in parts.enumerate() {
                scope.spawn(move || {
                    for (j, (l, r)) in left.iter_mut().zip(right).enumerate() {
                        let i = seed + (part * share + j) as u64;
                        let length = self.length(n, i);
                        let starts = n - length + 1;
                        let start = ((unit(i * 4 + 3) * starts as f64) as usize).min(starts - 1);
                        *l = start as i64;
                        *r = (start + length - 1) as i64;
                    }
                });
            }
        });
        if self == Self::Ascending {
            let mut ranges: Vec<_> = left.into_iter().zip(right).collect();
            ranges.sort_unstable();
            (left, right) = ranges.into_iter().unzip();
        }
        Bounds { left, right }
    }
}

/// Inclusive bounds of ranges, one of each for every range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// The first position of each range.
    pub left: Vec<i64>,
    /// The last position of each range.
    pub right: Vec<i64>,
}

/// Borrowed [`Bounds`].
#[derive(Debug, Clone, Copy)]
pub struct BoundsRef<'a> {
    /// The first position of each range.
    pub left: &'a [i64],
    /// The last position of each range.
    pub right: &'a [i64],
}

impl Bounds {
    /// Borrows all of them.
    #[must_use]
    pub fn all(&self) -> BoundsRef<'_> {
        self.first(self.left.len())
    }

    /// Borrows the first `count`, or all where there are fewer.
    #[must_use]
    pub fn first(&self, count: usize) -> BoundsRef<'_> {
        let count = count.min(self.left.len());
        BoundsRef {
            left: &self.left[..count],
            right: &self.right[..count],
        }
    }
}

impl BoundsRef<'_> {
    /// Returns the number of ranges.
    #[must_use]
    pub fn len(self) -> usize {
        self.left.len()
    }

    /// Whether there are no ranges.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.left.is_empty()
    }
}

/// Computes `count` pairs of independent positions, uniform in `0..n`.
#[must_use]
pub fn position_pairs(n: usize, count: usize) -> (Vec<i64>, Vec<i64>) {
    let position = |key: u64| ((unit(key) * n as f64) as usize).min(n - 1) as i64;
    let seed = mix(!(n as u64)) >> 8;
    (seed..)
        .take(count)
        .map(|i| (position(2 * i), position(2 * i + 1)))
        .unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_inside_the_column() {
        for workload in Workload::ALL {
            for n in [1, 2, 1000, 1 << 20] {
                let bounds = workload.bounds(n, 1000);
                for (l, r) in bounds.left.iter().zip(&bounds.right) {
                    assert!(0 <= *l && l <= r && *r < n as i64, "{workload:?} {n}");
                }
            }
        }
    }

    #[test]
    fn ascending_ranges_are_those_of_mixed() {
        let ranges = |workload: Workload| -> Vec<_> {
            let bounds = workload.bounds(1 << 20, 1000);
            bounds.left.into_iter().zip(bounds.right).collect()
        };
        let (ascending, mut mixed) = (ranges(Workload::Ascending), ranges(Workload::Mixed));
        assert!(ascending.is_sorted_by_key(|(left, _)| *left));
        mixed.sort_unstable();
        assert_eq!(ascending, mixed);
    }

    #[test]
    fn mean_lengths_are_about_right() {
        let n = 1 << 20;
        for workload in Workload::ALL {
            let bounds = workload.bounds(n, 100_000);
            let lengths = bounds
                .left
                .iter()
                .zip(&bounds.right)
                .map(|(l, r)| r - l + 1);
            let mean = lengths.sum::<i64>() as f64 / 1e5;
            let ratio = mean / workload.mean_length(n);
            assert!((0.8..1.2).contains(&ratio), "{workload:?}: {ratio}");
        }
    }
}
