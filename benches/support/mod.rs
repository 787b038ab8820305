//! What the engine's benchmark is made of.

pub mod clock;
pub mod contenders;
pub mod data;
pub mod memory;
pub mod random;
pub mod table;
pub mod workload;

/// Queries in a batch.
pub const QUERIES: usize = 1 << 20;
