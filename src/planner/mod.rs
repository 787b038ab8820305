//! TODO

pub(crate) mod dml;
pub(crate) mod query_planner;
pub(crate) mod range_join_planner;
