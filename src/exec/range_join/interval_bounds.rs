//! Rewrites bounds such as `ts - INTERVAL '1 second'` into sums of a timestamp and a duration.
//!
//! Arrow adds an interval to a timestamp in the calendar, because an interval may have months and days; that takes
//! about 60 ns per row. An interval without months and days is a duration, and adding a duration is an integer
//! addition.
//!
//! Days and months stay in the calendar. In a time zone a sum may be a time that the clocks leave out or show twice,
//! which is an error of Arrow: the bound is then another one, `ZonedSumUdf` says which.

use std::sync::Arc;

use arrow::datatypes::{DataType, IntervalMonthDayNano, Schema, TimeUnit};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{Operator, ScalarUDF};
use datafusion::physical_expr::expressions::{BinaryExpr, Literal};
use datafusion::physical_expr::{PhysicalExprRef, ScalarFunctionExpr};

use datafusion_rmq_logical::expr::shifted_bound::ZonedSumUdf;
use datafusion_rmq_logical::expr::ticks::opposite;
use datafusion_rmq_logical::logical_plan::range_join::RangeJoinSpec;

/// The same join, over a probe side of this schema, with its bounds in the form that is evaluated fastest.
pub(crate) fn with_fast_bounds(
    mut spec: RangeJoinSpec<PhysicalExprRef>,
    probe: &Schema,
) -> RangeJoinSpec<PhysicalExprRef> {
    for (_, bound) in &mut spec.bounds {
        if let Ok(fast) = with_durations(bound, probe) {
            *bound = fast;
        }
    }
    spec
}

/// Replaces intervals that are added to or subtracted from timestamps by durations where the result is the same.
/// `schema` is the input of the expression.
fn with_durations(bound: &PhysicalExprRef, schema: &Schema) -> Result<PhysicalExprRef> {
    let rewritten = Arc::clone(bound).transform_up(|expression| {
        let rewritten = expression
            .downcast_ref::<BinaryExpr>()
            .map(|sum| with_duration_or_zone(sum, schema));
        Ok(match rewritten.transpose()?.flatten() {
            Some(sum) => Transformed::yes(sum),
            None => Transformed::no(expression),
        })
    });
    rewritten.data()
}

/// The sum that is as good; `None` if it is no sum of a timestamp and an interval, or has to stay.
fn with_duration_or_zone(sum: &BinaryExpr, schema: &Schema) -> Result<Option<PhysicalExprRef>> {
    if !matches!(sum.op(), Operator::Plus | Operator::Minus) {
        return Ok(None);
    }
    let DataType::Timestamp(unit, zone) = sum.left().data_type(schema)? else {
        return Ok(None);
    };
    let interval = sum.right().downcast_ref::<Literal>().map(Literal::value);
    let Some(ScalarValue::IntervalMonthDayNano(Some(interval))) = interval else {
        return Ok(None);
    };
    if (interval.months, interval.days) == (0, 0) {
        return Ok(with_duration(sum, unit, *interval));
    }
    let interval = match sum.op() {
        Operator::Minus => opposite(*interval),
        _ => Some(*interval),
    };
    let Some(interval) = interval.filter(|_| zone.is_some()) else {
        return Ok(None);
    };
    let function = Arc::new(ScalarUDF::from(ZonedSumUdf::new()));
    let interval = ScalarValue::IntervalMonthDayNano(Some(interval));
    let operands: Vec<PhysicalExprRef> =
        vec![Arc::clone(sum.left()), Arc::new(Literal::new(interval))];
    let sum = ScalarFunctionExpr::try_new(function, operands, schema, Arc::default())?;
    Ok(Some(Arc::new(sum)))
}

/// The sum with a duration in place of its interval; `None` if the unit has none.
fn with_duration(
    sum: &BinaryExpr,
    unit: TimeUnit,
    interval: IntervalMonthDayNano,
) -> Option<PhysicalExprRef> {
    let units = |nanos: i64| {
        let whole = interval.nanoseconds % nanos == 0;
        whole.then_some(Some(interval.nanoseconds / nanos))
    };
    let duration = match unit {
        TimeUnit::Second => ScalarValue::DurationSecond(units(1_000_000_000)?),
        TimeUnit::Millisecond => ScalarValue::DurationMillisecond(units(1_000_000)?),
        TimeUnit::Microsecond => ScalarValue::DurationMicrosecond(units(1_000)?),
        TimeUnit::Nanosecond => ScalarValue::DurationNanosecond(units(1)?),
    };
    let duration = Arc::new(Literal::new(duration));
    Some(Arc::new(BinaryExpr::new(
        Arc::clone(sum.left()),
        *sum.op(),
        duration,
    )))
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, RecordBatch, TimestampMillisecondArray};
    use datafusion::physical_expr::expressions::Column;

    use super::*;

    #[test]
    fn durations_give_the_same_timestamps_as_intervals() {
        let times =
            TimestampMillisecondArray::from(vec![Some(-1), None, Some(0), Some(1_700_000_000_123)]);
        for zone in [None, Some("Europe/Berlin"), Some("+02:00")] {
            let times: ArrayRef =
                Arc::new(times.clone().with_timezone_opt(zone.map(Arc::<str>::from)));
            let batch = RecordBatch::try_from_iter([("ts", times)]).unwrap();
            let column: PhysicalExprRef = Arc::new(Column::new("ts", 0));
            // Intervals with fractions of a millisecond stay, and without a zone those with months and days.
            let has_zone = zone.is_some();
            let intervals = [
                (0, 0, 1_000_000, true),
                (0, 0, -86_400_000_000_000, true),
                (0, 0, 500_000, false),
                (0, 1, 0, has_zone),
                (1, 0, 1_000_000, has_zone),
            ];
            for (months, days, nanos, is_rewritten) in intervals {
                for op in [Operator::Plus, Operator::Minus] {
                    let interval = IntervalMonthDayNano::new(months, days, nanos);
                    let interval = ScalarValue::IntervalMonthDayNano(Some(interval));
                    let interval = Arc::new(Literal::new(interval));
                    let sum = BinaryExpr::new(Arc::clone(&column), op, interval);
                    let sum: PhysicalExprRef = Arc::new(sum);
                    let other = with_durations(&sum, &batch.schema()).unwrap();
                    assert_eq!(other.to_string() != sum.to_string(), is_rewritten, "{sum}");
                    let value = |e: &PhysicalExprRef| {
                        let value = e.evaluate(&batch).unwrap();
                        value.into_array(batch.num_rows()).unwrap()
                    };
                    assert_eq!(&value(&other), &value(&sum), "{sum}");
                }
            }
        }
    }
}
