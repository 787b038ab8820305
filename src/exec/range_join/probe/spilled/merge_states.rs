//! Merges the states that accumulators have after the rows of several spill runs.

use arrow::array::{Array, ArrayRef, AsArray};
use datafusion::common::Result;

use crate::common::dictionaries::select;
use crate::range_agg::states::StateFunction;

/// The states of the same probe rows over two sets of runs, as those over all of them. NULL is that of a row without a
/// match.
pub(crate) fn merge_states(
    function: &StateFunction,
    old: &ArrayRef,
    new: &ArrayRef,
) -> Result<ArrayRef> {
    let mut merged = function.column(0);
    let (mut chosen, mut merged_rows) = (Vec::with_capacity(old.len()), 0);
    for row in 0..old.len() {
        chosen.push(match (old.is_valid(row), new.is_valid(row)) {
            (true, true) => {
                let mut accumulator = function.function.create_accumulator()?;
                for states in [old, new] {
                    accumulator.merge_batch(states.slice(row, 1).as_struct().columns())?;
                }
                merged.push(Some(&accumulator.state()?))?;
                merged_rows += 1;
                Some((2, merged_rows - 1))
            }
            (true, false) => Some((0, row)),
            (false, true) => Some((1, row)),
            (false, false) => None,
        });
    }
    let merged = merged.finish()?;
    select(&[old.as_ref(), new.as_ref(), merged.as_ref()], &chosen)
}
