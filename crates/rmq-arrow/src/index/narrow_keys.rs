//! Order-preserving unsigned keys of the types whose own bits do not sort as their values, and the values of such keys.

#![allow(
    clippy::cast_possible_truncation,
    reason = "keys are cut into the parts they are made of"
)]

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{
    DataType, Float16Type, Int8Type, Int16Type, IntervalDayTime, IntervalMonthDayNano, UInt8Type,
    UInt16Type,
};

pub const SIGN_32: u32 = 1 << 31;
const SIGN_64: u64 = 1 << 63;

/// Computes the 32-bit keys of booleans or of values of 8 or 16 bits; NULLs have arbitrary keys.
pub fn widen(values: &ArrayRef) -> Vec<u32> {
    fn signed(value: impl Into<i32>) -> u32 {
        value.into().cast_unsigned() ^ SIGN_32
    }
    match values.data_type() {
        DataType::Boolean => values.as_boolean().values().iter().map(u32::from).collect(),
        DataType::Int8 => values
            .as_primitive::<Int8Type>()
            .values()
            .iter()
            .map(|v| signed(*v))
            .collect(),
        DataType::Int16 => values
            .as_primitive::<Int16Type>()
            .values()
            .iter()
            .map(|v| signed(*v))
            .collect(),
        DataType::UInt8 => values
            .as_primitive::<UInt8Type>()
            .values()
            .iter()
            .map(|v| u32::from(*v))
            .collect(),
        DataType::UInt16 => values
            .as_primitive::<UInt16Type>()
            .values()
            .iter()
            .map(|v| u32::from(*v))
            .collect(),
        // `key_layout` calls no other type narrow.
        _ => {
            let floats = values.as_primitive::<Float16Type>().values();
            floats
                .iter()
                .map(|v| signed(fold_16(v.to_bits().cast_signed())))
                .collect()
        }
    }
}

/// Maps the bits of a 16-bit float to an integer in IEEE total order; its own inverse.
pub fn fold_16(bits: i16) -> i16 {
    bits ^ ((bits >> 15) & i16::MAX)
}

pub fn day_time_key(v: IntervalDayTime) -> u64 {
    let (days, millis) = (
        v.days.cast_unsigned() ^ SIGN_32,
        v.milliseconds.cast_unsigned() ^ SIGN_32,
    );
    u64::from(days) << 32 | u64::from(millis)
}

pub fn day_time(key: u64) -> IntervalDayTime {
    let part = |bits: u64| (bits as u32 ^ SIGN_32).cast_signed();
    IntervalDayTime::new(part(key >> 32), part(key))
}

pub fn month_day_nano_key(v: IntervalMonthDayNano) -> u128 {
    let (months, days) = (
        v.months.cast_unsigned() ^ SIGN_32,
        v.days.cast_unsigned() ^ SIGN_32,
    );
    let nanos = v.nanoseconds.cast_unsigned() ^ SIGN_64;
    u128::from(months) << 96 | u128::from(days) << 64 | u128::from(nanos)
}

pub fn month_day_nano(key: u128) -> IntervalMonthDayNano {
    let part = |bits: u128| (bits as u32 ^ SIGN_32).cast_signed();
    IntervalMonthDayNano::new(
        part(key >> 96),
        part(key >> 64),
        (key as u64 ^ SIGN_64).cast_signed(),
    )
}
