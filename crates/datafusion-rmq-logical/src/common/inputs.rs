//! The inputs of an operator.

use datafusion_common::error::Result;
use datafusion_common::internal_err;

/// `inputs`, which DataFusion gives `operator` anew, as an array.
///
/// # Errors
///
/// An internal error for another number of inputs.
pub fn inputs_of<const N: usize, T>(operator: &str, inputs: Vec<T>) -> Result<[T; N]> {
    inputs.try_into().or_else(|inputs: Vec<T>| {
        internal_err!(
            "{operator}: the number of inputs is {N}, not {}",
            inputs.len()
        )
    })
}
