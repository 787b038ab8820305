//! TODO

pub(crate) mod prepare_indexes;
pub(crate) mod range_join;
pub(crate) mod range_lookup;
pub(crate) mod stated_order;
