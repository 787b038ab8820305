//! A bound at an offset, as a key of the type that it is compared with. Unlike a sum it never overflows, and a time of
//! day does not pass midnight.
//!
//! ```text
//!   p.t  >= rmq_bound('>=', q.t, INTERVAL '-1 hour', 'Time64(µs)')       of 00:30 all times from midnight on
//!   p.id <= rmq_bound('<', q.id, 5, 'Int64')                             the last key before q.id + 5
//! ```

use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{Array, ArrayRef, PrimitiveArray, make_array};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, IntervalMonthDayNano};
use chrono::{DateTime, Days, Months, NaiveDateTime, TimeDelta, TimeZone, offset::LocalResult};
use datafusion_common::{Result, ScalarValue, internal_err, plan_datafusion_err, plan_err};
use datafusion_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};
use rmq_engine::Comparison;

use crate::expr::key_bound::{KeyBoundUdf, comparison_from, integer_limits, integers, of_type};
use crate::expr::ticks::{Kind, NANOSECONDS_PER_DAY, has_zone, length, opposite, ticks};

/// The function `rmq_bound(comparison, value, offset, type)`: the least, or the greatest, key of a type that compares
/// so with the value plus the offset. NULL if there is none. An offset of more than 64 bits is a text: of an integer,
/// or of the nanoseconds of a time.
///
/// A sum that is finer than the value's unit is rounded down to it, unless a date is compared with timestamps. Days and
/// months are added in the calendar of the value's time zone: where the clocks leave a time out, the bound is the first
/// one after it, and where they show it twice, the first of both.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct ShiftedBoundUdf {
    signature: Signature,
}

