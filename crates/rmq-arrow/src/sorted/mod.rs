//! The sorted build side of a range join: rows grouped by their equality keys and sorted by their order keys, in
//! memory.
//!
//! - `groups`, `interner`, `byte_interner`, `id_map`, `id_table`, `group_ids`: the group of each row.
//! - `order_keys`, `sort_rows`, `byte_sort`, `group_sort`, `splitters`, `radix_sort`, `permutation`, `arrange`: sort
//!   rows and permute columns.
//! - `sorted_rows`: the candidate rows of a probe row. The search itself is the engine's.
//!
//! Rows are divided into one part per thread; threads check for cancellation between items of work (`common::workers`).
//!
//! Each part numbers its groups by itself; then the distinct keys of all parts are merged (`id_table`), by shards of
//! their hash if there are many, so that ids are in order of first occurrence as if one thread had numbered all rows.
//! Rows keep the ids of their part, in 16 bits or as runs where they can (`group_ids`); the table from these to common
//! numbers goes with them, to the partition and to devices. Keys are looked up in a cache eight at a time, and only
//! those that it lacks in the hash table (`interner`). Rows that come sorted by group stay where they are.
//!
//! The engine's `cpu::partition` moves values to their groups, then those groups whose keys do not ascend are sorted
//! (`group_sort`). Above some 16,000 groups the lines of all groups no longer fit the second-level cache, and values
//! are stored directly. Below, 8-byte values of 5x10^7 rows in 500 groups take 25 ms a column on 16 threads. Large
//! groups are divided by quantiles and not by digits of the key, because real times come in bursts and with outliers; a
//! table of cells leads to the quantiles around a key (`splitters`). One group that came in no order is read from its
//! chunks, and not copied before.
//!
//! Evenly spaced keys of a group, such as positions and samples at a fixed rate, are not searched: where a bound is, is
//! computed. Among other keys the engine searches by trees of sampled keys.
//!
//! What remains for one thread: concatenating strings, range keys in Arrow's row format, and detecting evenly spaced
//! keys. Huge pages for all memory, or memory kept between queries, change the whole by less than 5 % on 16 cores.

pub mod arrange;
pub(crate) mod byte_interner;
pub(crate) mod byte_sort;
pub(crate) mod group_ids;
pub mod group_sort;
pub mod groups;
pub(crate) mod id_map;
pub mod id_table;
pub(crate) mod interner;
pub mod order_keys;
pub mod permutation;
pub(crate) mod radix_sort;
pub mod sort_rows;
pub mod sorted_rows;
pub(crate) mod splitters;
