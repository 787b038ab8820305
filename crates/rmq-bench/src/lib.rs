//! What the benchmarks share.

pub mod support;
