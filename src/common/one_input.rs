//! The one input of an operator.

use datafusion::common::internal_err;
use datafusion::error::Result;

/// The only one of `inputs`, which DataFusion gives `operator` anew.
///
/// # Errors
///
/// An internal error where there is none, or there are several.
pub(crate) fn one_input<T>(operator: &str, inputs: Vec<T>) -> Result<T> {
    match <[T; 1]>::try_from(inputs) {
        Ok([input]) => Ok(input),
        Err(inputs) => internal_err!("{operator} has one input, not {}", inputs.len()),
    }
}
