//! Instruction sets chosen at run time.

pub(crate) mod dispatch;
pub(crate) mod prefetch;
