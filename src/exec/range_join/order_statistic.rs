//! Which calls of accumulators are order statistics.

use crate::expr::order_statistic::order_statistic_of;
use crate::logical_plan::accumulator_call::{AccumulatorCall, AccumulatorOutput};
use rmq_arrow::range_agg::order_statistics::OrderStatistic;

/// The statistic that a call computes of its only column, if it is one.
pub(crate) fn order_statistic(call: &AccumulatorCall) -> Option<OrderStatistic> {
    if call.is_filtered || call.output == AccumulatorOutput::State {
        return None;
    }
    let percentile = match call.literals.as_slice() {
        [None] => None,
        [None, percentile @ Some(_)] => percentile.as_ref(),
        _ => return None,
    };
    // Only the direction matters: ORDER BY is by the value, or by what was cast to it.
    let is_descending = call.order_by.first().is_some_and(|by| !by.ascending);
    order_statistic_of(&call.function, call.is_distinct, percentile, is_descending)
}
