//! TODO

pub(crate) mod build;
pub(crate) mod engine;
pub(crate) mod exec;
pub(crate) mod metrics;
pub(crate) mod probe;
pub(crate) mod row_order;
pub(crate) mod spill;
pub(crate) mod time_bounds;
