//! Expressions that cannot fail.
//!
//! A range join evaluates expressions for all rows of a side that a join, or a subquery, evaluates for matching rows
//! only, and must not fail where the query that it replaces would not. Keys and conditions on the build side must be
//! such expressions in a join. Arguments of aggregates and values that are compared with thresholds may be others:
//! their errors are kept until a row matches (`expr::late_error`). Bounds may be others, too, as they are evaluated
//! again for the rows that can match.

use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::datatypes::{
    DECIMAL32_MAX_PRECISION, DECIMAL64_MAX_PRECISION, DECIMAL128_MAX_PRECISION,
    DECIMAL256_MAX_PRECISION, DataType,
};
use datafusion::common::{DFSchema, Result};
use datafusion::functions::{datetime, math};
use datafusion::logical_expr::expr::{Between, BinaryExpr, InList, Like, ScalarFunction};
use datafusion::logical_expr::{Case, Cast, Expr, ExprSchemable, Operator, ScalarUDF, TryCast};
use datafusion::scalar::ScalarValue;

use crate::expr::abs::AbsUdf;
use crate::expr::decimal_average::decimal_digits;
use crate::expr::key_bound::KeyBoundUdf;
use crate::optimizer::lossless_casts::{is_number, keeps_values};

/// Whether `expr` is known to have a value, or NULL, for every row.
pub(crate) fn is_infallible(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    let all = |exprs: &[&Expr]| {
        exprs
            .iter()
            .try_fold(true, |all, expr| Ok(all && is_infallible(expr, schema)?))
    };
    match expr {
        Expr::Column(_) | Expr::Literal(..) => Ok(true),
        Expr::Alias(alias) => is_infallible(&alias.expr, schema),
        Expr::Not(e)
        | Expr::IsNull(e)
        | Expr::IsNotNull(e)
        | Expr::IsTrue(e)
        | Expr::IsFalse(e)
        | Expr::IsUnknown(e)
        | Expr::IsNotTrue(e)
        | Expr::IsNotFalse(e)
        | Expr::IsNotUnknown(e) => is_infallible(e, schema),
        Expr::Between(Between {
            expr, low, high, ..
        }) => all(&[expr, low, high]),
        Expr::InList(InList { expr, list, .. }) => {
            let list_is = list.iter().all(|e| matches!(e, Expr::Literal(..)));
            Ok(list_is && is_infallible(expr, schema)?)
        }
        Expr::Case(Case {
            expr,
            when_then_expr,
            else_expr,
        }) => {
            let branches = when_then_expr.iter().flat_map(|(when, then)| [when, then]);
            let parts: Vec<&Expr> = expr
                .iter()
                .chain(branches)
                .chain(else_expr)
                .map(AsRef::as_ref)
                .collect();
            all(&parts)
        }
        Expr::TryCast(TryCast { expr, .. }) => is_infallible(expr, schema),
        Expr::Negative(e) => {
            // Integers wrap around.
            Ok(is_number(&e.get_type(schema)?) && is_infallible(e, schema)?)
        }
        Expr::Like(Like { expr, pattern, .. }) => {
            let is_plain = matches!(pattern.as_ref(), Expr::Literal(..));
            Ok(is_plain && is_infallible(expr, schema)?)
        }
        Expr::ScalarFunction(call) => {
            let args: Vec<&Expr> = call.args.iter().collect();
            let converts_bound = call.func.inner().is::<KeyBoundUdf>();
            Ok((converts_bound || is_infallible_call(call, schema)?) && all(&args)?)
        }
        Expr::Cast(Cast { expr, field }) => {
            let (from, to) = (expr.get_type(schema)?, field.data_type());
            Ok(keeps_values(&from, to) && is_infallible(expr, schema)?)
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let known = match op {
                Operator::And
                | Operator::Or
                | Operator::Eq
                | Operator::NotEq
                | Operator::Lt
                | Operator::LtEq
                | Operator::Gt
                | Operator::GtEq
                | Operator::IsDistinctFrom
                | Operator::IsNotDistinctFrom => true,
                // Integer arithmetic wraps around.
                Operator::Plus | Operator::Minus | Operator::Multiply => {
                    let (left, right) = (left.get_type(schema)?, right.get_type(schema)?);
                    is_number(&left) && is_number(&right) || has_room(*op, &left, &right)
                }
                Operator::Divide | Operator::Modulo => {
                    // Floats are divided by 0, too.
                    let (left, divisor) = (left.get_type(schema)?, right.get_type(schema)?);
                    left.is_floating() && divisor.is_floating() || is_plain_divisor(right)
                }
                _ => false,
            };
            Ok(known && all(&[left, right])?)
        }
        _ => Ok(false),
    }
}

