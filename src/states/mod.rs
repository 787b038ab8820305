//! Any aggregate function of DataFusion over ranges of rows, by merging the states of its accumulators.
//!
//! `state_tree` has the states of blocks of rows; `range_accumulators` shows accumulators the ranges.

pub(crate) mod range_accumulators;
pub(crate) mod state_tree;
