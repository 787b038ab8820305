//! Any aggregate function of DataFusion over ranges of rows, by merging the states of its accumulators.
//!
//! `aggregated_rows` are rows as accumulators see them. `aggregated_ranges` aggregates ranges, many at once if the
//! function can; `state_tree` has the states of blocks that cover them, by their nodes (`node_states`); `pair_moments`
//! are correlations and their relatives of many ranges at once; `runs_of_ranges` aggregates consecutive equal ranges
//! once.

pub(crate) mod aggregated_ranges;
pub(crate) mod aggregated_rows;
mod node_states;
mod pair_moments;
pub(crate) mod runs_of_ranges;
pub(crate) mod state_tree;
