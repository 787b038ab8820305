//! A difference of a key and a bound that is compared with a constant, as ranges of the key.
//!
//! ```text
//!   q.ts - p.ts <= INTERVAL '1 hour'                 p.ts >= q.ts - 1 hour
//!   abs(p.ts - q.ts) < INTERVAL '1 hour'             p.ts > q.ts - 1 hour, p.ts < q.ts + 1 hour
//!   abs(p.id - q.id) <= 30                           the same, but all keys where q.id - 30 or q.id + 30 overflows
//!   extract(epoch FROM q.ts - p.ts) / 60 <= 5        p.ts >= q.ts - 301 seconds
//! ```
//!
//! Differences of integers wrap around, and DataFusion leaves the fractions of long durations out. Ranges of these may
//! have too many keys, so the comparison is evaluated again.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions::{datetime, math};
use datafusion::logical_expr::Operator;

use crate::expr::abs::AbsUdf;
use crate::expr::key_bound::KeyBoundUdf;
use crate::optimizer::condition::{
    Open, Operand, Range, Sides, comparison, length_in_ticks, nanoseconds, swapped,
};
use rmq_engine::Comparison;

/// A difference, and what is compared of it.
struct Difference<'a, E> {
    minuend: &'a E,
    subtrahend: &'a E,
    is_absolute: bool,
    /// If it is compared as a number: how much a second is.
    second: Option<f64>,
}

/// A length that a difference is compared with: the difference times the factor is compared with the offset.
struct Length {
    factor: i128,
    offset: i128,
    /// Whether the range may have keys for which the comparison does not hold.
    open: Open,
}

impl<E: Operand + PartialEq> Sides<'_, E> {
    /// The ranges of a comparison of a difference with a constant.
    pub(crate) fn difference(&self, left: &E, op: Operator, right: &E) -> Result<Vec<Range<E>>> {
        let stated = match (left.as_constant(), right.as_constant()) {
            (None, Some(constant)) => comparison(op).map(|c| (left, c, constant)),
            (Some(constant), None) => op.swap().and_then(comparison).map(|c| (right, c, constant)),
            _ => None,
        };
        let Some((compared, comparison, constant)) = stated else {
            return Ok(vec![]);
        };
        let Some(difference) = Difference::of(compared) else {
            return Ok(vec![]);
        };
        let Difference {
            minuend,
            subtrahend,
            is_absolute,
            ..
        } = difference;
        let (key, bound, is_minuend) = if (self.is_bound)(subtrahend) && (self.is_key)(minuend) {
            (minuend, subtrahend, true)
        } else if (self.is_bound)(minuend) && (self.is_key)(subtrahend) {
            (subtrahend, minuend, false)
        } else {
            return Ok(vec![]);
        };
        let key_type = key.data_type(self.keys)?;
        if key_type != bound.data_type(self.bounds)? || is_absolute && comparison.is_lower() {
            return Ok(vec![]);
        }
        let Some(Length {
            factor,
            offset,
            open,
        }) = difference.length(constant, comparison, &key_type)
        else {
            return Ok(vec![]);
        };
        // key - bound < c is key < bound + c, and bound - key < c is key > bound - c.
        let stated = if is_minuend {
            (comparison, offset)
        } else {
            (swapped(comparison), -offset)
        };
        let opposite = is_absolute.then_some((swapped(stated.0), -stated.1));
        let ranges = [Some(stated), opposite].into_iter().flatten();
        let ranges = ranges.map(|(comparison, offset)| {
            let mut conversion = KeyBoundUdf::new(comparison, (factor, factor), key_type.clone())
                .with_offset(offset);
            if key_type.is_integer() {
                conversion = conversion.with_opposite(-offset);
            }
            let comparison = conversion.converted_comparison();
            let bound = bound.clone().converted(conversion, None, self.bounds)?;
            let compared = (key.clone(), comparison, bound);
            Ok(Range { compared, open })
        });
        ranges.collect()
    }
}

