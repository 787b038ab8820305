//! How many rows a range has, from samples, or else from the statistics of a column.

#![expect(clippy::cast_precision_loss, reason = "estimates need few digits")]

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema};
use arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, ScalarValue};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::common::statistics::{expected_rows, statistics};
use crate::optimizer::cost::equal_rows::{SAMPLED_ROWS, Sides, equal_rows};
use crate::optimizer::cost::sources::{moved, over, sampled, source_of};
use rmq_arrow::common::ordered_type::value_type;
use rmq_engine::Comparison;

/// How many ranges are looked at.
const SAMPLED_RANGES: usize = 256;

/// With fewer sampled keys in all sampled ranges their number says nothing.
const FEWEST: usize = 16;

/// The number of rows that have the equality keys of a probe row and are in its range, on average. The keys of a range
/// are taken to be spread alike over all equality keys. `None` if nothing tells, and if too few keys of a sample are in
/// a range.
pub(crate) fn rows_in_range(
    sides: &Sides,
    key: &PhysicalExprRef,
    bounds: &[(Comparison, PhysicalExprRef)],
) -> Result<Option<f64>> {
    let Some(build_rows) = expected_rows(sides.build) else {
        return Ok(None);
    };
    let equal_rows = if sides.on.is_empty() {
        Some(build_rows as f64)
    } else {
        equal_rows(sides, build_rows)?
    };
    let keys = values_of(sides.build, &[key], SAMPLED_ROWS)?;
    let exprs: Vec<_> = bounds.iter().map(|(_, bound)| bound).collect();
    let ends = values_of(sides.probe, &exprs, SAMPLED_RANGES)?;
    let (Some(equal_rows), Some(keys), Some(ends)) = (equal_rows, keys, ends) else {
        return Ok(None);
    };
    let (ranges, rows) = (ends[0].len(), keys[0].len());
    let found = keys_in_ranges(&keys[0], bounds.iter().map(|(c, _)| *c).zip(&ends))?;
    let is_known = found >= FEWEST;
    Ok(is_known.then(|| equal_rows * found as f64 / (ranges * rows) as f64))
}

/// How many of these keys are in a range, of all ranges together.
fn keys_in_ranges<'a>(
    keys: &ArrayRef,
    bounds: impl Iterator<Item = (Comparison, &'a ArrayRef)>,
) -> Result<usize> {
    let data_type = value_type(keys.data_type());
    let converter = RowConverter::new(vec![SortField::new(data_type.clone())])?;
    let in_order = |values: &ArrayRef| converter.convert_columns(&[cast(values, &data_type)?]);
    let rows = in_order(keys)?;
    let nulls = keys.logical_nulls();
    let is_valid = |row: &usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(*row));
    let mut sorted: Vec<_> = (0..rows.num_rows())
        .filter(is_valid)
        .map(|row| rows.row(row))
        .collect();
    sorted.sort_unstable();
    let mut ranges: Vec<(usize, usize)> = vec![];
    for (comparison, values) in bounds {
        let (ends, nulls) = (in_order(values)?, values.logical_nulls());
        ranges.resize(values.len(), (0, sorted.len()));
        for (row, (start, end)) in ranges.iter_mut().enumerate() {
            let bound = ends.row(row);
            let at = if comparison.is_before_equal() {
                sorted.partition_point(|key| *key < bound)
            } else {
                sorted.partition_point(|key| *key <= bound)
            };
            if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                *end = 0;
            } else if comparison.is_lower() {
                *start = at.max(*start);
            } else {
                *end = at.min(*end);
            }
        }
    }
    Ok(ranges
        .iter()
        .map(|(start, end)| end.saturating_sub(*start))
        .sum())
}

/// The values of expressions on a sample of the rows of a table in memory, or on evenly spaced values of the one column
/// that they are of, between the least and the greatest one that statistics have.
fn values_of(
    plan: &Arc<dyn ExecutionPlan>,
    exprs: &[&PhysicalExprRef],
    most: usize,
) -> Result<Option<Vec<ArrayRef>>> {
    if exprs.is_empty() {
        return Ok(None);
    }
    match sampled(plan, exprs, most)? {
        Some(values) => Ok(Some(values)),
        None => evenly_spaced(plan, exprs, most),
    }
}

fn evenly_spaced(
    plan: &Arc<dyn ExecutionPlan>,
    exprs: &[&PhysicalExprRef],
    number: usize,
) -> Result<Option<Vec<ArrayRef>>> {
    let Some((source, exprs)) = source_of(plan, exprs)? else {
        return Ok(None);
    };
    let mut columns = exprs.iter().flat_map(collect_columns);
    let Some(column) = columns.next() else {
        return Ok(None);
    };
    let schema = source.schema();
    let (Some(statistics), true) = (statistics(source), columns.all(|other| other == column))
    else {
        return Ok(None);
    };
    let Some(of_column) = statistics.column_statistics.get(column.index()) else {
        return Ok(None);
    };
    let ends = [&of_column.min_value, &of_column.max_value];
    let [Some(least), Some(greatest)] = ends.map(|end| ticks(end.get_value()?)) else {
        return Ok(None);
    };
    let steps = i128::try_from(number.max(2) - 1).unwrap_or(1);
    let width = i128::from(greatest) - i128::from(least);
    let values = (0..=steps).map(|step| i64::try_from(i128::from(least) + width * step / steps));
    let Ok(values) = values.collect::<Result<Vec<i64>, _>>() else {
        return Ok(None);
    };
    let field = schema.field(column.index()).clone();
    // Not all types are made of integers.
    let Ok(values) = cast(&Int64Array::from(values), field.data_type()) else {
        return Ok(None);
    };
    let schema = Arc::new(Schema::new(vec![field.with_nullable(true)]));
    let batch = RecordBatch::try_new(schema, vec![values])?;
    let exprs = over(exprs, |column| moved(column, 0))?;
    let values = exprs.iter().map(|expr| {
        let values = expr.evaluate(&batch).ok()?;
        values.into_array(batch.num_rows()).ok()
    });
    Ok(values.collect())
}

/// The integer that an integer or a time is stored as.
fn ticks(value: &ScalarValue) -> Option<i64> {
    let is_whole = value.data_type().is_integer() || value.data_type().is_temporal();
    match value.cast_to(&DataType::Int64).ok().filter(|_| is_whole)? {
        ScalarValue::Int64(ticks) => ticks,
        _ => None,
    }
}
