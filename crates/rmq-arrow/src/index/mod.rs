//! Indexes of single columns: a column is encoded as keys, and an engine builds an index of the keys.
//!
//! - `sort_keys`, `rank`, `narrow_keys`, `decoder`: Arrow values to order-preserving keys and back. `any_width`: what
//!   there is of keys of 32, 64 or 128 bits.
//! - `threshold`, `nearest_value`: values of other types as keys, exactly. `threshold_queries`: searches for
//!   thresholds.
//! - `key_index`: an engine's index of a column. `column_index`, `cpu_fallback`: that of range lookups, on the CPU or
//!   on devices, and the CPU's part where devices fail. `column_statistics`, `quantile`: order statistics.
//! - `chunk_extremes`: ranges of a column that is not in memory.
//! - `devices`: the session's CUDA devices.

pub(crate) mod any_width;
pub mod best_positions;
pub mod chunk_extremes;
pub mod column_index;
pub mod column_statistics;
pub mod cpu_fallback;
pub mod decoder;
pub mod devices;
pub mod key_index;
pub(crate) mod narrow_keys;
pub(crate) mod nearest_value;
pub(crate) mod quantile;
pub mod rank;
pub mod sort_keys;
pub mod threshold;
pub mod threshold_queries;
