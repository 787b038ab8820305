//! Random numbers for tests: seeded, so that a failure can be repeated.
//!
//! A random test runs with a fixed seed, with which it fails only where something changed, and with one from the clock, which finds
//! what nobody thought of. Before these come the seeds with which it once failed, listed beside the test. The seeds of runs are written
//! to the log, also where the test passes.

use std::io::Write;

/// The seed of runs that are the same each time.
const FIXED: u64 = 20_260_901;

/// The number that a variable of the environment has.
fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    match value.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{name} must be a number, not '{value}'"),
    }
}

/// Whether the cases are as many as usual, so that all kinds of them came.
pub fn is_usual() -> bool {
    let variables = ["RMQ_TEST_SEED", "RMQ_TEST_CASE", "RMQ_CASES"];
    variables.iter().all(|name| variable(name).is_none())
}

/// The runs of a random test: with each seed with which it once failed, with the fixed one, and with one from the clock; or with
/// that of `RMQ_TEST_SEED` alone. Each writes its seed to the log as it begins.
pub fn runs(name: &str, failed: &[u64]) -> impl Iterator<Item = Random> {
    let seeds = match variable("RMQ_TEST_SEED") {
        Some(seed) => vec![seed],
        None => failed.iter().copied().chain([FIXED, clock()]).collect(),
    };
    seeds.into_iter().map(move |seed| {
        // Not by a macro: what these print is shown of tests that fail alone.
        let line = format!("{name}: RMQ_TEST_SEED={seed}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        Random(seed)
    })
}

/// The seeds of the cases of a random test: those of cases that once failed, and so many drawn in its runs, half of them in each; or
/// that of `RMQ_TEST_CASE` alone. `RMQ_CASES` says how many each run has instead; one that is repeated has as many as both.
pub fn cases(name: &str, failed: &[u64], default: usize) -> Vec<u64> {
    cases_with_queries(name, failed, default, 1)
}

/// The same for cases that ask so many queries each. There it is queries that are counted.
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

/// SplitMix64: its sequence never changes, so the seeds in the lists of failed cases keep their meaning.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Seeded by `RMQ_TEST_SEED`, or by the clock; prints the seed. For tests on a device, of which one run takes long.
    pub fn new(name: &str) -> Self {
        let seed = variable("RMQ_TEST_SEED").unwrap_or_else(clock);
        println!("{name}: RMQ_TEST_SEED={seed}");
        Self(seed)
    }

    /// Seeded by `seed`.
    pub fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// Seeded by that of a case, which is shown where the test fails.
    pub fn of_case(seed: u64) -> Self {
        println!("RMQ_TEST_CASE={seed}");
        Self(seed)
    }

    /// The next 64 bits.
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

    /// In `0..limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }
}

/// A number in `0..below` for unit tests, from a state that it advances.
pub fn random(state: &mut u64, below: u64) -> u64 {
    let mut random = Random(*state);
    let number = random.next();
    *state = random.0;
    number % below
}
