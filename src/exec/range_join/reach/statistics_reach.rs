//! What the windows of a probe side can reach at most, by the statistics of its row groups or of all its rows: for a
//! probe side that is too large to know its windows before the build side is read.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::Schema;
use datafusion::common::stats::Precision;
use datafusion::common::{Result, ScalarValue, Statistics};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, Literal};
use datafusion::physical_expr::{PhysicalExprRef, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::common::plan_key::ScanPlan;
use crate::exec::common::statistics::statistics;
use crate::exec::range_join::reach::row_groups::{is_ordered, keeps_order, row_group_statistics};
use crate::exec::range_join::reach::window_reach::Reach;
use datafusion_rmq_logical::expr::shifted_bound::{MOST_BACK, ZonedSumUdf, calendar_offset};
use datafusion_rmq_logical::logical_plan::range_join::RangeJoinSpec;
use rmq_engine::Comparison;

type Bounds = Vec<(Comparison, PhysicalExprRef)>;

/// The reach of all windows of a probe side, before its rows are read; `None` if statistics tell nothing.
///
/// # Errors
/// If a bound is of another type than the range key.
pub(crate) async fn reach_of_statistics(
    spec: &RangeJoinSpec<PhysicalExprRef>,
    probe: &Arc<dyn ExecutionPlan>,
    build: &Schema,
) -> Result<Option<Reach>> {
    if let Some((scan, bounds)) = bounds_over_scan(&spec.bounds, probe) {
        let columns = bounds.iter().filter_map(|(_, bound)| grows_with(bound));
        let columns: Vec<_> = columns.cloned().collect();
        // What is wrong with a file, the scan will say.
        let row_groups = row_group_statistics(&scan, &columns).await.ok().flatten();
        if let Some(row_groups) = row_groups {
            let windows = windows_of(&bounds, &row_groups);
            if row_groups.is_empty() || !windows.is_empty() {
                return Reach::of_windows(spec, build, &windows).map(Some);
            }
        }
    }
    let all = statistics(probe);
    let windows = windows_of(
        &spec.bounds,
        all.as_deref().map_or(&[], std::slice::from_ref),
    );
    if windows.is_empty() {
        return Ok(None);
    }
    Reach::of_windows(spec, build, &windows).map(Some)
}

/// The least and the greatest value of a bound over all rows of a probe side in files, and about how many these are;
/// `None` if statistics don't tell.
pub(crate) async fn extremes_of_all(
    bound: &PhysicalExprRef,
    probe: &Arc<dyn ExecutionPlan>,
) -> Option<(ScalarValue, ScalarValue, usize)> {
    let scan = ScanPlan::of_any_files(probe)?;
    let bound = scan.over_scan(bound)?;
    let column = grows_with(&bound)?.clone();
    // What is wrong with a file, the scan will say.
    let row_groups = row_group_statistics(&scan, &[column]).await.ok().flatten();
    let known = row_groups?.into_iter().map(|part| {
        let (least, greatest) = extremes(&bound, &part)?;
        Some((least, greatest, *part.num_rows.get_value()?))
    });
    let known = known.collect::<Option<Vec<_>>>()?;
    let less = |a: &ScalarValue, b: &ScalarValue| a.partial_cmp(b) == Some(Ordering::Less);
    known
        .into_iter()
        .reduce(|(least, greatest, rows), (low, high, more)| {
            let least = if less(&low, &least) { low } else { least };
            let greatest = if less(&greatest, &high) {
                high
            } else {
                greatest
            };
            (least, greatest, rows + more)
        })
}

/// Whether the statistics of row groups may tell how far the windows of a probe side reach.
pub(crate) fn is_told_by_row_groups(
    bounds: &[(Comparison, PhysicalExprRef)],
    probe: &Arc<dyn ExecutionPlan>,
) -> bool {
    bounds_over_scan(bounds, probe).is_some_and(|(_, known)| known.len() == bounds.len())
}

/// The scan of a probe side in files, and the bounds that grow with a column of it, over its columns.
fn bounds_over_scan<'a>(
    bounds: &[(Comparison, PhysicalExprRef)],
    probe: &'a Arc<dyn ExecutionPlan>,
) -> Option<(ScanPlan<'a>, Bounds)> {
    let scan = ScanPlan::of_any_files(probe)?;
    scan.only_files()?;
    let bounds = bounds.iter().filter_map(|(comparison, bound)| {
        let bound = scan.over_scan(bound)?;
        grows_with(&bound)?;
        Some((*comparison, bound))
    });
    let bounds = bounds.collect();
    Some((scan, bounds))
}

/// For each part of the rows, with these statistics, a window that all its windows are in: the values of the bounds
/// that are known of all parts.
fn windows_of(
    bounds: &[(Comparison, PhysicalExprRef)],
    parts: &[Statistics],
) -> Vec<(Comparison, ArrayRef)> {
    let bounds = bounds.iter().filter_map(|(comparison, bound)| {
        let outermost = parts.iter().map(|part| {
            let (least, greatest) = extremes(bound, part)?;
            Some(if comparison.is_lower() {
                least
            } else {
                greatest
            })
        });
        let outermost: Vec<_> = outermost.collect::<Option<_>>()?;
        let values = ScalarValue::iter_to_array(outermost).ok()?;
        Some((*comparison, values))
    });
    bounds.collect()
}

/// The column that an expression grows with, so that its extremes are at those of the column, if [`extremes`] knows
/// their types.
fn grows_with(expr: &PhysicalExprRef) -> Option<&Column> {
    if let Some(column) = expr.downcast_ref::<Column>() {
        return Some(column);
    }
    match expr.downcast_ref::<CastExpr>() {
        Some(cast) => grows_with(cast.expr()),
        None => grows_with(summands(expr)?.0),
    }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::DataType;
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
