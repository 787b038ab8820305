//! TODO

pub(crate) mod conditional;
pub(crate) mod infallible;
