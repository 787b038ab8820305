//! Which aggregate functions are order statistics.

use arrow::datatypes::DataType;
use datafusion_common::ScalarValue;
use datafusion_expr::AggregateUDF;
use datafusion_functions_aggregate::count::Count;
use datafusion_functions_aggregate::median::Median;
use datafusion_functions_aggregate::percentile_cont::PercentileCont;

use rmq_arrow::range_agg::order_statistics::OrderStatistic;

/// The statistic that a function computes of one column, if it is one. `percentile` is its second argument, of
/// values in ascending or descending order.
pub fn order_statistic_of(
    function: &AggregateUDF,
    is_distinct: bool,
    percentile: Option<&ScalarValue>,
    is_descending: bool,
) -> Option<OrderStatistic> {
    let function = function.inner();
    match (is_distinct, percentile) {
        (true, None) if function.is::<Count>() => Some(OrderStatistic::CountDistinct),
        (false, None) if function.is::<Median>() => Some(OrderStatistic::Median),
        (false, Some(literal)) if function.is::<PercentileCont>() => {
            let ScalarValue::Float64(Some(percentile)) =
                literal.cast_to(&DataType::Float64).ok()?
            else {
                return None;
            };
            Some(OrderStatistic::Percentile(if is_descending {
                1.0 - percentile
            } else {
                percentile
            }))
        }
        _ => None,
    }
}
