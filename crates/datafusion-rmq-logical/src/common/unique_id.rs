//! Ids that are unique among those of all processes that execute parts of a plan.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A new id.
pub fn unique_id() -> u64 {
    // The keys of a RandomState are random.
    static NEXT: LazyLock<AtomicU64> =
        LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(0)));
    NEXT.fetch_add(1, Ordering::Relaxed)
}
