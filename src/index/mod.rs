//! TODO

pub(crate) mod catalog;
pub(crate) mod column_index;
pub(crate) mod devices;
pub(crate) mod rank;
pub(crate) mod sort_keys;
pub(crate) mod version;
