//! TODO

pub(crate) mod range_join;
pub(crate) mod range_table;
pub(crate) mod rmq_devices;
pub(crate) mod rmq_indexes;