/// Whether the sum, difference or product of decimals always has as few digits as their type can have.
fn has_room(op: Operator, left: &DataType, right: &DataType) -> bool {
    let most = match (left, right) {
        (DataType::Decimal32(..), DataType::Decimal32(..)) => DECIMAL32_MAX_PRECISION,
        (DataType::Decimal64(..), DataType::Decimal64(..)) => DECIMAL64_MAX_PRECISION,
        (DataType::Decimal128(..), DataType::Decimal128(..)) => DECIMAL128_MAX_PRECISION,
        (DataType::Decimal256(..), DataType::Decimal256(..)) => DECIMAL256_MAX_PRECISION,
        _ => return false,
    };
    let digits = |t| decimal_digits(t).map(|(p, s)| (i16::from(p), i16::from(s)));
    let (Some((p, s)), Some((q, t))) = (digits(left), digits(right)) else {
        return false;
    };
    let (digits, scale) = match op {
        Operator::Multiply => (p + q, s + t),
        _ => ((p - s).max(q - t) + s.max(t) + 1, s.max(t)),
    };
    digits.max(scale) <= i16::from(most)
}

/// Whether a call of one of DataFusion's functions has a value for all arguments of these types.
fn is_infallible_call(call: &ScalarFunction, schema: &DFSchema) -> Result<bool> {
    let is = |function: &ScalarUDF| *call.func == *function;
    let types = call.args.iter().map(|arg| arg.get_type(schema));
    let types: Vec<DataType> = types.collect::<Result<_>>()?;
    let part = call.args.first().and_then(|arg| match arg {
        Expr::Literal(value, _) => value.try_as_str().flatten().map(str::to_lowercase),
        _ => None,
    });
    Ok(match types.as_slice() {
        // The absolute value of the least signed integer is too large.
        [number] if call.func.inner().is::<AbsUdf>() || is(&math::abs()) => {
            !number.is_signed_integer() && !matches!(number, DataType::Duration(_))
        }
        [number] if number.is_floating() => [
            math::ln(),
            math::log2(),
            math::log10(),
            math::exp(),
            math::cbrt(),
            math::sin(),
            math::cos(),
            math::tan(),
            math::atan(),
            math::tanh(),
            math::degrees(),
            math::radians(),
            math::floor(),
            math::ceil(),
            math::signum(),
            math::isnan(),
        ]
        .iter()
        .any(|function| is(function)),
        // Coarser parts than these may begin before the first timestamp.
        [_, DataType::Timestamp(_, zone)] if is(&datetime::date_trunc()) => match part.as_deref() {
            Some("second" | "minute" | "millisecond" | "microsecond") => {
                has_known_zone(zone.as_ref())
            }
            Some("hour" | "day") => zone.is_none(),
            _ => false,
        },
        [_, DataType::Timestamp(_, zone)] if is(&datetime::date_part()) => {
            is_calendar_part(part.as_deref()) && has_known_zone(zone.as_ref())
        }
        [_, DataType::Date32 | DataType::Date64] if is(&datetime::date_part()) => {
            is_calendar_part(part.as_deref())
        }
        _ => false,
    })
}

fn is_calendar_part(part: Option<&str>) -> bool {
    let parts = [
        "year", "quarter", "month", "week", "day", "doy", "dow", "isodow", "hour", "minute",
        "second", "epoch",
    ];
    part.is_some_and(|part| parts.contains(&part))
}

fn has_known_zone(zone: Option<&Arc<str>>) -> bool {
    zone.is_none_or(|zone| zone.parse::<Tz>().is_ok())
}

/// Whether every integer can be divided by this literal without an error.
fn is_plain_divisor(expr: &Expr) -> bool {
    let Expr::Literal(value, _) = expr else {
        return false;
    };
    match value {
        ScalarValue::Int8(Some(v)) => *v > 0,
        ScalarValue::Int16(Some(v)) => *v > 0,
        ScalarValue::Int32(Some(v)) => *v > 0,
        ScalarValue::Int64(Some(v)) => *v > 0,
        ScalarValue::UInt8(Some(v)) => *v > 0,
        ScalarValue::UInt16(Some(v)) => *v > 0,
        ScalarValue::UInt32(Some(v)) => *v > 0,
        ScalarValue::UInt64(Some(v)) => *v > 0,
        _ => false,
    }
}
