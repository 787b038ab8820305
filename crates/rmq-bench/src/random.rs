//! Random numbers by counting: number `i` is a hash of `i`, so that any part of a sequence is computed by itself, in
//! parallel, and is the same on the host and on the device (`limit.cu`).

/// What `SplitMix64` adds to its state for each number.
const INCREMENT: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hashes `key` to 64 bits: the number that `SplitMix64` returns in this state.
#[must_use]
pub fn mix(key: u64) -> u64 {
    let mut z = key.wrapping_add(INCREMENT);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Hashes `key` to a number uniform in (0, 1).
#[must_use]
pub fn unit(key: u64) -> f64 {
    ((mix(key) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

/// `SplitMix64` with a seed, for tables whose values are drawn one after another.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates a generator with this seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next number, uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        let bits = mix(self.state);
        self.state = self.state.wrapping_add(INCREMENT);
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }
}
