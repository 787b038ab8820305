//! What the other folders share: options, names of columns, SQL text of expressions, the inputs of operators.
//!
//! The lowest folder: it imports no other folder of the crate.

pub mod column_ref;
pub mod inputs;
pub mod options;
pub mod similar_names;
pub mod sql_text;
pub mod unique_id;
