//! What the windows of a probe side can reach at most, by its statistics: one interval, for a probe side that is too
//! large to know its windows before the build side is read.

use arrow::datatypes::{DataType, Schema};
use datafusion::common::stats::Precision;
use datafusion::common::{Result, ScalarValue, Statistics};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, Literal};
use datafusion::physical_expr::{PhysicalExprRef, ScalarFunctionExpr};

use crate::exec::range_join::reach::window_reach::Reach;
use crate::expr::shifted_bound::{MOST_BACK, ZonedSumUdf, calendar_offset};
use crate::logical_plan::range_join::RangeJoinSpec;
use rmq_engine::Comparison;

/// The reach of all windows of a probe side with these statistics; `None` if they tell nothing.
///
/// # Errors
/// If a bound is of another type than the range key.
pub(crate) fn reach_of_statistics(
    spec: &RangeJoinSpec<PhysicalExprRef>,
    probe: &Statistics,
    build: &Schema,
) -> Result<Option<Reach>> {
    let bounds = spec.bounds.iter().filter_map(|(comparison, bound)| {
        let (least, greatest) = extremes(bound, probe)?;
        let outermost = if comparison.is_lower() {
            least
        } else {
            greatest
        };
        Some((*comparison, outermost))
    });
    let bounds: Vec<(Comparison, ScalarValue)> = bounds.collect();
    if bounds.is_empty() {
        return Ok(None);
    }
    Reach::of_window(spec, build, &bounds).map(Some)
}

/// The least and the greatest value of an expression over rows with these statistics, if it grows with a column of
/// which both are exactly known. Floats are left out: statistics of files do not count NaN.
fn extremes(expr: &PhysicalExprRef, rows: &Statistics) -> Option<(ScalarValue, ScalarValue)> {
    if let Some(column) = expr.downcast_ref::<Column>() {
        let known = rows.column_statistics.get(column.index())?;
        let exact = |value: &Precision<ScalarValue>| match value {
            Precision::Exact(value) => {
                let is_known = !value.is_null() && is_ordered(&value.data_type());
                is_known.then(|| value.clone())
            }
            _ => None,
        };
        return Some((exact(&known.min_value)?, exact(&known.max_value)?));
    }
    if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        let (least, greatest) = extremes(cast.expr(), rows)?;
        let to = cast.cast_type();
        if !keeps_order(&least.data_type(), to) {
            return None;
        }
        let cast = |value: ScalarValue| value.cast_to(to).ok().filter(|value| !value.is_null());
        return Some((cast(least)?, cast(greatest)?));
    }
    let (value, op, added) = summands(expr)?;
    if added.is_null() {
        return None;
    }
    let (least, greatest) = extremes(value, rows)?;
    // A sum that does not fit wraps around or is an error in the join: then nothing is known.
    let shifted = |value: ScalarValue| {
        let shifted = match op {
            Operator::Plus => value.add_checked(&added),
            Operator::Minus => value.sub_checked(&added),
            _ => return None,
        };
        let shifted = shifted.ok()?;
        (!shifted.is_null() && is_ordered(&shifted.data_type())).then_some(shifted)
    };
    let (start, end) = (shifted(least)?, shifted(greatest)?);
    if calendar_offset(&start.data_type(), &added, true).is_none() {
        return Some((start, end));
    }
    let back = ScalarValue::IntervalMonthDayNano(Some(MOST_BACK));
    Some((start.sub_checked(&back).ok()?, end.add_checked(&back).ok()?))
}

/// What is added to an expression, or subtracted from it.
fn summands(expr: &PhysicalExprRef) -> Option<(&PhysicalExprRef, Operator, ScalarValue)> {
    let literal = |expr: &PhysicalExprRef| Some(expr.downcast_ref::<Literal>()?.value().clone());
    if let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() {
        return match call.args() {
            [value, added] if call.fun().inner().is::<ZonedSumUdf>() => {
                Some((value, Operator::Plus, literal(added)?))
            }
            _ => None,
        };
    }
    let sum = expr.downcast_ref::<BinaryExpr>()?;
    match (literal(sum.left()), literal(sum.right())) {
        (None, Some(added)) => Some((sum.left(), *sum.op(), added)),
        (Some(added), None) if *sum.op() == Operator::Plus => {
            Some((sum.right(), Operator::Plus, added))
        }
        _ => None,
    }
}

/// Whether values of a type are added to, and compared, in the one order that statistics have. Hours of some days are
/// shown twice in time zones, where days and months are added.
fn is_ordered(data_type: &DataType) -> bool {
    is_whole(data_type) || is_time(data_type)
}

fn is_whole(data_type: &DataType) -> bool {
    data_type.is_integer() || data_type.is_decimal()
}

fn is_time(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..)
    )
}

/// Whether a cast leaves the order of values as it is, or makes neighbours equal.
fn keeps_order(from: &DataType, to: &DataType) -> bool {
    let zone = |data_type: &DataType| match data_type {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    };
    is_whole(from) && is_whole(to) || is_time(from) && is_time(to) && zone(from) == zone(to)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::common::ColumnStatistics;

    use super::*;

    #[test]
    fn sums_of_months_reach_those_of_all_times_between() {
        let time = |text: &str| {
            let text = ScalarValue::from(text);
            let seconds = DataType::Timestamp(arrow::datatypes::TimeUnit::Second, None);
            text.cast_to(&seconds).unwrap()
        };
        let (least, greatest) = (time("2026-03-01T00:00:00"), time("2026-03-31T01:00:00"));
        let column = ColumnStatistics {
            min_value: Precision::Exact(least),
            max_value: Precision::Exact(greatest),
            ..ColumnStatistics::default()
        };
        let rows = Statistics {
            num_rows: Precision::Exact(3),
            total_byte_size: Precision::Absent,
            column_statistics: vec![column],
        };
        let month = ScalarValue::new_interval_mdn(1, 0, 0);
        let sum: PhysicalExprRef = Arc::new(BinaryExpr::new(
            Arc::new(Column::new("ts", 0)),
            Operator::Minus,
            Arc::new(Literal::new(month.clone())),
        ));
        let (_, greatest) = extremes(&sum, &rows).unwrap();
        // Two hours earlier than the greatest, but a month before it the later one.
        let before = time("2026-03-30T23:00:00").sub_checked(&month).unwrap();
        assert!(before <= greatest, "{before} is beyond {greatest}");
    }
}
