//! The four distributions of ranges of the GPU-RMQ paper (Kreis et al., 2026).

use super::random::Random;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Lengths log-normal around n^0.3.
    Small,
    /// Lengths log-normal around n^0.6.
    Medium,
    /// Lengths uniform in 1..=n.
    Large,
    /// A third of each, in random order.
    Mixed,
}

impl Workload {
    pub const ALL: [Self; 4] = [Self::Small, Self::Medium, Self::Large, Self::Mixed];

    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
            Self::Mixed => "mixed",
        }
    }

    fn length(self, n: usize, random: &mut Random) -> usize {
        let around = |power: f64, random: &mut Random| {
            ((n as f64).ln() * power + 0.3 * random.normal()).exp() as usize
        };
        let length = match self {
            Self::Small => around(0.3, random),
            Self::Medium => around(0.6, random),
            Self::Large => random.below(n) + 1,
            Self::Mixed => {
                let kind = Self::ALL[random.below(3)];
                kind.length(n, random)
            }
        };
        length.clamp(1, n)
    }

    /// Inclusive bounds of `count` ranges, the left one uniform over where the length fits.
    pub fn queries(self, n: usize, count: usize) -> (Vec<i64>, Vec<i64>) {
        let mut random = Random(0x5EED ^ n as u64);
        (0..count)
            .map(|_| {
                let length = self.length(n, &mut random);
                let left = random.below(n - length + 1);
                (left as i64, (left + length - 1) as i64)
            })
            .unzip()
    }
}

/// Two independent positions a query, for the reference.
pub fn two_positions(n: usize, count: usize) -> (Vec<i64>, Vec<i64>) {
    let mut random = Random(0xBEEF ^ n as u64);
    (0..count)
        .map(|_| (random.below(n) as i64, random.below(n) as i64))
        .unzip()
}
