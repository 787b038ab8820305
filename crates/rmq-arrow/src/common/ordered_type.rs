//! Types that have an order, and the layout of the keys that represent their values in an index.

use arrow::datatypes::{DataType, IntervalUnit};
use datafusion_common::{Result, plan_err};

/// How the order-preserving keys of a type are derived from its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyLayout {
    /// Arrow's own bits of this width, in this encoding.
    Native(KeyWidth, NativeOrder),
    /// Values of up to 16 bits, converted to unsigned 32-bit keys.
    Narrow,
    /// `IntervalDayTime`: days above milliseconds, in 64 bits.
    DayTime,
    /// `IntervalMonthDayNano`: months above days above nanoseconds, in 128 bits.
    MonthDayNano,
    /// The rank among the distinct values, in 32 bits.
    Rank,
    /// A column of type Null.
    AllNull,
}

/// The bits of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyWidth {
    /// 32 bits.
    W32,
    /// 64 bits.
    W64,
    /// 128 bits.
    W128,
}

/// How Arrow's bits are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NativeOrder {
    /// As unsigned integers.
    Unsigned,
    /// As signed integers.
    Signed,
    /// As floats, in IEEE total order.
    Float,
}

/// The key layout of a type, `None` for a type without an order.
pub fn key_layout(data_type: &DataType) -> Option<KeyLayout> {
    use DataType as T;
    use KeyLayout::{AllNull, DayTime, MonthDayNano, Narrow, Native, Rank};
    use KeyWidth::{W32, W64, W128};
    use NativeOrder::{Float, Signed, Unsigned};
    Some(match data_type {
        T::Null => AllNull,
        T::Boolean | T::Int8 | T::Int16 | T::UInt8 | T::UInt16 | T::Float16 => Narrow,
        T::UInt32 => Native(W32, Unsigned),
        T::UInt64 => Native(W64, Unsigned),
        T::Float32 => Native(W32, Float),
        T::Float64 => Native(W64, Float),
        T::Int32
        | T::Date32
        | T::Time32(_)
        | T::Decimal32(..)
        | T::Interval(IntervalUnit::YearMonth) => Native(W32, Signed),
        T::Int64
        | T::Date64
        | T::Time64(_)
        | T::Timestamp(..)
        | T::Duration(_)
        | T::Decimal64(..) => Native(W64, Signed),
        T::Decimal128(..) => Native(W128, Signed),
        T::Interval(IntervalUnit::DayTime) => DayTime,
        T::Interval(IntervalUnit::MonthDayNano) => MonthDayNano,
        T::Utf8
        | T::LargeUtf8
        | T::Utf8View
        | T::Binary
        | T::LargeBinary
        | T::BinaryView
        | T::FixedSizeBinary(_)
        | T::Decimal256(..) => Rank,
        T::Dictionary(_, value) => return key_layout(value),
        _ => return None,
    })
}

/// The type of a minimum: for a dictionary the type of its values, as `DataFusion`'s MIN returns it.
pub fn value_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, value) => value_type(value),
        other => other.clone(),
    }
}

/// Whether values of this type have an order.
pub fn is_ordered(data_type: &DataType) -> bool {
    key_layout(data_type).is_some()
}

/// Checks that values of this type have an order.
///
/// # Errors
/// A planning error that names the function, the column and the type.
pub fn check_ordered(function: &str, column: &str, data_type: &DataType) -> Result<()> {
    if is_ordered(data_type) {
        return Ok(());
    }
    plan_err!(
        "{function}: {column} is a {data_type}, which has no order that range queries know; numbers, decimals, dates, \
         times, intervals, booleans, strings, binaries and dictionaries of these have one"
    )
}

/// Whether values of this type are wider than a key, so that their ranks are their keys.
pub fn is_ranked(data_type: &DataType) -> bool {
    key_layout(data_type) == Some(KeyLayout::Rank)
}

/// Whether Arrow's buffer of values of this type serves as the buffer of their keys.
pub fn is_borrowed(data_type: &DataType) -> bool {
    let is_plain = !matches!(data_type, DataType::Dictionary(..));
    is_plain && matches!(key_layout(data_type), Some(KeyLayout::Native(..)))
}

/// Bytes of a key of this type: 4, 8 or 16.
pub fn key_bytes(data_type: &DataType) -> usize {
    match key_layout(data_type) {
        Some(KeyLayout::Native(KeyWidth::W64, _) | KeyLayout::DayTime) => 8,
        Some(KeyLayout::Native(KeyWidth::W128, _) | KeyLayout::MonthDayNano) => 16,
        _ => 4,
    }
}
