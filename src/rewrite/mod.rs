//! The rules for logical plans: calls of range functions become a `RangeLookup`, plain SQL becomes a `RangeJoin`. A rule that finds nothing
//! leaves the plan unchanged; only calls of range functions that are wrong are errors.

pub(crate) mod common;
pub(crate) mod range_call;
pub(crate) mod range_join;
