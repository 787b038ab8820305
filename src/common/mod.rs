//! Types that several subsystems share: options, the bounds of ranges, names of columns, the inputs of operators, and
//! helpers for Arrow arrays.
//!
//! The lowest folder: it imports no other folder of the crate.

pub(crate) mod array_bytes;
pub(crate) mod column_ref;
pub(crate) mod dictionaries;
pub(crate) mod errors;
pub(crate) mod identity;
pub(crate) mod inputs;
pub(crate) mod options;
pub(crate) mod ordered_type;
pub(crate) mod range_function;
pub(crate) mod range_groups;
pub(crate) mod ranges;
pub(crate) mod row_number;
pub(crate) mod sql_text;
pub(crate) mod unique_id;
pub(crate) mod workers;
