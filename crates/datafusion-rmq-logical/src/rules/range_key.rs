//! The one key of all comparisons of a range.

use arrow::datatypes::DataType;
use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_expr::{Expr, ExprSchemable, cast, lit};

use crate::common::sql_text::sql_text;
use crate::conditions::condition::Compared;
use crate::conditions::lossless_casts::{widens, without_lossless_casts};
use crate::conditions::rejection::{Match, reject};
use crate::conditions::written::written;
use rmq_engine::Comparison;

/// Why a join is left that compares its sides by equalities alone.
pub const NO_RANGE: &str = "there is no range between the two sides";

/// Why a condition with two range keys is rejected.
fn two_keys(one: &Expr, other: &Expr, probe: &DFSchema, build: &DFSchema) -> String {
    let [a, b] = [one, other].map(|key| written(key, probe, build));
    if a == b
        && let (Ok(one), Ok(other)) = (one.get_type(build), other.get_type(build))
    {
        return format!("{a} is compared as a {one} and as a {other}: cast its bounds to one type");
    }
    format!(
        "there are two range keys, {a} and {b}, for which only count(*) is possible, and min and max of one of them"
    )
}

/// The range key of all comparisons, and the bounds. If keys differ only by lossless casts, which DataFusion adds for
/// bounds of several types, the widest one is the key and the bounds are cast to its type.
pub fn one_key(
    ranges: Vec<Compared<Expr>>,
    probe: &DFSchema,
    build: &DFSchema,
) -> Match<(Expr, Vec<(Comparison, Expr)>)> {
    let Some((first, ..)) = ranges.first() else {
        return reject(NO_RANGE);
    };
    let base = without_lossless_casts(first, build)?;
    let base_type = base.get_type(build)?;
    if base_type == DataType::Null {
        for (key, ..) in &ranges {
            if without_lossless_casts(key, build)? != base {
                return reject(two_keys(first, key, probe, build));
            }
        }
        // The columns of a CSV file without rows are of type Null. NULL matches nothing, so any type serves.
        let null = lit(ScalarValue::Int64(None));
        let bounds = ranges.iter().map(|(_, c, _)| (*c, null.clone()));
        return Ok((cast(base.clone(), DataType::Int64), bounds.collect()));
    }
    if ranges.iter().all(|(key, ..)| key == first) {
        let key = first.clone();
        return Ok((
            key,
            ranges.into_iter().map(|(_, c, bound)| (c, bound)).collect(),
        ));
    }
    let mut widest: Option<(Expr, DataType)> = None;
    for (key, ..) in &ranges {
        let key_type = key.get_type(build)?;
        if without_lossless_casts(key, build)? != base || !widens(&base_type, &key_type) {
            return reject(two_keys(first, key, probe, build));
        }
        match &widest {
            Some((_, other)) if widens(&key_type, other) => {}
            Some((_, other)) if !widens(other, &key_type) => {
                return reject(format!(
                    "{} is compared as a {other} and as a {key_type}",
                    sql_text(base)
                ));
            }
            _ => widest = Some((key.clone(), key_type)),
        }
    }
    let Some((key, key_type)) = widest else {
        return reject(NO_RANGE);
    };
    let bounds = ranges.into_iter().map(|(_, comparison, bound)| {
        let bound = if bound.get_type(probe)? == key_type {
            bound
        } else {
            cast(bound, key_type.clone())
        };
        Ok((comparison, bound))
    });
    Ok((key, bounds.collect::<Result<_>>()?))
}
