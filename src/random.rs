//! Random numbers for unit tests.

/// A number below a limit, by xorshift: small, and the same everywhere.
pub(crate) fn random(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}