impl ShiftedBoundUdf {
    /// The function.
    pub fn new() -> Self {
        Self {
            signature: Signature::any(4, Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for ShiftedBoundUdf {
    fn name(&self) -> &'static str {
        "rmq_bound"
    }

    fn display_name(&self, args: &[Expr]) -> Result<String> {
        Ok(match args {
            [_, value, offset, _] => format!("{}({value}, {offset})", self.name()),
            _ => self.name().to_string(),
        })
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        internal_err!("its type is an argument")
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let (Some(value), [comparison, _, offset, key_type]) =
            (args.arg_fields.get(1), args.scalar_arguments)
        else {
            return plan_err!("rmq_bound has four arguments");
        };
        let sum = Sum::from_arguments(value.data_type(), *comparison, *offset, *key_type)?;
        Ok(Arc::new(Field::new(
            self.name(),
            sum.bound.key_type().clone(),
            true,
        )))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [comparison, value, offset, key_type] = args.args.as_slice() else {
            return internal_err!("rmq_bound has four arguments");
        };
        let scalar = |of: &ColumnarValue| match of {
            ColumnarValue::Scalar(constant) => Some(constant.clone()),
            ColumnarValue::Array(_) => None,
        };
        let (comparison, offset, key_type) = (scalar(comparison), scalar(offset), scalar(key_type));
        let sum = Sum::from_arguments(
            &value.data_type(),
            comparison.as_ref(),
            offset.as_ref(),
            key_type.as_ref(),
        )?;
        let values = value.to_array(args.number_rows)?;
        if let Some(keys) = sum.fast_keys(&values)? {
            return Ok(ColumnarValue::Array(keys));
        }
        let values = integers(&values)?;
        let key_type = sum.bound.key_type();
        let Some(limits) = integer_limits(key_type) else {
            return internal_err!("a {key_type} is not stored as an integer");
        };
        let keys = values.into_iter();
        let keys: Vec<_> = keys
            .map(|value| sum.bound.convert(sum.of(value?), limits))
            .collect();
        Ok(ColumnarValue::Array(of_type(&keys, key_type)?))
    }
}

/// The function `(timestamp, interval)` that adds an interval in the calendar of the timestamp's zone, as DataFusion
/// does. But where the clocks leave the sum out, or show it twice, it is that of `rmq_bound` and no error.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct ZonedSumUdf {
    signature: Signature,
}

impl ZonedSumUdf {
    /// The function.
    pub fn new() -> Self {
        Self {
            signature: Signature::any(2, Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for ZonedSumUdf {
    fn name(&self) -> &'static str {
        "rmq_zoned_sum"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        match arg_types {
            [timestamp @ DataType::Timestamp(_, Some(_)), _] => Ok(timestamp.clone()),
            other => internal_err!("{other:?} has no time zone"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [timestamps, ColumnarValue::Scalar(interval)] = args.args.as_slice() else {
            return internal_err!("a constant interval is added to a timestamp");
        };
        let timestamps = timestamps.to_array(args.number_rows)?;
        let sums = sums(&timestamps, interval)?;
        let sums = of_type(&sums, timestamps.data_type())?;
        Ok(ColumnarValue::Array(sums))
    }
}

/// Timestamps plus an interval as integers, which may be beyond their type.
fn sums(timestamps: &ArrayRef, interval: &ScalarValue) -> Result<Vec<Option<i128>>> {
    let data_type = timestamps.data_type();
    let key_type = data_type.clone();
    let sum = Sum::try_new(data_type, Comparison::AtLeast, Some(interval), key_type)?;
    let timestamps = integers(timestamps)?.into_iter();
    Ok(timestamps
        .map(|timestamp| Some(sum.of(timestamp?)))
        .collect())
}

/// Timestamps plus an interval, as [`ZonedSumUdf`] adds them but with the last time of the type where a sum is beyond
/// that, and for which rows it is.
pub fn saturating_sums(
    timestamps: &ArrayRef,
    interval: IntervalMonthDayNano,
) -> Result<(ArrayRef, Vec<bool>)> {
    let sums = sums(
        timestamps,
        &ScalarValue::IntervalMonthDayNano(Some(interval)),
    )?;
    let (least, greatest) = (i128::from(i64::MIN), i128::from(i64::MAX));
    let clamp = |sum: &Option<i128>| sum.map(|sum| sum.clamp(least, greatest));
    let clamped: Vec<_> = sums.iter().map(clamp).collect();
    let beyond = clamped
        .iter()
        .zip(&sums)
        .map(|(clamped, sum)| clamped != sum);
    let beyond = beyond.collect();
    Ok((of_type(&clamped, timestamps.data_type())?, beyond))
}

/// A sum with an offset, and its conversion to a key.
struct Sum {
    /// How many units of the sum one of the value has.
    ticks_of_value: i128,
    /// The nanoseconds of a unit of the sum, or 1.
    tick: i128,
    zone: Option<Tz>,
    offset: Offset,
    bound: KeyBoundUdf,
}

enum Offset {
    /// In units of the sum.
    Length(i128),
    Calendar(IntervalMonthDayNano),
}

impl Sum {
    fn from_arguments(
        value_type: &DataType,
        comparison: Option<&ScalarValue>,
        offset: Option<&ScalarValue>,
        key_type: Option<&ScalarValue>,
    ) -> Result<Self> {
        let text = |of: Option<&ScalarValue>| {
            let text = of.and_then(|of| of.try_as_str().flatten());
            text.map(str::to_string)
        };
        let Some(comparison) = text(comparison).as_deref().and_then(comparison_from) else {
            return plan_err!("rmq_bound: '>=', '>', '<=' or '<' is needed first");
        };
        let key_type = text(key_type)
            .and_then(|name| name.parse::<DataType>().ok())
            .ok_or_else(|| plan_datafusion_err!("rmq_bound: the last argument names a type"))?;
        Self::try_new(value_type, comparison, offset, key_type)
    }

    fn try_new(
        value_type: &DataType,
        comparison: Comparison,
        offset: Option<&ScalarValue>,
        key_type: DataType,
    ) -> Result<Self> {
        let value_type = match value_type {
            DataType::Dictionary(_, value) => value.as_ref(),
            other => other,
        };
        let (Some((kind, value_tick)), Some((key_kind, key_tick))) =
            (ticks(value_type), ticks(&key_type))
        else {
            return plan_err!(
                "rmq_bound: integers, dates and times have bounds of their types, not {value_type} of {key_type}"
            );
        };
        if kind != key_kind || has_zone(value_type) != has_zone(&key_type) {
            return plan_err!("rmq_bound: a {value_type} is compared with no {key_type}");
        }
        // A date is its midnight, which is compared with timestamps.
        let is_midnight = *value_type == DataType::Date32 && key_tick < value_tick;
        let tick = if is_midnight { key_tick } else { value_tick };
        let zone = match value_type {
            DataType::Timestamp(_, Some(zone)) => Some(zone.parse::<Tz>()?),
            _ => None,
        };
        let offset = match (kind, offset) {
            (Kind::Integer, Some(ScalarValue::Int64(Some(offset)))) => {
                Offset::Length(i128::from(*offset))
            }
            // What SQL has no literal for: integers of more than 64 bits, and nanoseconds of as many.
            (Kind::Integer, Some(text)) if let Some(length) = integer_in(text) => {
                Offset::Length(length)
            }
            (_, Some(text)) if let Some(length) = integer_in(text) => {
                Offset::Length(length.div_euclid(tick))
            }
            (Kind::Instant, Some(ScalarValue::IntervalMonthDayNano(Some(offset))))
                if offset.months != 0 || offset.days != 0 && zone.is_some() =>
            {
                Offset::Calendar(*offset)
            }
            (
                Kind::Instant | Kind::TimeOfDay | Kind::Duration,
                Some(ScalarValue::IntervalMonthDayNano(Some(offset))),
            ) if offset.months == 0 => Offset::Length(length(*offset).div_euclid(tick)),
            (_, offset) => {
                let shown = offset.map_or_else(|| "no constant".to_string(), ToString::to_string);
                return plan_err!("rmq_bound: the offset {shown} is none of a {value_type}");
            }
        };
        let factors = if key_tick == tick {
            (1, 1)
        } else {
            (key_tick, tick)
        };
        Ok(Self {
            ticks_of_value: value_tick / tick,
            tick,
            zone,
            offset,
            bound: KeyBoundUdf::new(comparison, factors, key_type),
        })
    }

    /// The keys of values of 64 bits in the unit of the keys, which most are, without 128 bits. `None` for others.
    fn fast_keys(&self, values: &ArrayRef) -> Result<Option<ArrayRef>> {
        let bound = &self.bound;
        let is_stored = |of: &DataType| {
            of.primitive_width() == Some(size_of::<i64>()) && *of != DataType::UInt64
        };
        let is_same_unit = (bound.factor, bound.bound_factor) == (1, 1)
            && is_stored(values.data_type())
            && is_stored(&bound.key_type);
        let Offset::Length(length) = self.offset else {
            return Ok(None);
        };
        let shift = match bound.comparison {
            Comparison::AtLeast | Comparison::AtMost => length,
            Comparison::Above => length + 1,
            Comparison::Below => length - 1,
        };
        let Some(shift) = i64::try_from(shift).ok().filter(|_| is_same_unit) else {
            return Ok(None);
        };
        let values = values.to_data().into_builder().data_type(DataType::Int64);
        let values = PrimitiveArray::<Int64Type>::from(values.build()?);
        let is_lower = bound.comparison.is_lower();
        // All keys are above a sum that is too small, and below one that is too large.
        let last = if is_lower { i64::MIN } else { i64::MAX };
        let beyond = (is_lower == (shift < 0)).then_some(last);
        let keys = values.unary_opt::<_, Int64Type>(|value| value.checked_add(shift).or(beyond));
        let keys = keys.to_data().into_builder();
        let keys = keys.data_type(bound.key_type.clone()).build()?;
        Ok(Some(make_array(keys)))
    }

    /// The value plus the offset, in units of the sum; beyond all keys where the calendar ends.
    fn of(&self, value: i128) -> i128 {
        let value = value * self.ticks_of_value;
        match self.offset {
            Offset::Length(length) => value + length,
            Offset::Calendar(interval) => {
                let sum = later(value * self.tick, interval, self.zone);
                let is_back = (interval.months, interval.days) < (0, 0);
                let beyond = if is_back { i128::MIN } else { i128::MAX };
                sum.map_or(beyond, |sum| sum.div_euclid(self.tick))
            }
        }
    }
}

/// Days and months that are added to a later time never give one that is so much earlier: by a day where a month is
/// shorter, and by what clocks are set back.
pub const MOST_BACK: IntervalMonthDayNano = IntervalMonthDayNano {
    months: 0,
    days: 0,
    nanoseconds: 48 * 3_600_000_000_000,
};

/// What is added to times of this type in the calendar: months to any timestamps, and days where these have a time
/// zone.
pub fn calendar_offset(
    key: &DataType,
    offset: &ScalarValue,
    forward: bool,
) -> Option<IntervalMonthDayNano> {
    let (DataType::Timestamp(_, zone), ScalarValue::IntervalMonthDayNano(Some(offset))) =
        (key, offset)
    else {
        return None;
    };
    let is_of_calendar = offset.months != 0 || zone.is_some() && offset.days != 0;
    let added = if forward {
        Some(*offset)
    } else {
        opposite(*offset)
    };
    added.filter(|_| is_of_calendar)
}

/// The integer that a text is, which is short enough to be added to any key.
fn integer_in(text: &ScalarValue) -> Option<i128> {
    let integer: i128 = text.try_as_str()??.parse().ok()?;
    Some(integer.clamp(i128::MIN / 4, i128::MAX / 4))
}

/// How many days the calendar repeats itself after.
const DAYS_PER_ERA: i128 = 146_097;

/// Nanoseconds of the epoch that are an interval later. `None` beyond the calendar.
fn later(instant: i128, interval: IntervalMonthDayNano, zone: Option<Tz>) -> Option<i128> {
    // The calendar of chrono is shorter than that of timestamps in microseconds.
    let days = instant.div_euclid(NANOSECONDS_PER_DAY);
    let eras = if days.abs() < 600 * DAYS_PER_ERA {
        0
    } else {
        days.div_euclid(DAYS_PER_ERA)
    };
    let moved = eras * DAYS_PER_ERA * NANOSECONDS_PER_DAY;
    let utc = from_nanoseconds(instant - moved)?;
    let local = match &zone {
        Some(zone) => zone.from_utc_datetime(&utc).naive_local(),
        None => utc,
    };
    let months = Months::new(interval.months.unsigned_abs());
    let local = if interval.months < 0 {
        local.checked_sub_months(months)?
    } else {
        local.checked_add_months(months)?
    };
    let days = Days::new(u64::from(interval.days.unsigned_abs()));
    let local = if interval.days < 0 {
        local.checked_sub_days(days)?
    } else {
        local.checked_add_days(days)?
    };
    let utc = match &zone {
        Some(zone) => first_instant(local, *zone)?,
        None => local,
    };
    let utc = utc.and_utc();
    let nanoseconds =
        i128::from(utc.timestamp()) * 1_000_000_000 + i128::from(utc.timestamp_subsec_nanos());
    Some(nanoseconds + i128::from(interval.nanoseconds) + moved)
}

fn from_nanoseconds(instant: i128) -> Option<NaiveDateTime> {
    let seconds = i64::try_from(instant.div_euclid(1_000_000_000)).ok()?;
    let rest = u32::try_from(instant.rem_euclid(1_000_000_000)).ok()?;
    Some(DateTime::from_timestamp(seconds, rest)?.naive_utc())
}

/// The first instant, in UTC, at which the clocks of a zone show a time, or a later one where they leave it out.
fn first_instant(local: NaiveDateTime, zone: Tz) -> Option<NaiveDateTime> {
    match zone.from_local_datetime(&local) {
        LocalResult::Single(instant) | LocalResult::Ambiguous(instant, _) => {
            return Some(instant.naive_utc());
        }
        LocalResult::None => {}
    }
    // No zone is so far from UTC. The clocks are set on at a whole second.
    let far = TimeDelta::hours(26);
    let mut before = local.checked_sub_signed(far)?.and_utc().timestamp();
    let mut after = local.checked_add_signed(far)?.and_utc().timestamp();
    while after - before > 1 {
        let middle = before + (after - before) / 2;
        let instant = DateTime::from_timestamp(middle, 0)?.naive_utc();
        if zone.from_utc_datetime(&instant).naive_local() < local {
            before = middle;
        } else {
            after = middle;
        }
    }
    Some(DateTime::from_timestamp(after, 0)?.naive_utc())
}
