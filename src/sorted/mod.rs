//! The sorted build side of a range join: rows grouped by their equality keys and sorted by their order keys, in
//! memory.
//!
//! - `groups`, `interner`, `byte_interner`, `id_map`, `id_table`, `group_ids`: the group of each row.
//! - `order_keys`, `sort_rows`, `group_sort`, `splitters`, `radix_sort`, `bucket_sort`, `permutation`, `arrange`: sort
//!   rows and permute columns.
//! - `sorted_rows`: the candidate rows of a probe row. The search itself is the engine's.

pub(crate) mod arrange;
pub(crate) mod bucket_sort;
pub(crate) mod byte_interner;
pub(crate) mod group_ids;
pub(crate) mod group_sort;
pub(crate) mod groups;
pub(crate) mod id_map;
pub(crate) mod id_table;
pub(crate) mod interner;
pub(crate) mod order_keys;
pub(crate) mod permutation;
pub(crate) mod radix_sort;
pub(crate) mod sort_rows;
pub(crate) mod sorted_rows;
pub(crate) mod splitters;
