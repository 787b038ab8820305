//! Evaluates the bounds of probe rows, without the errors that a join would not meet, and of differences that may wrap
//! around.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, Scalar, UInt64Array, new_null_array};
use arrow::compute::kernels::zip::zip;
use arrow::compute::{filter_record_batch, take};
use datafusion::common::Result;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::{PhysicalExprRef, ScalarFunctionExpr};

use datafusion_rmq_logical::expr::key_bound::KeyBoundUdf;
use datafusion_rmq_logical::expr::length_bound::LengthBoundUdf;
use datafusion_rmq_logical::expr::order_key::OrderBoundUdf;
use rmq_arrow::common::ranges::Ranges;
use rmq_engine::Comparison;

/// Evaluates a bound over all rows of a batch of the probe side.
pub(crate) fn evaluate_for_all(bound: &PhysicalExprRef, batch: &RecordBatch) -> Result<ArrayRef> {
    bound.evaluate(batch)?.into_array(batch.num_rows())
}

/// Evaluates a bound over a batch of the probe side.
///
/// A join evaluates its condition only for pairs with equal keys, and so meets no error elsewhere. Therefore, after an
/// error the bound is evaluated again, only for the rows that `can_match` tells; it is NULL for the others.
pub(crate) fn evaluate_bound(
    bound: &PhysicalExprRef,
    batch: &RecordBatch,
    can_match: impl FnOnce() -> Vec<bool>,
) -> Result<ArrayRef> {
    let all = evaluate_for_all(bound, batch);
    if all.is_ok() {
        return all;
    }
    let can_match = can_match();
    if !can_match.contains(&false) {
        return all;
    }
    if !can_match.contains(&true) {
        let data_type = bound.data_type(&batch.schema())?;
        return Ok(new_null_array(&data_type, batch.num_rows()));
    }
    let mut evaluated = 0_u64;
    let indices = can_match.iter().map(|can| {
        let index = can.then_some(evaluated);
        evaluated += u64::from(*can);
        index
    });
    let indices: UInt64Array = indices.collect();
    let batch = filter_record_batch(batch, &BooleanArray::from(can_match))?;
    let values = evaluate_for_all(bound, &batch)?;
    Ok(take(&values, &indices, None)?)
}

/// The bound of a difference that may wrap around, and the keys beyond it that are in the range then.
pub(crate) struct WrappedBound<'a> {
    /// The bound of all keys.
    of_all: ArrayRef,
    wrapped: KeyBoundUdf,
    /// What both are converted of.
    of: &'a PhysicalExprRef,
    /// What makes limits those of keys of several expressions, if the keys are these.
    order: Option<OrderBoundUdf>,
}

/// The keys beyond a bound that are in the range, if there may be any.
pub(crate) fn wrapped_bound(bound: &PhysicalExprRef) -> Option<WrappedBound<'_>> {
    let call = bound.downcast_ref::<ScalarFunctionExpr>()?;
    let inner = call.fun().inner();
    if let (Some(order), [first]) = (inner.downcast_ref::<OrderBoundUdf>(), call.args()) {
        return wrapped_bound(first)?.of_ordered_keys(order).ok();
    }
    if let (Some(bound), [comparison, of, _]) = (inner.downcast_ref(), call.args()) {
        let bound: &LengthBoundUdf = bound;
        let comparison = comparison.downcast_ref::<Literal>()?.value();
        let conversion = bound.wrapping(comparison, call.return_type())?;
        return WrappedBound::try_new(&conversion, of);
    }
    WrappedBound::try_new(inner.downcast_ref()?, call.args().first()?)
}

impl<'a> WrappedBound<'a> {
    fn try_new(bound: &KeyBoundUdf, of: &'a PhysicalExprRef) -> Option<Self> {
        Some(Self {
            of_all: bound.bound_of_all().ok()?,
            wrapped: bound.wrapped()?,
            of,
            order: None,
        })
    }

    /// The same of keys of several expressions, the first of which are those compared.
    fn of_ordered_keys(self, order: &OrderBoundUdf) -> Result<Self> {
        Ok(Self {
            of_all: order.bytes(&self.of_all)?,
            order: Some(order.for_comparison(self.comparison())),
            ..self
        })
    }

    /// How these keys compare with their limits.
    pub(crate) fn comparison(&self) -> Comparison {
        self.wrapped.converted_comparison()
    }

    /// The limits of these keys. As for bounds, errors are only those of rows that `can_match` tells.
    pub(crate) fn limits(
        &self,
        batch: &RecordBatch,
        can_match: impl FnOnce() -> Vec<bool>,
    ) -> Result<ArrayRef> {
        let of = evaluate_bound(self.of, batch, can_match)?;
        let limits = self.wrapped.converted(&of, None)?;
        match &self.order {
            Some(order) => order.bytes(&limits),
            None => Ok(limits),
        }
    }

    /// The bounds, but those of all keys for rows that have candidates among these keys.
    pub(crate) fn widened(&self, bounds: &ArrayRef, has_wrapped: Vec<bool>) -> Result<ArrayRef> {
        if !has_wrapped.contains(&true) {
            return Ok(Arc::clone(bounds));
        }
        let all = Scalar::new(Arc::clone(&self.of_all));
        Ok(zip(&BooleanArray::from(has_wrapped), &all, bounds)?)
    }
}

/// Evaluates a threshold, or the point of a distance, over a batch of the probe side, whose rows match these ranges. An
/// error of rows with empty ranges is no error, as for bounds.
pub(crate) fn evaluate_threshold(
    threshold: &PhysicalExprRef,
    batch: &RecordBatch,
    ranges: &Ranges,
) -> Result<ArrayRef> {
    let can_match = || ranges.matched().collect();
    evaluate_bound(threshold, batch, can_match)
}
