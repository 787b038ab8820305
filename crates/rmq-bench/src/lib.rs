//! What all benchmarks share: the columns and ranges of the GPU-RMQ paper (Kreis et al., 2026), clocks, memory and tables.
//!
//! The binary `rmq-bench`, the engine's benchmark (`benches/engine`) and the SQL benchmarks (`benches/` of the workspace) are built
//! on it. It knows neither Arrow nor DataFusion.

#![warn(clippy::pedantic)]

pub mod clock;
pub mod data;
pub mod env;
pub mod memory;
pub mod random;
pub mod table;
pub mod workload;
