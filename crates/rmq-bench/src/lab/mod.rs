//! Measurements of single kernels: columns, queries, answers and indexes stay in a device's memory, and the device's
//! own clock measures.
//!
//! Columns here hold non-negative floats, whose bits have the order of the floats, so bits are keys. The same column
//! serves the paper's kernels, which expect keys, and the engine's, which encode values as they read.

pub mod device;
mod edge_sort;
pub mod event;
pub mod kernel;
pub mod lca;
pub mod lca_index;
pub mod lca_tour;
pub mod limit;
pub mod ours;
pub mod paper;
pub mod paper_index;
pub mod reads;
#[cfg(test)]
mod tests;
pub mod tour;
