//! What differences are compared with, and the numbers that they are made.

use arrow::datatypes::DataType;
use datafusion_common::ScalarValue;
use datafusion_expr::Operator;
use datafusion_functions::datetime;

use crate::conditions::condition::Operand;
use crate::conditions::lossless_casts::has_room;
use crate::expr::decimal_average::decimal_digits;
use crate::expr::duration::SecondsUdf;

/// The part of a range of integers for which a condition holds, one that changes at most once in it.
pub fn part_where(
    (first, last): (i128, i128),
    holds: impl Fn(i128) -> bool,
) -> Option<(i128, i128)> {
    let (at_first, at_last) = (holds(first), holds(last));
    if at_first == at_last {
        return at_first.then_some((first, last));
    }
    // The condition is at `low` what it is at the first integer, and at `high` what it is at the last one.
    let (mut low, mut high) = (first, last);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle) == at_first {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(if at_first { (first, low) } else { (high, last) })
}

/// What `to_unixtime` is of.
pub fn whole_epoch_of<E: Operand>(expr: &E) -> Option<&E> {
    let (function, [of]) = expr.as_call()? else {
        return None;
    };
    (*function == *datetime::to_unixtime()).then_some(of)
}

/// The duration that `extract(epoch FROM …)` is of.
pub fn seconds_of<E: Operand>(expr: &E) -> Option<&E> {
    let (function, [of]) = expr.as_call()? else {
        return None;
    };
    function.inner().is::<SecondsUdf>().then_some(of)
}

/// The time that `extract(epoch FROM …)` is of.
pub fn epoch_of<E: Operand>(expr: &E) -> Option<&E> {
    let (function, [part, of]) = expr.as_call()? else {
        return None;
    };
    let part = part.as_constant()?.try_as_str().flatten()?;
    let is_epoch = *function == *datetime::date_part() && part.eq_ignore_ascii_case("epoch");
    is_epoch.then_some(of)
}

/// A length that a difference of two decimals is compared with, as `condition::length_in_ticks` has that of two times.
/// `None` where the difference, or a cast of it to the type of the length, may have too many digits.
pub fn decimal_length(length: &ScalarValue, key_type: &DataType) -> Option<(i128, i128)> {
    let offset = match length {
        ScalarValue::Decimal32(value, ..) => i128::from((*value)?),
        ScalarValue::Decimal64(value, ..) => i128::from((*value)?),
        ScalarValue::Decimal128(value, ..) => (*value)?,
        _ => return None,
    };
    let (digits, scale) = decimal_digits(key_type)?;
    let (most, finest) = decimal_digits(&length.data_type())?;
    let more = u32::try_from(i16::from(finest) - i16::from(scale)).ok()?;
    let is_exact = has_room(Operator::Minus, key_type, key_type)
        && i16::from(digits) + 1 - i16::from(scale) <= i16::from(most) - i16::from(finest);
    let factor = 10_i128.checked_pow(more)?;
    is_exact.then_some((factor, offset))
}

/// A length in nanoseconds that is beyond all times, and that can be negated and added to.
pub const BEYOND_ALL: i128 = 1 << 120;

/// A number without a fraction as an integer, the last one if it is beyond all.
#[expect(
    clippy::cast_possible_truncation,
    reason = "such a cast gives the last integer"
)]
pub fn whole(number: f64) -> i128 {
    number as i128
}

#[expect(clippy::cast_precision_loss, reason = "as DataFusion converts it")]
pub fn float(number: i128) -> f64 {
    number as f64
}

/// A constant that is an integer.
pub fn integer(constant: &ScalarValue) -> Option<i128> {
    if !constant.data_type().is_integer() {
        return None;
    }
    match constant.cast_to(&DataType::Int64).ok()? {
        ScalarValue::Int64(number) => number.map(i128::from),
        _ => None,
    }
}

/// Whether it is a type of floats that has differences at a length.
pub fn is_float(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Float32 | DataType::Float64)
}

/// A constant that is a finite number.
#[expect(clippy::cast_precision_loss, reason = "the range has room for it")]
pub fn number(constant: &ScalarValue) -> Option<f64> {
    let number = match constant {
        ScalarValue::Float32(number) => number.map(f64::from),
        ScalarValue::Float64(number) => *number,
        ScalarValue::Int64(number) => number.map(|number| number as f64),
        _ => None,
    };
    number.filter(|number| number.is_finite())
}
