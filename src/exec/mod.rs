//! Physical operators.

pub(crate) mod common;
pub(crate) mod range_join;
pub(crate) mod range_lookup;
pub(crate) mod unique_groups;
