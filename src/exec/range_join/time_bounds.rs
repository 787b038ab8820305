//! Bounds such as `ts - INTERVAL '1 second'`, without a calendar.
//!
//! Arrow adds an interval to a timestamp by way of the calendar, at some 60 ns a row, as an interval may have months and days. One that
//! has neither is a duration, and adding that is adding numbers.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema, TimeUnit};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{BinaryExpr, Literal};

/// The same expression over rows of this schema, with durations for intervals that are added to timestamps or subtracted from
/// them where both come to the same.
pub(crate) fn with_durations(bound: &PhysicalExprRef, schema: &Schema) -> Result<PhysicalExprRef> {
    let shorter = Arc::clone(bound).transform_up(|expression| {
        let shorter = expression
            .downcast_ref::<BinaryExpr>()
            .and_then(|sum| with_duration(sum, schema));
        Ok(match shorter {
            Some(sum) => Transformed::yes(sum),
            None => Transformed::no(expression),
        })
    });
    shorter.data()
}

fn with_duration(sum: &BinaryExpr, schema: &Schema) -> Option<PhysicalExprRef> {
    if !matches!(sum.op(), Operator::Plus | Operator::Minus) {
        return None;
    }
    let DataType::Timestamp(unit, _) = sum.left().data_type(schema).ok()? else {
        return None;
    };
    let interval = sum.right().downcast_ref::<Literal>()?;
    let ScalarValue::IntervalMonthDayNano(Some(interval)) = interval.value() else {
        return None;
    };
    if interval.months != 0 || interval.days != 0 {
        return None;
    }
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
    use arrow::datatypes::IntervalMonthDayNano;
    use datafusion::physical_expr::expressions::Column;

    use super::*;

    #[test]
    fn a_duration_gives_what_the_interval_gives() {
        let times =
            TimestampMillisecondArray::from(vec![Some(-1), None, Some(0), Some(1_700_000_000_123)]);
        for zone in [None, Some("Europe/Berlin"), Some("+02:00")] {
            let times: ArrayRef =
                Arc::new(times.clone().with_timezone_opt(zone.map(Arc::<str>::from)));
            let batch = RecordBatch::try_from_iter([("ts", times)]).unwrap();
            let column: PhysicalExprRef = Arc::new(Column::new("ts", 0));
            // Months, days, and half a millisecond stay intervals.
            let intervals = [
                (0, 0, 1_000_000, true),
                (0, 0, -86_400_000_000_000, true),
                (0, 0, 500_000, false),
                (0, 1, 0, false),
                (1, 0, 1_000_000, false),
            ];
            for (months, days, nanos, shorter) in intervals {
                for op in [Operator::Plus, Operator::Minus] {
                    let interval = IntervalMonthDayNano::new(months, days, nanos);
                    let interval = ScalarValue::IntervalMonthDayNano(Some(interval));
                    let interval = Arc::new(Literal::new(interval));
                    let sum = BinaryExpr::new(Arc::clone(&column), op, interval);
                    let sum: PhysicalExprRef = Arc::new(sum);
                    let other = with_durations(&sum, &batch.schema()).unwrap();
                    assert_eq!(other.to_string() != sum.to_string(), shorter, "{sum}");
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
