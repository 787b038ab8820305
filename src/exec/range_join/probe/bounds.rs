//! Evaluates the bounds of probe rows, without the errors that a join would not meet.

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, UInt64Array, new_null_array};
use arrow::compute::{filter_record_batch, take};
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExprRef;

use crate::common::ranges::Ranges;

/// Evaluates a bound over a batch of the probe side.
///
/// A join evaluates its condition only for pairs with equal keys, and so meets no error elsewhere. Therefore, after an
/// error the bound is evaluated again, only for the rows that `can_match` tells; it is NULL for the others.
pub(crate) fn evaluate_bound(
    bound: &PhysicalExprRef,
    batch: &RecordBatch,
    can_match: impl FnOnce() -> Vec<bool>,
) -> Result<ArrayRef> {
    let rows = batch.num_rows();
    let all = bound
        .evaluate(batch)
        .and_then(|values| values.into_array(rows));
    if all.is_ok() {
        return all;
    }
    let can_match = can_match();
    if !can_match.contains(&false) {
        return all;
    }
    if !can_match.contains(&true) {
        return Ok(new_null_array(&bound.data_type(&batch.schema())?, rows));
    }
    let mut evaluated = 0_u64;
    let indices = can_match.iter().map(|can| {
        let index = can.then_some(evaluated);
        evaluated += u64::from(*can);
        index
    });
    let indices: UInt64Array = indices.collect();
    let batch = filter_record_batch(batch, &BooleanArray::from(can_match))?;
    let values = bound.evaluate(&batch)?.into_array(batch.num_rows())?;
    Ok(take(&values, &indices, None)?)
}

/// Evaluates a threshold, or the point of a distance, over a batch of the probe side, whose rows match these ranges. An
/// error of rows with empty ranges is no error, as for bounds.
pub(crate) fn evaluate_threshold(
    threshold: &PhysicalExprRef,
    batch: &RecordBatch,
    ranges: &Ranges,
) -> Result<ArrayRef> {
    let can_match = || ranges.iter().map(|(left, right)| left <= right).collect();
    evaluate_bound(threshold, batch, can_match)
}
