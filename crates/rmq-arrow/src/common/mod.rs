//! What the other folders share: ranges of rows, range functions, types that have an order, threads, and helpers for
//! Arrow arrays.
//!
//! The lowest folder: it imports no other folder of the crate.

pub mod array_bytes;
pub mod dictionaries;
pub mod errors;
pub mod ordered_type;
pub mod range_function;
pub mod range_groups;
pub mod ranges;
pub mod row_number;
pub mod workers;
