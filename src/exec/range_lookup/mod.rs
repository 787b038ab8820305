//! TODO

pub(crate) mod exec;
pub(crate) mod metrics;
pub(crate) mod prepare;
pub(crate) mod relation;
pub(crate) mod scan;
pub(crate) mod stream;
