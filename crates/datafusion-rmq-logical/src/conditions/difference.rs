//! A difference of a key and a bound that is compared with a constant, or with a length that comes with the bound, as
//! ranges of the key.
//!
//! ```text
//!   q.ts - p.ts <= INTERVAL '1 hour'                 p.ts >= q.ts - 1 hour
//!   abs(p.ts - q.ts) < INTERVAL '1 hour'             p.ts > q.ts - 1 hour, p.ts < q.ts + 1 hour
//!   abs(p.price - q.price) <= 0.05                   the same, of decimals
//!   abs(p.id - q.id) <= 30                           the same, but all keys where q.id - 30 or q.id + 30 overflows
//!   p.id - q.id BETWEEN 0 AND 30                     p.id in [q.id, q.id + 30], or all keys
//!   q.id - p.id <= 30                                p.id >= q.id - 30, or all keys if there are some so low that it wraps
//!   q.id - p.id <= q.n                               p.id >= q.id - q.n, or all keys as before
//!   p.x - q.x BETWEEN 0 AND 0.5                      p.x in [q.x, q.x + 0.5], or a little more
//!   extract(epoch FROM q.ts - p.ts) / 60 <= 5        p.ts >= q.ts - 300 seconds, p.ts <= q.ts + 2^63 ticks
//!   extract(epoch FROM q.ts) - extract(epoch FROM p.ts) <= 300       p.ts >= q.ts - 301 seconds
//!   to_unixtime(q.ts) - to_unixtime(p.ts) <= 300                     p.ts >= q.ts - 302 seconds
//! ```
//!
//! Differences of integers wrap around, and those of floats and of two numbers of seconds are rounded. Ranges of these
//! may have too many keys, so the comparison is evaluated again. Floats need both ends: a difference that is NaN is
//! below all numbers or above all, by its sign, so it is in no range with two ends. `extract(epoch FROM …)` of a
//! difference is rounded where a float doesn't have all its digits. `seconds` are the ranges of exactly the keys for
//! which a comparison of it holds; joins that return rows take the one end that is meant, and evaluate the comparison
//! again.

mod constants;
mod lengths;

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion_common::{Result, ScalarValue};
use datafusion_expr::{Operator, ScalarUDF};
use datafusion_functions::math;

use crate::conditions::condition::{
    Open, Operand, Range, Sides, comparison, length_in_ticks, swapped,
};
use crate::conditions::difference::constants::{
    BEYOND_ALL, decimal_length, epoch_of, float, integer, is_float, number, part_where, seconds_of,
    whole, whole_epoch_of,
};
use crate::conditions::lossless_casts::keeps_values;
use crate::expr::abs::AbsUdf;
use crate::expr::float_bound::FloatBoundUdf;
use crate::expr::key_bound::{KeyBoundUdf, integer_limits};
use crate::expr::ticks::nanoseconds;
use rmq_engine::Comparison;

/// A difference, and what is compared of it.
struct Difference<'a, E> {
    minuend: &'a E,
    subtrahend: &'a E,
    is_absolute: bool,
    /// If it is compared as a number of seconds: by what that is multiplied, one after the other.
    scales: Option<Vec<Scale>>,
    /// The numbers that two times are made, if it is of these and not of times.
    numbers: Option<Numbers>,
    /// The type of integers to which it is cast, if it is.
    cast_to: Option<DataType>,
}

/// What numbers of seconds are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbers {
    Floats,
    Integers,
}

/// What a number of seconds is multiplied with, or divided by: a positive number.
#[derive(Debug, Clone, Copy)]
enum Scale {
    Multiply(f64),
    Divide(f64),
}

impl Scale {
    fn of(self, number: f64) -> f64 {
        match self {
            Self::Multiply(by) => number * by,
            Self::Divide(by) => number / by,
        }
    }
}

/// A length that a difference is compared with: the difference times the factor is compared with the offset.
struct Length {
    factor: i128,
    offset: i128,
    /// Whether the range may have keys for which the comparison does not hold.
    open: Open,
}

/// A difference that is compared with a constant.
struct Stated<'a, E> {
    difference: Difference<'a, E>,
    comparison: Comparison,
    constant: &'a ScalarValue,
}

/// What a difference is of.
struct Ends<'a, E> {
    key: &'a E,
    bound: &'a E,
    /// Whether the bound is subtracted from the key.
    is_of_bound: bool,
    data_type: DataType,
}