impl<'a, E: Operand> Difference<'a, E> {
    fn of(expr: &'a E) -> Option<Self> {
        // DataFusion compares a duration with an interval as one, and numbers of several types as the widest.
        if let Some((operand, to)) = expr.cast_operand() {
            let is_read = matches!(
                to,
                DataType::Interval(_) | DataType::Float64 | DataType::Int64
            );
            // A number of seconds has fractions, which an integer has not.
            let keeps = |found: &Self| found.second.is_none() || *to == DataType::Float64;
            return Self::of(operand).filter(|found| is_read && keeps(found));
        }
        if let Some((left, op, right)) = expr.as_binary() {
            return match op {
                Operator::Minus => Some(Self {
                    minuend: left,
                    subtrahend: right,
                    is_absolute: false,
                    second: None,
                }),
                Operator::Divide => Self::of(left)?.scaled(number(right.as_constant()?)?.recip()),
                Operator::Multiply => match (left.as_constant(), right.as_constant()) {
                    (None, Some(by)) => Self::of(left)?.scaled(number(by)?),
                    (Some(by), None) => Self::of(right)?.scaled(number(by)?),
                    _ => None,
                },
                _ => None,
            };
        }
        let (function, arguments) = expr.as_call()?;
        match arguments {
            [of] if function.inner().is::<AbsUdf>() || *function == *math::abs() => Some(Self {
                is_absolute: true,
                ..Self::of(of)?
            }),
            [part, of] if *function == *datetime::date_part() => {
                let part = part.as_constant()?.try_as_str().flatten()?;
                let difference = Self::of(of)?;
                let is_first = part.eq_ignore_ascii_case("epoch") && difference.second.is_none();
                is_first.then_some(Self {
                    second: Some(1.0),
                    ..difference
                })
            }
            _ => None,
        }
    }

    /// The same, multiplied, if it is a number.
    fn scaled(self, by: f64) -> Option<Self> {
        let second = self.second.map(|second| second * by);
        let second = second.filter(|second| *second > 0.0 && second.is_finite());
        second.map(|second| Self {
            second: Some(second),
            ..self
        })
    }

    fn length(
        &self,
        constant: &ScalarValue,
        comparison: Comparison,
        key_type: &DataType,
    ) -> Option<Length> {
        if let Some(second) = self.second {
            let DataType::Timestamp(unit, _) = key_type else {
                return None;
            };
            let seconds = number(constant)? / second;
            // The fraction that DataFusion leaves out, and what the division does.
            let inexact = 1.0 + seconds.abs() * 1e-9;
            let seconds = if comparison.is_lower() {
                (seconds - inexact).floor()
            } else {
                (seconds + inexact).ceil()
            };
            return Some(Length {
                factor: nanoseconds(*unit),
                offset: whole(seconds).saturating_mul(nanoseconds(TimeUnit::Second)),
                open: Open::Implied,
            });
        }
        if key_type.is_integer() {
            let ScalarValue::Int64(Some(length)) = constant.cast_to(&DataType::Int64).ok()? else {
                return None;
            };
            let is_integer = constant.data_type().is_integer();
            return (self.is_absolute && is_integer && length >= 0).then_some(Length {
                factor: 1,
                offset: length.into(),
                open: Open::Implied,
            });
        }
        let (factor, offset) = length_in_ticks(constant, key_type)?;
        let open = Open::Never;
        Some(Length {
            factor,
            offset,
            open,
        })
    }
}

/// A number without a fraction as an integer, the last one if it is beyond all.
#[expect(
    clippy::cast_possible_truncation,
    reason = "such a cast gives the last integer"
)]
fn whole(number: f64) -> i128 {
    number as i128
}

/// A constant that is a number.
#[expect(clippy::cast_precision_loss, reason = "the range has room for it")]
fn number(constant: &ScalarValue) -> Option<f64> {
    let number = match constant {
        ScalarValue::Float64(number) => *number,
        ScalarValue::Int64(number) => number.map(|number| number as f64),
        _ => None,
    };
    number.filter(|number| number.is_finite())
}
