//! How many rows have equal keys, from statistics and samples.

#![expect(clippy::cast_precision_loss, reason = "estimates need few digits")]

use std::sync::Arc;

use arrow::array::Array;
use arrow::buffer::NullBuffer;
use arrow::datatypes::Schema;
use arrow::row::{RowConverter, SortField};
use datafusion::common::stats::Precision;
use datafusion::common::{HashMap, Result, ScalarValue};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{CaseExpr, CastExpr, Column, Literal};
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::common::statistics::{expected_rows, statistics};
use crate::optimizer::cost::sources::sampled;
use datafusion_rmq_logical::conditions::lossless_casts::keeps_values;

/// How many rows of an in-memory table are looked at.
pub(crate) const SAMPLED_ROWS: usize = 4096;

/// The sides of a join, and the pairs of their equality keys, those of the probe side first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sides<'a> {
    pub(crate) on: &'a [(PhysicalExprRef, PhysicalExprRef)],
    pub(crate) probe: &'a Arc<dyn ExecutionPlan>,
    pub(crate) build: &'a Arc<dyn ExecutionPlan>,
}

/// The number of build rows with the same keys as a probe row, on average: from a sample of an in-memory table, or from
/// the statistics of both sides.
pub(crate) fn equal_rows(sides: &Sides, build_rows: usize) -> Result<Option<f64>> {
    let Sides { on, probe, build } = sides;
    let build_rows = build_rows as f64;
    let build_keys: Vec<_> = on.iter().map(|(_, key)| key).collect();
    let probe_keys: Vec<_> = on.iter().map(|(key, _)| key).collect();
    let sampled = match sample(build, &build_keys)? {
        Some(share) => Some(share),
        None => sample(probe, &probe_keys)?,
    };
    if let Some(share) = sampled {
        return Ok(Some((share * build_rows).max(1.0)));
    }
    let distinct = [
        distinct_keys(build, &build_keys),
        distinct_keys(probe, &probe_keys),
    ];
    let distinct = distinct.into_iter().flatten().reduce(f64::max);
    Ok(distinct.map(|distinct| build_rows / distinct.max(1.0)))
}

/// About how many pairs of rows have equal keys: all pairs without keys.
pub(crate) fn equal_pairs(sides: &Sides) -> Result<Option<u128>> {
    let rows = expected_rows(sides.probe).zip(expected_rows(sides.build));
    let Some((probe_rows, build_rows)) = rows else {
        return Ok(None);
    };
    if sides.on.is_empty() {
        return Ok(Some(probe_rows as u128 * build_rows as u128));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate, which is positive"
    )]
    Ok(equal_rows(sides, build_rows)?.map(|equal| (probe_rows as f64 * equal) as u128))
}

/// The number of distinct keys that the statistics of a plan admit, if they bound that of any key.
fn distinct_keys(plan: &Arc<dyn ExecutionPlan>, keys: &[&PhysicalExprRef]) -> Option<f64> {
    let statistics = statistics(plan)?;
    let of_key = |key: &PhysicalExprRef| {
        let column = column_of(key, &plan.schema())?;
        let column = statistics.column_statistics.get(column)?;
        let counted = column.distinct_count.get_value().map(|count| *count as f64);
        let width = |value: &Precision<ScalarValue>| integer(value.get_value()?);
        let span = width(&column.max_value).zip(width(&column.min_value));
        let span = span.map(|(max, min)| (max - min) as f64 + 1.0);
        [counted, span].into_iter().flatten().reduce(f64::min)
    };
    // A key without statistics may have one value only; another one may still show that there are many.
    let known = keys.iter().filter_map(|key| of_key(key));
    let distinct = known.reduce(|all, key| all * key)?;
    let rows = statistics.num_rows.get_value().map(|rows| *rows as f64);
    Some(rows.map_or(distinct, |rows| rows.min(distinct)))
}

pub(crate) fn integer(value: &ScalarValue) -> Option<i128> {
    match value {
        ScalarValue::Int8(v) => v.map(i128::from),
        ScalarValue::Int16(v) => v.map(i128::from),
        ScalarValue::Int32(v) | ScalarValue::Date32(v) => v.map(i128::from),
        ScalarValue::Int64(v) => v.map(i128::from),
        ScalarValue::UInt8(v) => v.map(i128::from),
        ScalarValue::UInt16(v) => v.map(i128::from),
        ScalarValue::UInt32(v) => v.map(i128::from),
        ScalarValue::UInt64(v) => v.map(i128::from),
        _ => None,
    }
}

/// The column of an expression that is one, a cast of one that keeps values apart, or a column with a constant in place
/// of some of its values.
fn column_of(expr: &PhysicalExprRef, schema: &Schema) -> Option<usize> {
    if let Some(case) = expr.downcast_ref::<CaseExpr>()
        && let [(_, then)] = case.when_then_expr()
        && case.else_expr().is_some_and(|e| e.is::<Literal>())
    {
        return column_of(then, schema);
    }
    let Some(cast) = expr.downcast_ref::<CastExpr>() else {
        return expr.downcast_ref::<Column>().map(Column::index);
    };
    let from = cast.expr().data_type(schema).ok()?;
    keeps_values(&from, cast.cast_type()).then(|| column_of(cast.expr(), schema))?
}

/// The probability that two rows of an in-memory table have equal keys, from a sample. `None` if the plan is not one,
/// a key can't be evaluated on its rows, or it has fewer than two.
fn sample(plan: &Arc<dyn ExecutionPlan>, keys: &[&PhysicalExprRef]) -> Result<Option<f64>> {
    let Some(arrays) = sampled(plan, keys, SAMPLED_ROWS)? else {
        return Ok(None);
    };
    let rows = arrays.first().map_or(0, Array::len);
    let fields = arrays.iter().map(|a| SortField::new(a.data_type().clone()));
    let keys = RowConverter::new(fields.collect())?.convert_columns(&arrays)?;
    let nulls: Vec<_> = arrays.iter().map(Array::logical_nulls).collect();
    let nulls = NullBuffer::union_many(nulls.iter().map(Option::as_ref));
    let mut counts: HashMap<_, usize> = HashMap::new();
    for (row, key) in keys.iter().enumerate() {
        // A NULL matches nothing.
        if nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)) {
            *counts.entry(key).or_default() += 1;
        }
    }
    let pairs_of = |count: usize| count * (count - 1) / 2;
    let equal: usize = counts.values().map(|count| pairs_of(*count)).sum();
    Ok(Some(equal as f64 / pairs_of(rows).max(1) as f64))
}
