//! Build sides of range joins on devices, and the queries of them.
//!
//! [`build`](build::build) uploads the rows as they came (`staging`, from `chunks`), sorts row numbers (`sort`,
//! `prefix_sums`) and gathers each column into what answers it (`column`, `float_sums`); `size` bounds the memory of
//! that. [`probe`](probe::answer) sends chunks of a `batch` of probe rows: search and answers (`answer_plan`, `launch`)
//! follow each other on one stream, and only the answers come back to `outputs`. [`index`] has the replicas of all
//! devices.
//!
//! Columns go up in slices that threads fill, keys and group ids first; values follow while row numbers are sorted. Row
//! numbers are sorted by a stable radix sort: not at all if rows come in order, by group id alone if keys ascend within
//! groups, else by the bits in which keys differ and the group id. Keys, values and validity are gathered to sorted
//! order, the values directly into level 0 of their indexes. Rows of no group get an id behind all groups, are sorted
//! to the end and not gathered. The order of equal rows is that of the input, so answers have the bits of the CPU's.
//! Change `size` with what a build allocates. Sums of floats have the blocks, the outliers and the order of additions
//! of the CPU's: change both together. Both use no fused multiply-add.
//!
//! A probe row takes 10 bytes up (a group id of 16 bits, and the column that its bounds are made of), 8 down for each
//! aggregate. Ranges in between stay in the L2 cache: a batch has 2 MiB of them. 2^18 rows take 56 µs to search among
//! 5 * 10^7 and 16 µs to answer (ncu, H200). One kernel for both would save a launch and reading the ranges, less than
//! 0.1 ms of the 120 ms of 5 * 10^6 probe rows, and take a kernel for each pair of key widths and shapes, while loading
//! kernels already takes most of the second that the first query waits. So they stay apart.

mod answer_plan;
mod batch;
mod build;
mod chunks;
mod column;
mod float_sums;
mod group_ids;
pub(super) mod index;
mod launch;
mod outputs;
mod prefix_sums;
mod probe;
mod rows;
pub(super) mod size;
mod sort;
mod staging;
mod work;
