//! TODO

pub(crate) mod array_bytes;
pub(crate) mod column_ref;
pub(crate) mod dictionaries;
pub(crate) mod errors;
pub(crate) mod options;
pub(crate) mod range_function;
pub(crate) mod ranges;
