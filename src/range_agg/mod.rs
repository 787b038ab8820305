//! TODO

pub(crate) mod float_sums;
pub(crate) mod prefix_sums;
pub(crate) mod values;
