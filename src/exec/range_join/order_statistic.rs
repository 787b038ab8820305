//! Which calls of functions are order statistics.

use datafusion::functions_aggregate::count::Count;
use datafusion::functions_aggregate::median::Median;
use datafusion::functions_aggregate::percentile_cont::PercentileCont;

use crate::logical_plan::accumulator_call::AccumulatorCall;
use crate::range_agg::order_statistics::OrderStatistic;

/// The statistic that a call computes of its only column, if it is one.
pub(crate) fn order_statistic(call: &AccumulatorCall) -> Option<OrderStatistic> {
    if call.is_filtered || call.returns_state || call.num_columns() != 1 {
        return None;
    }
    let function = call.function.inner();
    match (call.literals.as_slice(), call.is_distinct) {
        ([None], true) if function.is::<Count>() => Some(OrderStatistic::CountDistinct),
        ([None], false) if function.is::<Median>() => Some(OrderStatistic::Median),
        ([None, Some(literal)], false) if function.is::<PercentileCont>() => {
            let is_descending = match call.order_by.as_slice() {
                [] => false,
                // Only its direction matters: it is by the value, or by what was cast to it.
                [by] => !by.ascending,
                _ => return None,
            };
            OrderStatistic::percentile(literal, is_descending)
        }
        _ => None,
    }
}
