//! TODO

pub(crate) mod merge;
pub(crate) mod probe;
pub(crate) mod retaining_pool;
pub(crate) mod shared_scan;
pub(crate) mod write;
