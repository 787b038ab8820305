//! Key search on the CPU.
//!
//! Keys stay in the chunks they came in. Evenly spaced keys are recognised (`arithmetic.rs`), and the position of a
//! bound is computed. Among other keys it is found (`search.rs`) by a search tree of its group (`trees.rs`). Of keys in
//! no order, those in some intervals are told (`within.rs`).

pub(crate) mod arithmetic;
pub(crate) mod order;
pub(crate) mod search;
pub(crate) mod search_key;
pub(crate) mod trees;
pub(crate) mod within;
