//! Logical rules.

pub(crate) mod common;
pub(crate) mod range_call;
pub(crate) mod range_join;
