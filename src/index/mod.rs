//! Indexes of single columns: a column is encoded as keys, an engine builds an index of the keys, and the session
//! caches it.
//!
//! - `sort_keys`, `rank`, `narrow_keys`, `decoder`: Arrow values to order-preserving keys and back. `any_width`: what
//!   there is of keys of 32, 64 or 128 bits.
//! - `threshold`, `nearest_value`: values of other types as keys, exactly. `threshold_queries`: searches for
//!   thresholds.
//! - `key_index`: an engine's index of a column. `column_index`, `cpu_fallback`: that of range lookups, on the CPU or
//!   on devices, and the CPU's part where devices fail.
//! - `chunk_extremes`: ranges of a column that is not in memory.
//! - `catalog`, `entries`, `reserved_index`, `named_index`, `version`, `devices`: the indexes that a session caches,
//!   with their memory and names, the version of a table's data that each belongs to, and the session's CUDA devices.
//!   `table_version`: what providers state about versions.
//! - `giving_pool`: the session's memory pool, in which indexes give way.
//! - `index_file`: files in which indexes survive the process. `on_disk`: whether an index is in one.

pub(crate) mod any_width;
pub(crate) mod best_positions;
pub(crate) mod catalog;
pub(crate) mod chunk_extremes;
pub(crate) mod column_index;
pub(crate) mod cpu_fallback;
pub(crate) mod decoder;
pub(crate) mod devices;
pub(crate) mod entries;
pub(crate) mod giving_pool;
pub(crate) mod index_file;
pub(crate) mod key_index;
pub(crate) mod named_index;
pub(crate) mod narrow_keys;
pub(crate) mod nearest_value;
pub(crate) mod on_disk;
pub(crate) mod pruned_reads;
pub(crate) mod rank;
pub(crate) mod ready_index;
pub(crate) mod reserved_index;
pub(crate) mod sort_keys;
pub(crate) mod table_version;
pub(crate) mod threshold;
pub(crate) mod threshold_queries;
pub(crate) mod version;
