//! Seeded random numbers for tests, so that a failure can be repeated.
//!
//! A random test runs once with a fixed seed, which fails only after a change, and once with a seed from the clock,
//! which finds new failures. Before these it runs the seeds that failed in the past, listed beside the test. Every seed
//! is written to the log, also when the test passes.
//!
//! Unit tests with small random inputs use `fastrand` with a fixed seed instead.

#[cfg(feature = "sql-files")]
pub mod sql_files;

use std::io::Write;

/// The seed of the run that is the same each time.
const FIXED: u64 = 20_260_901;

/// Reads a number from an environment variable.
fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    match value.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{name} must be a number, not '{value}'"),
    }
}

/// Whether the number of cases is the default one, which is enough for every kind of case to occur.
pub fn is_usual() -> bool {
    let variables = [
        "RMQ_TEST_SEED",
        "RMQ_TEST_CASE",
        "RMQ_CASES",
        "RMQ_OPERATIONS",
    ];
    variables.iter().all(|name| variable(name).is_none())
}

/// Returns the number of operations of each run of a test that draws them one after the other: `RMQ_OPERATIONS`, or
/// `default`.
pub fn operations(default: usize) -> usize {
    variable("RMQ_OPERATIONS").map_or(default, |operations| operations as usize)
}

/// Returns the generator of each run of a random test: one for each seed in `failed`, one for the fixed seed, and one
/// for a seed from the clock; or only the one that `RMQ_TEST_SEED` seeds. Each run writes its seed to the log when it
/// begins.
pub fn runs(name: &str, failed: &[u64]) -> impl Iterator<Item = Random> {
    let seeds = match variable("RMQ_TEST_SEED") {
        Some(seed) => vec![seed],
        None => failed.iter().copied().chain([FIXED, clock()]).collect(),
    };
    seeds.into_iter().map(move |seed| {
        // Not with `eprintln!`, whose output the test harness hides when a test passes.
        let line = format!("{name}: RMQ_TEST_SEED={seed}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        Random(seed)
    })
}

/// Returns the seeds of a random test's cases: those in `failed`, and `default` new ones, half of them from each of the
/// two [`runs`]; or only `RMQ_TEST_CASE`. `RMQ_CASES` replaces the number of cases per run. A run repeated by
/// `RMQ_TEST_SEED` draws all `default` cases.
pub fn cases(name: &str, failed: &[u64], default: usize) -> Vec<u64> {
    cases_with_queries(name, failed, default, 1)
}

/// Returns the seeds of a random test's cases, like [`cases`], where each case runs `each` queries; `default` and
/// `RMQ_CASES` count queries.
pub fn cases_with_queries(name: &str, failed: &[u64], default: usize, each: usize) -> Vec<u64> {
    if let Some(case) = variable("RMQ_TEST_CASE") {
        return vec![case];
    }
    let is_repeated = variable("RMQ_TEST_SEED").is_some();
    let usual = if is_repeated {
        default
    } else {
        default.div_ceil(2)
    };
    let queries = variable("RMQ_CASES").map_or(usual, |cases| cases as usize);
    let failed = failed.iter().copied().filter(|_| !is_repeated);
    let drawn = runs(name, &[]).flat_map(|mut random| {
        let cases = 0..queries.div_ceil(each);
        cases.map(|_| random.next()).collect::<Vec<_>>()
    });
    failed.chain(drawn).collect()
}

fn clock() -> u64 {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_nanos() as u64)
}

/// SplitMix64. The sequence of a seed must never change: the lists of failed seeds beside the tests depend on it, so it
/// is neither replaced by a library nor extended by other ways to draw a number.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates a generator seeded by `RMQ_TEST_SEED`, or else by the clock, and prints the seed. For tests on a device,
    /// where one run takes long.
    pub fn new(name: &str) -> Self {
        let seed = variable("RMQ_TEST_SEED").unwrap_or_else(clock);
        println!("{name}: RMQ_TEST_SEED={seed}");
        Self(seed)
    }

    /// Creates a generator with this seed.
    pub fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates the generator of a case and prints the seed, which the test harness shows when the test fails.
    pub fn of_case(seed: u64) -> Self {
        println!("RMQ_TEST_CASE={seed}");
        Self(seed)
    }

    /// Returns the next 64 bits.
    #[expect(
        clippy::should_implement_trait,
        reason = "an endless source, not an iterator"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number in `0..limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }
}
