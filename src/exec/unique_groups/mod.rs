//! TODO

pub(crate) mod ascending;
pub(crate) mod exec;
pub(crate) mod pattern;
pub(crate) mod reader;
pub(crate) mod replay;
pub(crate) mod rule;
