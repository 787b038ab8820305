//! Range minima: the index of a column and its search.

pub(crate) mod build;
pub(crate) mod cpu_key;
pub(crate) mod crossing;
pub(crate) mod index;
pub(crate) mod kernels;
pub(crate) mod levels;
pub(crate) mod listing;
pub(crate) mod next_valid;
pub(crate) mod search;
pub(crate) mod tile;