impl<E: Operand + PartialEq> Sides<'_, E> {
    /// The ranges of a comparison of a difference with a constant, or with a length.
    pub fn difference(&self, left: &E, op: Operator, right: &E) -> Result<Vec<Range<E>>> {
        let Some(stated) = Stated::of(left, op, right) else {
            return self.difference_and_length(left, op, right);
        };
        let Some(ends) = self.ends(&stated.difference)? else {
            return Ok(vec![]);
        };
        let is_absolute = stated.difference.is_absolute;
        if is_float(&ends.data_type) {
            let distance = number(stated.constant).filter(|_| stated.is_distance());
            let range = |(is_lower, length)| self.shifted_float(&ends, is_lower, length);
            let both = distance.map(|distance| [(true, -distance), (false, distance)]);
            return both.into_iter().flatten().map(range).collect();
        }
        let length = stated.length(&ends.data_type);
        let Some(length) = length.filter(|_| !is_absolute || !stated.comparison.is_lower()) else {
            return Ok(vec![]);
        };
        let Length { offset, open, .. } = length;
        let opposite = is_absolute.then_some((swapped(stated.comparison), -offset));
        let stated = [Some((stated.comparison, offset)), opposite];
        let limits = integer_limits(&ends.data_type).filter(|_| ends.data_type.is_integer());
        let ranges = stated.into_iter().flatten().map(|(comparison, at)| {
            let other = limits.map(|(least, greatest)| match comparison {
                _ if is_absolute => -at,
                lower if lower.is_lower() => greatest,
                _ => least,
            });
            self.shifted(&ends, comparison, (length.factor, at), other, open)
        });
        ranges.collect()
    }

    /// The ranges of exactly the keys for which a comparison of `extract(epoch FROM …)` of a difference holds. `None`
    /// for other conjuncts, and where these keys are no one range.
    pub fn seconds(&self, conjunct: &E) -> Result<Option<[Range<E>; 2]>> {
        let stated = conjunct.as_binary();
        let Some(stated) = stated.and_then(|(left, op, right)| Stated::of(left, op, right)) else {
            return Ok(None);
        };
        let Some(ends) = self.ends(&stated.difference)? else {
            return Ok(None);
        };
        let DataType::Timestamp(unit, _) = ends.data_type else {
            return Ok(None);
        };
        let Some((first, last)) = stated.ticks(unit) else {
            return Ok(None);
        };
        let tick = nanoseconds(unit);
        let range = |comparison, ticks: i128| {
            let offset = (tick, ticks * tick);
            self.shifted(&ends, comparison, offset, None, Open::Never)
        };
        Ok(Some([
            range(Comparison::AtLeast, first)?,
            range(Comparison::AtMost, last)?,
        ]))
    }

    /// The ranges of two comparisons of one difference of integers or of floats, `key - bound >= 0` and
    /// `key - bound <= 30`, if they are that. Neither comparison implies its range alone, as the difference may wrap
    /// around, or be NaN.
    pub fn between(&self, one: &E, other: &E) -> Result<Option<[Range<E>; 2]>> {
        let (Some(one), Some(other)) = (Stated::of_numbers(one), Stated::of_numbers(other)) else {
            return Ok(None);
        };
        let is_same = one.difference.minuend == other.difference.minuend
            && one.difference.subtrahend == other.difference.subtrahend
            && one.comparison.is_lower() != other.comparison.is_lower();
        let Some(ends) = self.ends(&one.difference)?.filter(|_| is_same) else {
            return Ok(None);
        };
        if is_float(&ends.data_type) {
            let (Some(at), Some(end)) = (number(one.constant), number(other.constant)) else {
                return Ok(None);
            };
            return Ok(Some([
                self.shifted_float(&ends, one.comparison.is_lower(), at)?,
                self.shifted_float(&ends, other.comparison.is_lower(), end)?,
            ]));
        }
        let (Some(at), Some(end)) = (integer(one.constant), integer(other.constant)) else {
            return Ok(None);
        };
        if !ends.data_type.is_integer() {
            return Ok(None);
        }
        let range = |comparison, at, other| {
            self.shifted(&ends, comparison, (1, at), Some(other), Open::Implied)
        };
        Ok(Some([
            range(one.comparison, at, end)?,
            range(other.comparison, end, at)?,
        ]))
    }

    /// The key and the bound of a difference, if it is of these.
    fn ends<'a>(&self, difference: &Difference<'a, E>) -> Result<Option<Ends<'a, E>>> {
        let (left, right) = (difference.minuend, difference.subtrahend);
        let (key, bound, is_of_bound) = if (self.is_bound)(right) && (self.is_key)(left) {
            (left, right, true)
        } else if (self.is_bound)(left) && (self.is_key)(right) {
            (right, left, false)
        } else {
            return Ok(None);
        };
        let data_type = key.data_type(self.keys)?;
        // Another cast may fail.
        let is_kept = |to: &DataType| {
            *to == DataType::Int64 || data_type.is_integer() && keeps_values(&data_type, to)
        };
        let is_cast = difference.cast_to.as_ref().is_some_and(|to| !is_kept(to));
        if is_cast || data_type != bound.data_type(self.bounds)? {
            return Ok(None);
        }
        Ok(Some(Ends {
            key,
            bound,
            is_of_bound,
            data_type,
        }))
    }

    /// The range of a difference, times the factor, that is compared with an offset. If `other` is the offset at the
    /// other end, it has all keys where one of both ends is no key.
    fn shifted(
        &self,
        ends: &Ends<'_, E>,
        comparison: Comparison,
        (factor, offset): (i128, i128),
        other: Option<i128>,
        open: Open,
    ) -> Result<Range<E>> {
        // key - bound < c is key < bound + c, and bound - key < c is key > bound - c.
        let (comparison, sign) = if ends.is_of_bound {
            (comparison, 1)
        } else {
            (swapped(comparison), -1)
        };
        let mut conversion = KeyBoundUdf::new(comparison, (factor, factor), ends.data_type.clone());
        conversion = conversion.with_offset(sign * offset);
        if let Some(other) = other {
            conversion = conversion.with_opposite(sign * other);
        }
        let comparison = conversion.converted_comparison();
        let bound = ends
            .bound
            .clone()
            .converted(conversion, None, self.bounds)?;
        let compared = (ends.key.clone(), comparison, bound);
        Ok(Range { compared, open })
    }

    /// The range of a difference of floats that is at least, or at most, a length.
    fn shifted_float(&self, ends: &Ends<'_, E>, is_lower: bool, length: f64) -> Result<Range<E>> {
        // key - bound <= c is key <= bound + c, and bound - key <= c is key >= bound - c.
        let (is_lower, length) = if ends.is_of_bound {
            (is_lower, length)
        } else {
            (!is_lower, -length)
        };
        let comparison = if is_lower {
            Comparison::AtLeast
        } else {
            Comparison::AtMost
        };
        let bound = FloatBoundUdf::new(is_lower, length);
        let shown = E::constant(bound.shown_length());
        let arguments = vec![ends.bound.clone(), shown];
        let bound = E::call(Arc::new(ScalarUDF::from(bound)), arguments, self.bounds)?;
        Ok(Range {
            compared: (ends.key.clone(), comparison, bound),
            open: Open::Implied,
        })
    }
}

