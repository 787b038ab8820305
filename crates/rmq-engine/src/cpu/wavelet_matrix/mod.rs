//! Order statistics of ranges: how many rows of a range are below a value, and which value is the k-th smallest.
//!
//! The structure is the *wavelet matrix* (Claude, Navarro and Ordóñez, "The wavelet matrix: An efficient wavelet tree
//! for large alphabets", Information Systems 47, 2015), over the ranks of a column's values among its distinct values.
//! Level 0 has the highest bit of each rank, in the order of the rows. Each further level has the next bit, in the
//! order of the level before, but first all rows whose bit was 0 there and then those whose bit was 1. So the rows of a
//! range that agree in the bits above stay one range on each level, whose ends two counts of ones tell (`bits`).
//!
//! A query takes as many steps as a rank has bits, each with two reads of 32 bytes at places that only the step before
//! tells. A batch is answered a tile of queries at a time, one level for all of the tile after another: while a query
//! waits for memory, the others compute (`matrix`).
//!
//! Space: 1.33 bits a row and level. The build partitions the rows once per level, on all threads (`build`).
//!
//! `key_statistics` answers ranges of a column of keys by their ranks, which a sort tells (`ranks`). Devices that have
//! a copy of the matrix answer large batches (`ranked_rows`).

mod bits;
mod build;
mod distinct;
mod key_statistics;
mod matrix;
mod ranked_rows;
mod ranks;

pub use distinct::previous_rows;
pub use key_statistics::{DistinctCounts, KeyStatistics};
pub use matrix::WaveletMatrix;
pub(crate) use ranks::Keys;
pub use ranks::RankKey;
