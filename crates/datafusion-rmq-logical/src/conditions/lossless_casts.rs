//! Which casts cannot fail, and which of them keep every value and the order of values.

use arrow::datatypes::{
    DECIMAL32_MAX_PRECISION, DECIMAL64_MAX_PRECISION, DECIMAL128_MAX_PRECISION,
    DECIMAL256_MAX_PRECISION, DataType, TimeUnit,
};
use datafusion_common::{DFSchema, Result};
use datafusion_expr::{Cast, Expr, ExprSchemable, Operator};

use crate::expr::decimal_average::decimal_digits;
use crate::expr::key_bound::integer_limits;

/// The expression below lossless casts and aliases.
pub fn without_lossless_casts<'a>(expr: &'a Expr, schema: &DFSchema) -> Result<&'a Expr> {
    match expr {
        Expr::Cast(Cast { expr: inner, field })
            if widens(&inner.get_type(schema)?, field.data_type()) =>
        {
            without_lossless_casts(inner, schema)
        }
        Expr::Alias(alias) => without_lossless_casts(&alias.expr, schema),
        other => Ok(other),
    }
}

/// The number of digits of an integer or decimal before and after the decimal point.
fn digits(data_type: &DataType) -> Option<(i16, i16)> {
    Some(match data_type {
        DataType::Int8 | DataType::UInt8 => (3, 0),
        DataType::Int16 | DataType::UInt16 => (5, 0),
        DataType::Int32 | DataType::UInt32 => (10, 0),
        DataType::Int64 => (19, 0),
        DataType::UInt64 => (20, 0),
        DataType::Decimal32(p, s)
        | DataType::Decimal64(p, s)
        | DataType::Decimal128(p, s)
        | DataType::Decimal256(p, s) => (i16::from(*p) - i16::from(*s), i16::from(*s)),
        _ => return None,
    })
}

/// Whether a cast from one type to the other keeps every value and the order of values.
pub fn widens(from: &DataType, to: &DataType) -> bool {
    let bits = |t: &DataType| t.primitive_width().map_or(0, |bytes| 8 * bytes);
    // A column of type Null has only NULLs.
    if from == to || from == &DataType::Null {
        return true;
    }
    if to.is_decimal() {
        let fits = |(digits, scale), (most, finest)| digits <= most && scale <= finest;
        return digits(from)
            .zip(digits(to))
            .is_some_and(|(from, to)| fits(from, to));
    }
    if let Some(factor) = time_factor(from, to) {
        // The cast is checked against the calendar where it adds a time zone.
        let fits = |((least, greatest), (min, max)): ((i128, i128), (i128, i128))| {
            least * factor >= min && greatest * factor <= max
        };
        let limits = integer_limits(from).zip(integer_limits(to));
        return !adds_zone(from, to) && limits.is_some_and(fits);
    }
    let float_bits = |t: &DataType| match t {
        DataType::Float32 => 24,
        DataType::Float64 => 53,
        _ => 0,
    };
    if from.is_signed_integer() && to.is_signed_integer()
        || from.is_unsigned_integer() && to.is_integer()
    {
        bits(from) < bits(to)
    } else if from.is_integer() && to.is_floating() {
        bits(from) <= float_bits(to)
    } else {
        matches!((from, to), (DataType::Float32, DataType::Float64))
    }
}

/// The factor by which a cast multiplies the integers in which values are stored, which may overflow. `None` for other
/// casts.
pub fn linear_factor(from: &DataType, to: &DataType) -> Option<i128> {
    if from.is_integer() && to.is_integer() {
        return Some(1);
    }
    let scale = |t: &DataType| match t {
        t if t.is_integer() => Some(0),
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) => {
            decimal_digits(t).map(|(_, scale)| i32::from(scale))
        }
        _ => None,
    };
    if let (Some(from), Some(to)) = (scale(from), scale(to).filter(|_| to.is_decimal())) {
        let digits = u32::try_from(to - from).ok()?;
        return 10_i128.checked_pow(digits);
    }
    time_factor(from, to)
}

