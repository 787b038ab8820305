//! The engine for CPUs.
//!
//! The index is a hierarchy of block minima with a sparse table on top (`rmq/levels.rs`): 0.27 bytes per value of 4
//! bytes and 0.54 per value of 8; with positions 0.30 and 0.57. The column itself is borrowed; only a column with NULLs
//! is copied, as keys. The search (`rmq/search.rs`) starts at the level that fits a range, descends only where a
//! block's minimum can improve the result, and interleaves many queries to hide the latency of memory. Vector
//! instructions are chosen at run time ([`Simd`]). An index can be built lazily ([`LazyBuild`]): once enough rows are
//! queried.
//!
//! The hierarchy is that of *GPU-RMQ: Accelerating Range Minimum Queries on Modern GPUs* (Kreis et al., 2026); the
//! pruning and the tiles fit it to the caches and vectors of a CPU core.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::inline_always,
    clippy::many_single_char_names,
    clippy::needless_bitwise_bool,
    clippy::similar_names,
    clippy::verbose_bit_mask,
    clippy::wildcard_imports,
    reason = "bit manipulation: casts truncate on purpose and branches are avoided; `l`, `r` and `q` are the papers' names"
)]

mod chunked_scan;
mod engine;
mod huge_page_buf;
mod key_search;
mod lazy_index;
mod partition;
pub(crate) mod rmq;
pub(crate) mod simd;
mod threads;
mod wavelet_matrix;

pub use engine::CpuEngine;
pub use huge_page_buf::HugePageBuf;
pub use key_search::search::CpuKeySearch;
pub use key_search::search_key::SearchKey;
pub use lazy_index::LazyBuild;
pub use partition::{CountedPart, PartWriter, Partition, RowIdBuf};
pub use simd::dispatch::Simd;
pub(crate) use wavelet_matrix::Keys;
pub use wavelet_matrix::{DistinctCounts, KeyStatistics, RankKey, WaveletMatrix, previous_rows};
