//! Types that several subsystems share: options, names of columns, the inputs of operators.
//!
//! The lowest folder: it imports no other folder of the crate.

pub(crate) mod column_ref;
pub(crate) mod identity;
pub(crate) mod inputs;
pub(crate) mod options;
pub(crate) mod sql_text;
pub(crate) mod unique_id;