impl<'a, E: Operand> Stated<'a, E> {
    fn of(left: &'a E, op: Operator, right: &'a E) -> Option<Self> {
        let (compared, op, constant) = match (left.as_constant(), right.as_constant()) {
            (None, Some(constant)) => (left, op, constant),
            (Some(constant), None) => (right, op.swap()?, constant),
            _ => return None,
        };
        Some(Self {
            difference: Difference::of(compared)?,
            comparison: comparison(op)?,
            constant,
        })
    }

    /// A comparison of a plain difference of numbers.
    fn of_numbers(conjunct: &'a E) -> Option<Self> {
        let (left, op, right) = conjunct.as_binary()?;
        let stated = Self::of(left, op, right)?;
        let is_plain = !stated.difference.is_absolute && stated.difference.scales.is_none();
        Some(stated).filter(|_| is_plain)
    }

    /// Whether it holds up to a distance.
    fn is_distance(&self) -> bool {
        let difference = &self.difference;
        difference.is_absolute && difference.scales.is_none() && !self.comparison.is_lower()
    }

    fn length(&self, key_type: &DataType) -> Option<Length> {
        self.difference
            .length(self.constant, self.comparison, key_type)
    }

    /// The first and the last difference for which the comparison holds, in ticks of this unit, if it is one of
    /// `extract(epoch FROM …)` and holds for all differences between these.
    fn ticks(&self, unit: TimeUnit) -> Option<(i128, i128)> {
        let difference = &self.difference;
        if difference.scales.is_none() || difference.numbers.is_some() {
            return None;
        }
        let constant = number(self.constant)?;
        let per_second = nanoseconds(TimeUnit::Second) / nanoseconds(unit);
        let holds = |ticks: i128| {
            let number = difference.scaled_seconds(float(ticks) / float(per_second));
            // As DataFusion orders floats.
            let compared = number.total_cmp(&constant);
            self.comparison.holds(&compared, &Ordering::Equal)
        };
        // In each of these the number never falls, or never rises.
        let parts = [(i64::MIN.into(), -1), (0, i64::MAX.into())];
        let mut found: Option<(i128, i128)> = None;
        for (first, last) in parts.into_iter().filter_map(|part| part_where(part, holds)) {
            match &mut found {
                Some((_, end)) if *end + 1 == first => *end = last,
                Some(_) => return None,
                None => found = Some((first, last)),
            }
        }
        found
    }
}

