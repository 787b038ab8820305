//! What the integers mean that values of a type are stored as, so that values of several units compare exactly.

use arrow::datatypes::{DataType, IntervalMonthDayNano, TimeUnit};

/// What values are of which a difference has a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number.
    Integer,
    /// A date or a timestamp.
    Instant,
    /// The time since midnight.
    TimeOfDay,
    /// A length of time.
    Duration,
}

/// A day has 24 hours.
pub const NANOSECONDS_PER_DAY: i128 = 86_400_000_000_000;

/// How many nanoseconds a unit has.
pub fn nanoseconds(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

/// The nanoseconds of the days and the time of an interval.
pub fn length(interval: IntervalMonthDayNano) -> i128 {
    i128::from(interval.days) * NANOSECONDS_PER_DAY + i128::from(interval.nanoseconds)
}

/// The interval back; `None` if one of its parts has none.
pub fn opposite(interval: IntervalMonthDayNano) -> Option<IntervalMonthDayNano> {
    Some(IntervalMonthDayNano::new(
        interval.months.checked_neg()?,
        interval.days.checked_neg()?,
        interval.nanoseconds.checked_neg()?,
    ))
}

/// What values of a type are, and how many nanoseconds the integer 1 has, or 1 for integers. `None` for types that are
/// not stored as integers of at most 64 bits, and for decimals.
pub fn ticks(data_type: &DataType) -> Option<(Kind, i128)> {
    Some(match data_type {
        integer if integer.is_integer() => (Kind::Integer, 1),
        DataType::Date32 => (Kind::Instant, NANOSECONDS_PER_DAY),
        DataType::Date64 => (Kind::Instant, nanoseconds(TimeUnit::Millisecond)),
        DataType::Timestamp(of, _) => (Kind::Instant, nanoseconds(*of)),
        DataType::Time32(of) | DataType::Time64(of) => (Kind::TimeOfDay, nanoseconds(*of)),
        DataType::Duration(of) => (Kind::Duration, nanoseconds(*of)),
        _ => return None,
    })
}

/// Whether a type has a time zone.
pub fn has_zone(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Timestamp(_, Some(_)))
}
