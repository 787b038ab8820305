//! Random numbers for tests: seeded, so that a failure can be repeated.

/// How many cases a random test takes: `default`, unless `RMQ_CASES` says otherwise.
#[cfg(feature = "sql")]
pub fn cases<N: std::str::FromStr>(default: N) -> N {
    let cases = std::env::var("RMQ_CASES").ok();
    cases.and_then(|s| s.parse().ok()).unwrap_or(default)
}

/// The seeds of as many pairs of tables as it takes to ask so many queries, unless `RMQ_CASES` says otherwise, so many of each pair; or
/// that of `RMQ_TEST_TABLES` alone.
#[cfg(feature = "sql")]
pub fn seeds_of_tables(name: &str, default: usize, queries: usize) -> Vec<u64> {
    let mut random = Random::new(name);
    let tables = cases(default).div_ceil(queries);
    let seeds = (0..tables).map(|_| random.next()).collect();
    match std::env::var("RMQ_TEST_TABLES") {
        Ok(seed) => vec![seed.parse().expect("RMQ_TEST_TABLES is a number")],
        Err(_) => seeds,
    }
}

/// SplitMix64: small, and the same everywhere.
pub struct Random(u64);

impl Random {
    /// Seeded by `RMQ_TEST_SEED`, or by the clock; prints the seed.
    pub fn new(name: &str) -> Self {
        let seed = std::env::var("RMQ_TEST_SEED").ok().map_or_else(
            || {
                let now = std::time::SystemTime::now();
                let since = now.duration_since(std::time::UNIX_EPOCH);
                since.map_or(1, |since| since.as_nanos() as u64)
            },
            |seed| seed.parse().expect("RMQ_TEST_SEED is a number"),
        );
        println!("{name}: RMQ_TEST_SEED={seed}");
        Self(seed)
    }

    /// Seeded by `seed`.
    #[cfg(any(feature = "cuda", feature = "sql"))]
    pub fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In `0..limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }
}
