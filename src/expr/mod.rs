//! TODO

pub(crate) mod decimal_average;
pub(crate) mod frame_udf;
pub(crate) mod index_lookup;
pub(crate) mod range_udf;
pub(crate) mod total_order;
