//! Which partition the rows with some equality keys are in: a tree of digits of the keys' hash.
//!
//! A partition that is too large is divided again by the next digits, which depend on none before them. Rows of both
//! sides with equal keys have equal hashes, so they are in one partition.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::NullBuffer;
use datafusion::common::Result;
use datafusion::common::hash_utils::{RandomState, create_hashes};

/// The hash function. Its seed differs from those of DataFusion's operators, which may have divided the rows before.
const HASH: RandomState = RandomState::with_seed(0x726d_7173_7069_6c6c);

/// A partition, or what it is divided into.
#[derive(Debug)]
pub(crate) enum Routing {
    Partition(usize),
    Divided(Vec<Routing>),
}

impl Routing {
    /// The partition of rows with this hash.
    pub(crate) fn partition(&self, mut hash: u64) -> usize {
        let mut node = self;
        loop {
            match node {
                Self::Partition(partition) => return *partition,
                Self::Divided(parts) => node = &parts[next_digit(&mut hash, parts.len())],
            }
        }
    }
}

/// Takes a digit below `base` off a hash.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a digit is below the base, which is a usize"
)]
pub(crate) fn next_digit(hash: &mut u64, base: usize) -> usize {
    let base = base as u64;
    let digit = *hash % base;
    *hash /= base;
    digit as usize
}

/// The hashes of rows with these equality keys.
pub(crate) fn hash_keys(keys: &[ArrayRef], rows: usize) -> Result<Vec<u64>> {
    let mut hashes = vec![0; rows];
    create_hashes(keys, &HASH, &mut hashes)?;
    Ok(hashes)
}

/// Which rows have no NULL among their equality keys: the others match nothing. `None` for all.
pub(crate) fn valid_keys(keys: &[ArrayRef]) -> Option<NullBuffer> {
    let nulls = keys.iter().map(Array::logical_nulls);
    nulls.fold(None, |all, nulls| {
        NullBuffer::union(all.as_ref(), nulls.as_ref())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_takes_digits_of_its_own() {
        let leaf = Routing::Partition;
        let divided = Routing::Divided(vec![leaf(2), leaf(3), leaf(4)]);
        let routing = Routing::Divided(vec![leaf(0), divided, leaf(1)]);
        let found: Vec<usize> = (0..9).map(|hash| routing.partition(hash)).collect();
        assert_eq!(found, [0, 2, 1, 0, 3, 1, 0, 4, 1]);
        assert_eq!(leaf(5).partition(u64::MAX), 5);
    }
}
