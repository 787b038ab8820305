//! What the windows of a probe side can reach at most, by its statistics: one interval, for a probe side that is too
//! large to know its windows before the build side is read.

use arrow::datatypes::{DataType, Schema};
use datafusion::common::stats::Precision;
use datafusion::common::{Result, ScalarValue, Statistics};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, Literal};

use crate::exec::range_join::reach::window_reach::Reach;
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
    let sum = expr.downcast_ref::<BinaryExpr>()?;
    let literal = |expr: &PhysicalExprRef| Some(expr.downcast_ref::<Literal>()?.value().clone());
    let (value, added) = match (literal(sum.left()), literal(sum.right())) {
        (None, Some(added)) => (sum.left(), added),
        (Some(added), None) if *sum.op() == Operator::Plus => (sum.right(), added),
        _ => return None,
    };
    if added.is_null() {
        return None;
    }
    let (least, greatest) = extremes(value, rows)?;
    // A sum that does not fit wraps around or is an error in the join: then nothing is known.
    let shifted = |value: ScalarValue| {
        let shifted = match sum.op() {
            Operator::Plus => value.add_checked(&added),
            Operator::Minus => value.sub_checked(&added),
            _ => return None,
        };
        let shifted = shifted.ok()?;
        (!shifted.is_null() && is_ordered(&shifted.data_type())).then_some(shifted)
    };
    Some((shifted(least)?, shifted(greatest)?))
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
