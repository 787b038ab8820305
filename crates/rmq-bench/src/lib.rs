//! What all benchmarks share: the columns and ranges of the GPU-RMQ paper (Kreis et al., 2026), clocks, memory and
//! tables.
//!
//! The binary `rmq-bench`, the engine's benchmark (`benches/engine`) and the SQL benchmarks (`benches/` of the
//! workspace) are built on it. It knows neither Arrow nor DataFusion.

#![warn(clippy::pedantic)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::many_single_char_names,
    clippy::must_use_candidate,
    clippy::single_match_else,
    clippy::unchecked_time_subtraction,
    reason = "sizes and times are far from every limit; `n`, `l` and `r` are the paper's names"
)]

pub mod batches;
pub mod clock;
pub mod data;
pub mod env;
pub mod index;
pub mod kinds;
pub mod memory;
pub mod progress;
pub mod random;
pub mod table;
pub mod workload;
