//! Expressions that cannot fail, in logical and in physical plans.
//!
//! A range join evaluates expressions for all rows of a side that a join, or a subquery, evaluates for matching rows
//! only, and must not fail where the query that it replaces would not. Conditions on the build side must be such
//! expressions in a join. Arguments of aggregates and values that are compared with thresholds may be others: their
//! errors are kept until a row matches (`expr::late_error`). So may range keys, whose errors are kept until a row has
//! equal equality keys, and bounds, which are evaluated again for the rows that can match.

use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::datatypes::DataType;
use datafusion_common::{Result, ScalarValue};
use datafusion_expr::{Operator, ScalarUDF};
use datafusion_functions::{core, datetime, math, string, unicode};

use crate::conditions::condition::Operand;
use crate::conditions::lossless_casts::{has_room, is_number, keeps_values};
use crate::expr::abs::AbsUdf;
use crate::expr::distance::DistanceUdf;
use crate::expr::float_bound::FloatBoundUdf;
use crate::expr::interval_bound::IntervalBoundUdf;
use crate::expr::key_bound::KeyBoundUdf;
use crate::expr::late_error::FallibleUdf;
use crate::expr::length_bound::LengthBoundUdf;
use crate::expr::shifted_bound::ShiftedBoundUdf;
use crate::expr::text_range::TextRangeUdf;

/// Whether `expr` is known to have a value, or NULL, for every row.
pub fn is_infallible<E: Operand>(expr: &E, schema: &E::Schema) -> Result<bool> {
    if expr.is_column() || expr.as_constant().is_some() {
        return Ok(true);
    }
    let (is_known, operands) = if let Some((operand, to)) = expr.cast_operand() {
        let keeps = keeps_values(&operand.data_type(schema)?, to);
        (keeps, vec![operand])
    } else if let Some((left, op, right)) = expr.as_binary() {
        let is_known = is_infallible_operator(left, op, right, schema)?;
        (is_known, vec![left, right])
    } else if let Some((function, arguments)) = expr.as_call() {
        let is_known = is_infallible_call(function, arguments, schema)?;
        (is_known, arguments.iter().collect())
    } else {
        let operands = expr.infallible_operands(schema)?;
        (operands.is_some(), operands.unwrap_or_default())
    };
    if !is_known {
        return Ok(false);
    }
    for operand in operands {
        if !is_infallible(operand, schema)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether an operator has a value for all operands of their types.
fn is_infallible_operator<E: Operand>(
    left: &E,
    op: Operator,
    right: &E,
    schema: &E::Schema,
) -> Result<bool> {
    Ok(match op {
        Operator::And
        | Operator::Or
        | Operator::Eq
        | Operator::NotEq
        | Operator::Lt
        | Operator::LtEq
        | Operator::Gt
        | Operator::GtEq
        | Operator::IsDistinctFrom
        | Operator::IsNotDistinctFrom
        | Operator::StringConcat => true,
        // Integer arithmetic wraps around.
        Operator::Plus | Operator::Minus | Operator::Multiply => {
            let (left, right) = (left.data_type(schema)?, right.data_type(schema)?);
            is_number(&left) && is_number(&right) || has_room(op, &left, &right)
        }
        Operator::Divide | Operator::Modulo => {
            // Floats are divided by 0, too.
            let (left, divisor) = (left.data_type(schema)?, right.data_type(schema)?);
            left.is_floating() && divisor.is_floating()
                || right.as_constant().is_some_and(is_plain_divisor)
        }
        _ => false,
    })
}

/// Whether every integer can be divided by this one without an error.
fn is_plain_divisor(value: &ScalarValue) -> bool {
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

/// Whether a call of one of DataFusion's functions, or of a conversion of a bound, has a value for all arguments of the
/// types of these.
fn is_infallible_call<E: Operand>(
    function: &ScalarUDF,
    arguments: &[E],
    schema: &E::Schema,
) -> Result<bool> {
    let is = |other: &ScalarUDF| function == other;
    let inner = function.inner();
    let is_bound = inner.is::<KeyBoundUdf>() || inner.is::<FloatBoundUdf>();
    let is_bound = is_bound || inner.is::<ShiftedBoundUdf>() || inner.is::<TextRangeUdf>();
    let is_bound = is_bound || inner.is::<LengthBoundUdf>();
    if is_bound || inner.is::<DistanceUdf>() || inner.is::<FallibleUdf>() {
        return Ok(true);
    }
    let types = arguments.iter().map(|argument| argument.data_type(schema));
    let types: Vec<DataType> = types.collect::<Result<_>>()?;
    let part = arguments.first().and_then(Operand::as_constant);
    let part = part.and_then(|part| part.try_as_str().flatten().map(str::to_lowercase));
    Ok(match types.as_slice() {
        // NaN has no product.
        [.., factor] if inner.is::<IntervalBoundUdf>() => *factor == DataType::Int64,
        // The absolute value of the least signed integer is too large.
        [number] if inner.is::<AbsUdf>() || is(&math::abs()) => {
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
        [number] if number.is_floating() && is(&math::round()) => true,
        [text] if is_text(text) => [
            string::lower(),
            string::upper(),
            string::octet_length(),
            string::btrim(),
            unicode::character_length(),
        ]
        .iter()
        .any(|function| is(function)),
        [text, ..] if is_text(text) && is(&unicode::substr()) => {
            let mut numbers = arguments.iter().skip(1).map(Operand::as_constant);
            numbers.all(|number| matches!(number, Some(ScalarValue::Int64(Some(0..=MAX_LENGTH)))))
        }
        [first, others @ ..] if !first.is_nested() && others.iter().all(|t| t == first) => [
            core::coalesce(),
            core::nullif(),
            core::greatest(),
            core::least(),
        ]
        .iter()
        .any(|function| is(function)),
        [DataType::Timestamp(..)] if is(&datetime::to_unixtime()) => true,
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

/// More characters than a text has.
const MAX_LENGTH: i64 = 1 << 32;

fn is_text(data_type: &DataType) -> bool {
    use DataType::{LargeUtf8, Utf8, Utf8View};
    matches!(data_type, Utf8 | LargeUtf8 | Utf8View)
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