impl<'a, E: Operand> Difference<'a, E> {
    fn of(expr: &'a E) -> Option<Self> {
        // DataFusion compares a duration with an interval as one, and numbers of several types as the widest.
        if let Some((operand, to)) = expr.cast_operand() {
            // A number of seconds has fractions, which an integer has not, and which is a float already.
            let is_rounded = operand
                .cast_operand()
                .is_some_and(|(_, by_way_of)| by_way_of.is_floating());
            let keeps = |found: &Self| match to {
                DataType::Float64 => true,
                DataType::Interval(_) => found.scales.is_none(),
                // A float has not all digits of an integer.
                _ if to.is_integer() && is_rounded => false,
                _ => (to.is_integer() || to.is_decimal()) && found.scales.is_none(),
            };
            let difference = Self::of(operand).filter(keeps)?;
            let cast_to = to.is_integer().then(|| to.clone());
            return match (&difference.cast_to, &cast_to) {
                (Some(_), Some(_)) => None,
                (_, None) => Some(difference),
                (None, _) => Some(Self {
                    cast_to,
                    ..difference
                }),
            };
        }
        if let Some((left, op, right)) = expr.as_binary() {
            return match op {
                Operator::Minus => {
                    let whole = whole_epoch_of(left).zip(whole_epoch_of(right));
                    let epochs = whole.or_else(|| epoch_of(left).zip(epoch_of(right)));
                    let (minuend, subtrahend) = epochs.unwrap_or((left, right));
                    Some(Self {
                        minuend,
                        subtrahend,
                        is_absolute: false,
                        scales: epochs.map(|_| vec![]),
                        numbers: if whole.is_some() {
                            Some(Numbers::Integers)
                        } else {
                            epochs.map(|_| Numbers::Floats)
                        },
                        cast_to: None,
                    })
                }
                Operator::Divide => {
                    Self::of(left)?.scaled(Scale::Divide(number(right.as_constant()?)?))
                }
                Operator::Multiply => match (left.as_constant(), right.as_constant()) {
                    (None, Some(by)) => Self::of(left)?.scaled(Scale::Multiply(number(by)?)),
                    (Some(by), None) => Self::of(right)?.scaled(Scale::Multiply(number(by)?)),
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
            _ => {
                let difference = Self::of(seconds_of(expr)?)?;
                let is_first = difference.scales.is_none();
                is_first.then_some(Self {
                    scales: Some(vec![]),
                    ..difference
                })
            }
        }
    }

    /// The same, multiplied, if it is a number.
    fn scaled(mut self, by: Scale) -> Option<Self> {
        self.scales.as_mut()?.push(by);
        // The division of integers is another.
        let is_positive = by.of(1.0) > 0.0 && self.numbers != Some(Numbers::Integers);
        (is_positive && self.scaled_seconds(1.0).is_normal()).then_some(self)
    }

    /// The number that is compared where the difference has so many seconds.
    fn scaled_seconds(&self, seconds: f64) -> f64 {
        let of = if self.is_absolute {
            seconds.abs()
        } else {
            seconds
        };
        let scales = self.scales.iter().flatten();
        scales.fold(of, |number, scale| scale.of(number))
    }

    fn length(
        &self,
        constant: &ScalarValue,
        comparison: Comparison,
        key_type: &DataType,
    ) -> Option<Length> {
        if self.scales.is_some() {
            let DataType::Timestamp(unit, _) = key_type else {
                return None;
            };
            let seconds = number(constant)? / self.scaled_seconds(1.0);
            // How far apart floats are at the last times of a unit, and what the division does.
            let rounded = match (self.numbers, unit) {
                // The difference may wrap around.
                (Some(Numbers::Integers), TimeUnit::Second) => return None,
                // Each number is a second away at most.
                (Some(Numbers::Integers), _) => 2.0,
                (Some(Numbers::Floats), TimeUnit::Second) => 4096.0,
                (Some(Numbers::Floats), TimeUnit::Millisecond) => 4.0,
                _ => 1.0,
            };
            let inexact = rounded + seconds.abs() * 1e-9;
            let seconds = if comparison.is_lower() {
                (seconds - inexact).floor()
            } else {
                (seconds + inexact).ceil()
            };
            let offset = whole(seconds).saturating_mul(nanoseconds(TimeUnit::Second));
            return Some(Length {
                factor: nanoseconds(*unit),
                offset: offset.clamp(-BEYOND_ALL, BEYOND_ALL),
                open: Open::Implied,
            });
        }
        if key_type.is_integer() {
            let length = integer(constant).filter(|length| !self.is_absolute || *length >= 0);
            return length.map(|offset| Length {
                factor: 1,
                offset,
                open: if self.is_absolute {
                    Open::Implied
                } else {
                    Open::Wrapping
                },
            });
        }
        let length = decimal_length(constant, key_type);
        let (factor, offset) = length.or_else(|| length_in_ticks(constant, key_type))?;
        let open = Open::Never;
        Some(Length {
            factor,
            offset,
            open,
        })
    }
}
