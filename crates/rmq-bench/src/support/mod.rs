//! What the engine's benchmark is made of.

pub mod clock;
pub mod random;
pub mod workload;

/// Queries in a batch.
pub const QUERIES: usize = 1 << 20;
