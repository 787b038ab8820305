//! TODO

pub(crate) mod dml_checks;
pub(crate) mod query_planner;
pub(crate) mod range_join_planner;