/// The same for dates, times, timestamps and durations.
fn time_factor(from: &DataType, to: &DataType) -> Option<i128> {
    let (from_ticks, to_ticks) = (ticks_per_day(from)?, ticks_per_day(to)?);
    let is_same_kind = match (from, to) {
        (DataType::Duration(_), DataType::Duration(_))
        | (DataType::Time32(_) | DataType::Time64(_), DataType::Time32(_) | DataType::Time64(_))
        | (DataType::Date32, DataType::Date64)
        | (DataType::Timestamp(_, Some(_)), DataType::Timestamp(..)) => true,
        // A local time becomes the instant that it is in the zone, which is the same number only in UTC.
        (
            DataType::Date32 | DataType::Date64 | DataType::Timestamp(_, None),
            DataType::Timestamp(_, zone),
        ) => matches!(zone.as_deref(), None | Some("UTC" | "+00:00")),
        _ => false,
    };
    (is_same_kind && to_ticks % from_ticks == 0).then(|| to_ticks / from_ticks)
}

fn adds_zone(from: &DataType, to: &DataType) -> bool {
    let has_zone = |t: &DataType| matches!(t, DataType::Timestamp(_, Some(_)));
    has_zone(to) && !has_zone(from)
}

/// Whether a cast to a coarser unit, which rounds, cannot fail.
fn is_coarser_time(from: &DataType, to: &DataType) -> bool {
    let is_time = |t: &DataType| !matches!(t, DataType::Date32 | DataType::Date64);
    is_time(from) && is_time(to) && !adds_zone(from, to) && time_factor(to, from).is_some()
}

/// Whether a cast returns the date of a timestamp that cannot be too far away: Arrow's calendar ends before the last
/// microsecond.
fn is_date_within_range(from: &DataType, to: &DataType) -> bool {
    *from == DataType::Timestamp(TimeUnit::Nanosecond, None) && *to == DataType::Date32
}

/// The number of units of a type in a day.
fn ticks_per_day(data_type: &DataType) -> Option<i128> {
    let per_second = match data_type {
        DataType::Date32 => return Some(1),
        DataType::Date64 => 1000,
        DataType::Time32(unit)
        | DataType::Time64(unit)
        | DataType::Timestamp(unit, _)
        | DataType::Duration(unit) => match unit {
            TimeUnit::Second => 1,
            TimeUnit::Millisecond => 1000,
            TimeUnit::Microsecond => 1_000_000,
            TimeUnit::Nanosecond => 1_000_000_000,
        },
        _ => return None,
    };
    Some(86400 * per_second)
}

/// Whether a cast cannot fail for any value.
pub fn keeps_values(from: &DataType, to: &DataType) -> bool {
    let decodes = matches!(from, DataType::Dictionary(_, value) if value.as_ref() == to);
    let text =
        |t: &DataType| matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    // The same scale with at least as many digits.
    let wider_decimal = matches!(
        (decimal_digits(from), decimal_digits(to)),
        (Some((less, a)), Some((more, b))) if a == b && less <= more
    );
    let number = is_number(from) || decimal_digits(from).is_some();
    let to_float = number && matches!(to, DataType::Float32 | DataType::Float64);
    let printed = text(to) && (text(from) || is_number(from) || from == &DataType::Boolean);
    decodes
        || wider_decimal
        || to_float
        || printed
        || from == &DataType::Boolean && is_number(to)
        || is_coarser_time(from, to)
        || is_date_within_range(from, to)
        || widens(from, to)
}

/// Whether it is the type of integers or floats.
pub fn is_number(data_type: &DataType) -> bool {
    data_type.is_integer() || data_type.is_floating()
}

/// Whether the sum, difference or product of decimals always has as few digits as their type can have.
pub fn has_room(op: Operator, left: &DataType, right: &DataType) -> bool {
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
