//! A column of the build side in sorted order, as one array.

use arrow::array::{ArrayRef, UInt32Array, new_empty_array};
use arrow::compute::{concat, take};
use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::array_bytes::arrays_bytes;
use crate::common::workers::Workers;
use crate::sorted::arrange::permute_values;
use crate::sorted::permutation::RowPermutation;

/// Sorts a column, and registers its memory with `reserve`.
///
/// # Errors
/// If the memory is not available or the query is cancelled, and Arrow's, if the column is too large for one array.
pub(crate) fn sorted_values(
    arrays: &[ArrayRef],
    data_type: &DataType,
    permutation: &RowPermutation,
    reserve: impl Fn(usize) -> Result<MemoryReservation>,
    workers: Workers,
) -> Result<(ArrayRef, MemoryReservation)> {
    // The concatenated column and the sorted one exist at the same time.
    let copies = if permutation.is_identity() { 1 } else { 2 };
    let memory = reserve(copies * arrays_bytes(arrays))?;
    if let Some(sorted) = permute_values(arrays, data_type, permutation, workers)? {
        memory.try_resize(arrays_bytes(std::slice::from_ref(&sorted)))?;
        return Ok((sorted, memory));
    }
    let whole = match arrays {
        [] => new_empty_array(data_type),
        [one] => ArrayRef::clone(one),
        many => concat(&many.iter().map(AsRef::as_ref).collect::<Vec<_>>())?,
    };
    let sorted = match permutation.order(workers)? {
        None => whole,
        Some(order) => take(&whole, &UInt32Array::from(order.to_vec()), None)?,
    };
    memory.try_resize(arrays_bytes(std::slice::from_ref(&sorted)))?;
    Ok((sorted, memory))
}
