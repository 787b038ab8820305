//! The inputs of an operator.

use datafusion::common::internal_err;
use datafusion::error::Result;

/// `inputs`, which DataFusion gives `operator` anew, as an array.
///
/// # Errors
///
/// An internal error for another number of inputs.
pub(crate) fn inputs_of<const N: usize, T>(operator: &str, inputs: Vec<T>) -> Result<[T; N]> {
    inputs.try_into().or_else(|inputs: Vec<T>| {
        internal_err!(
            "{operator}: the number of inputs is {N}, not {}",
            inputs.len()
        )
    })
}
