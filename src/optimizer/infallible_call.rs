//! Calls that cannot fail, in logical and in physical expressions.

use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue};
use datafusion::functions::{core, datetime, math, string, unicode};
use datafusion::logical_expr::ScalarUDF;

use crate::expr::abs::AbsUdf;
use crate::expr::distance::DistanceUdf;
use crate::expr::float_bound::FloatBoundUdf;
use crate::expr::interval_bound::IntervalBoundUdf;
use crate::expr::key_bound::KeyBoundUdf;
use crate::expr::shifted_bound::ShiftedBoundUdf;
use crate::expr::text_range::TextRangeUdf;
use crate::optimizer::condition::Operand;

/// Whether a call of one of DataFusion's functions, or of a conversion of a bound, has a value for all arguments of the
/// types of these.
pub(crate) fn is_infallible_call<E: Operand>(
    function: &ScalarUDF,
    arguments: &[E],
    schema: &E::Schema,
) -> Result<bool> {
    let is = |other: &ScalarUDF| function == other;
    let inner = function.inner();
    let is_bound = inner.is::<KeyBoundUdf>() || inner.is::<FloatBoundUdf>();
    let is_bound = is_bound || inner.is::<ShiftedBoundUdf>() || inner.is::<TextRangeUdf>();
    if is_bound || inner.is::<DistanceUdf>() || inner.is::<IntervalBoundUdf>() {
        return Ok(true);
    }
    let types = arguments.iter().map(|argument| argument.data_type(schema));
    let types: Vec<DataType> = types.collect::<Result<_>>()?;
    let part = arguments.first().and_then(Operand::as_constant);
    let part = part.and_then(|part| part.try_as_str().flatten().map(str::to_lowercase));
    Ok(match types.as_slice() {
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
