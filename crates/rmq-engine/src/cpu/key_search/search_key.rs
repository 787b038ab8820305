//! Entry points of key search and of lazily built indexes, one per key width.
//!
//! They are not generic, so that they are compiled with this crate's optimisation level and not with that of the crate
//! that calls them.

use std::sync::Arc;

use bytemuck::Pod;

use crate::candidate_ranges::CandidateRanges;
use crate::column::Column;
use crate::comparison::Comparison;
use crate::cpu::key_search::order;
use crate::cpu::key_search::search::{Bounds, CpuKeySearch};
use crate::cpu::key_search::trees::tree_bytes;
use crate::cpu::key_search::within;
use crate::cpu::lazy_index::{LazyBuild, LazyIndex};
use crate::engine::{BuildOptions, RangeIndex};
use crate::error::EngineError;
use crate::key::{Encoding, Key};

/// A key that the CPU can search for: `u32`, `u64` or `u128`.
pub trait SearchKey: Key + Pod {
    /// Returns the lazily built index of a column whose chunks follow one another, all with the same encoding, and what
    /// builds it. It uses the best instruction set of this machine.
    fn lazy_index(
        chunks: Vec<Column<Self>>,
        options: BuildOptions,
    ) -> (Arc<dyn RangeIndex<Self>>, Arc<dyn LazyBuild>);

    /// Returns whether keys, given as the bits of a column, ascend.
    fn is_sorted(bits: &[Self], encoding: Encoding<Self>) -> bool;

    /// Returns whether the keys of columns, one column after another, ascend.
    fn are_sorted(columns: &[Column<Self>]) -> bool;

    /// Returns a bitmap, least significant bit first, of the keys of a column that are in an interval. Intervals are
    /// disjoint and ascend; both of their ends are keys, and belong to them. The bitmap has a word for each 64 keys,
    /// bits past the last key are 0, and the column's validity is ignored.
    fn within(keys: &Column<Self>, intervals: &[(Self, Self)]) -> Vec<u64>;

    /// Prepares keys for searches. They are the columns one after another, all with the same encoding; their validity
    /// is ignored.
    ///
    /// `group_starts` holds the first position of each group of keys, then the end of the last. Keys ascend within each
    /// group. Keys in several groups are in one column. What is built for the search, on up to `threads` threads, takes
    /// [`SearchKey::search_bytes`].
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`]; [`EngineError::TooLong`] for 2^32 keys or more; [`EngineError::Thread`] if a
    /// thread cannot be started.
    fn search_over(
        columns: &[Column<Self>],
        group_starts: &[usize],
        threads: usize,
    ) -> Result<CpuKeySearch<Self>, EngineError>;

    /// Returns the bytes that a search over groups with these starts takes, besides the keys.
    fn search_bytes(group_starts: &[usize]) -> usize;

    /// Intersects each row's candidates with the positions whose key compares so with each of the row's bounds. Bounds
    /// that are searched together share their cache misses.
    ///
    /// Each column of bounds has one value per row. Its validity is ignored: rows with a NULL bound are emptied by the
    /// caller ([`CandidateRanges::retain_rows`]).
    ///
    /// # Errors
    /// [`EngineError::Lengths`] if there are fewer or more bounds than rows, or a range ends after the last key.
    fn narrow(
        keys: &CpuKeySearch<Self>,
        candidates: &mut CandidateRanges,
        bounds: &[(Comparison, &Column<Self>)],
    ) -> Result<(), EngineError>;
}

macro_rules! search_key {
    ($($key:ty),*) => {$(
        impl SearchKey for $key {
            fn lazy_index(
                chunks: Vec<Column<Self>>,
                options: BuildOptions,
            ) -> (Arc<dyn RangeIndex<Self>>, Arc<dyn LazyBuild>) {
                let index = Arc::new(LazyIndex::new(chunks, options));
                (Arc::clone(&index) as _, index)
            }

            fn is_sorted(bits: &[Self], encoding: Encoding<Self>) -> bool {
                order::is_sorted(bits, encoding)
            }

            fn are_sorted(columns: &[Column<Self>]) -> bool {
                order::are_sorted(columns)
            }

            fn within(keys: &Column<Self>, intervals: &[(Self, Self)]) -> Vec<u64> {
                within::within(keys, intervals)
            }

            fn search_over(
                columns: &[Column<Self>],
                group_starts: &[usize],
                threads: usize,
            ) -> Result<CpuKeySearch<Self>, EngineError> {
                CpuKeySearch::from_columns(columns, group_starts, threads)
            }

            fn search_bytes(group_starts: &[usize]) -> usize {
                tree_bytes::<$key>(group_starts)
            }

            fn narrow(
                keys: &CpuKeySearch<Self>,
                candidates: &mut CandidateRanges,
                bounds: &[(Comparison, &Column<Self>)],
            ) -> Result<(), EngineError> {
                let bounds = bounds.iter().map(|(comparison, bounds)| Bounds {
                    comparison: *comparison,
                    bits: bounds.bits(),
                    encoding: bounds.encoding(),
                });
                keys.narrow_candidates(candidates, &bounds.collect::<Vec<_>>())
            }
        }

        impl CpuKeySearch<$key> {
            /// Number of keys.
            #[must_use]
            pub fn len(&self) -> usize {
                self.key_count()
            }

            /// Returns whether there are no keys.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.key_count() == 0
            }

            /// Approximate bytes of the keys and of what describes them, borrowed memory included.
            #[must_use]
            pub fn memory_bytes(&self) -> usize {
                self.total_bytes()
            }

            /// Returns the key at a position.
            ///
            /// # Panics
            /// If there are not that many keys.
            #[must_use]
            pub fn key(&self, position: usize) -> $key {
                self.key_at(position)
            }
        }
    )*};
}

search_key!(u32, u64, u128);
