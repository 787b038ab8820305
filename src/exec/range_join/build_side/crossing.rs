//! Computes the rows of ranges that cross thresholds of the probe side.

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::Int64Type;
use datafusion::common::{Result, internal_datafusion_err};

use crate::common::ranges::Ranges;
use crate::exec::range_join::build_side::value_index::ValueIndex;
use crate::index::threshold::ThresholdTest;
use crate::range_agg::values::Values;
use rmq_engine::{Comparison, Extreme, RangeEnd};

/// The test that a comparison with a threshold makes. Zeros of both signs are equal, as in SQL's comparisons.
pub(crate) fn threshold_test(comparison: Comparison) -> ThresholdTest {
    let extreme = if comparison.is_lower() {
        Extreme::Max
    } else {
        Extreme::Min
    };
    ThresholdTest {
        extreme,
        strict: comparison.is_strict(),
        equal_zeros: true,
    }
}

/// Takes the values of the first or last row of each range that passes the test; NULL for a range without such a row.
pub(crate) fn values_at_crossings(
    values: &Values,
    searched: &ValueIndex,
    ranges: &Ranges,
    thresholds: &ArrayRef,
    (end, comparison): (RangeEnd, Comparison),
) -> Result<ArrayRef> {
    let found = searched.index().keys().crossings(
        std::slice::from_ref(ranges),
        std::slice::from_ref(thresholds),
        end,
        threshold_test(comparison),
    )?;
    let positions = found.positions;
    let positions =
        positions.ok_or_else(|| internal_datafusion_err!("an index returned no positions"))?;
    values.at(positions.as_primitive::<Int64Type>().iter())
}
