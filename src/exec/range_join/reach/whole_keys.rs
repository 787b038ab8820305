//! Range keys that are whole numbers of some unit: integers, decimals, dates and timestamps. Beside each there is a
//! next one, so keys can be divided into intervals that share no end.

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, PrimitiveArray};
use arrow::compute::{cast, max, min};
use arrow::datatypes::{
    ArrowNumericType, DataType, Decimal128Type, Int64Type, TimeUnit, UInt64Type,
};
use datafusion::common::{Result, ScalarValue};

/// Whether the values of a type are whole numbers of some unit.
pub(crate) fn is_whole_number(data_type: &DataType) -> bool {
    data_type.is_integer()
        || matches!(
            data_type,
            DataType::Decimal128(..)
                | DataType::Date32
                | DataType::Date64
                | DataType::Timestamp(..)
        )
}

/// The smallest and the greatest number that is a value of such a type.
pub(super) fn limits(data_type: &DataType) -> (i128, i128) {
    match data_type {
        DataType::Int8 => (i8::MIN.into(), i8::MAX.into()),
        DataType::Int16 => (i16::MIN.into(), i16::MAX.into()),
        DataType::Int32 | DataType::Date32 => (i32::MIN.into(), i32::MAX.into()),
        DataType::UInt8 => (0, u8::MAX.into()),
        DataType::UInt16 => (0, u16::MAX.into()),
        DataType::UInt32 => (0, u32::MAX.into()),
        DataType::UInt64 => (0, u64::MAX.into()),
        DataType::Decimal128(..) => (i128::MIN, i128::MAX),
        _ => (i64::MIN.into(), i64::MAX.into()),
    }
}

/// Values of such a type as numbers.
///
/// # Errors
/// Arrow's, if they are of another type.
pub(crate) fn numbers(values: &ArrayRef) -> Result<Decimal128Array> {
    Ok(match values.data_type() {
        DataType::Decimal128(..) => values.as_primitive::<Decimal128Type>().clone(),
        DataType::UInt64 => values.as_primitive::<UInt64Type>().unary(i128::from),
        DataType::Date32 => numbers(&cast(values, &DataType::Int32)?)?,
        _ => {
            let values = cast(values, &DataType::Int64)?;
            values.as_primitive::<Int64Type>().unary(i128::from)
        }
    })
}

/// The least and the greatest number among values of such a type; `None` if all are NULL.
///
/// # Errors
/// Arrow's, if they are of another type.
pub(crate) fn ends(values: &ArrayRef) -> Result<Option<(i128, i128)>> {
    fn of<T: ArrowNumericType>(values: &PrimitiveArray<T>) -> Option<(i128, i128)>
    where
        T::Native: Into<i128>,
    {
        let ends = min(values).zip(max(values))?;
        Some((ends.0.into(), ends.1.into()))
    }
    Ok(match values.data_type() {
        DataType::Decimal128(..) => of(values.as_primitive::<Decimal128Type>()),
        DataType::UInt64 => of(values.as_primitive::<UInt64Type>()),
        DataType::Date32 => ends(&cast(values, &DataType::Int32)?)?,
        _ => of(cast(values, &DataType::Int64)?.as_primitive::<Int64Type>()),
    })
}

/// A number as a value of such a type; `None` if it is beyond all of them, or if it is another type.
pub(super) fn value(number: i128, data_type: &DataType) -> Option<ScalarValue> {
    use ScalarValue as V;
    let whole = || i64::try_from(number).ok();
    Some(match data_type {
        DataType::Int8 => V::Int8(Some(number.try_into().ok()?)),
        DataType::Int16 => V::Int16(Some(number.try_into().ok()?)),
        DataType::Int32 => V::Int32(Some(number.try_into().ok()?)),
        DataType::Int64 => V::Int64(Some(whole()?)),
        DataType::UInt8 => V::UInt8(Some(number.try_into().ok()?)),
        DataType::UInt16 => V::UInt16(Some(number.try_into().ok()?)),
        DataType::UInt32 => V::UInt32(Some(number.try_into().ok()?)),
        DataType::UInt64 => V::UInt64(Some(number.try_into().ok()?)),
        DataType::Decimal128(precision, scale) => V::Decimal128(Some(number), *precision, *scale),
        DataType::Date32 => V::Date32(Some(number.try_into().ok()?)),
        DataType::Date64 => V::Date64(Some(whole()?)),
        DataType::Timestamp(unit, zone) => {
            let (time, zone) = (Some(whole()?), zone.clone());
            match unit {
                TimeUnit::Second => V::TimestampSecond(time, zone),
                TimeUnit::Millisecond => V::TimestampMillisecond(time, zone),
                TimeUnit::Microsecond => V::TimestampMicrosecond(time, zone),
                TimeUnit::Nanosecond => V::TimestampNanosecond(time, zone),
            }
        }
        _ => return None,
    })
}

/// The number of a value of such a type.
pub(crate) fn number(value: &ScalarValue) -> Option<i128> {
    use ScalarValue as V;
    Some(match value {
        V::Int8(number) => (*number)?.into(),
        V::Int16(number) => (*number)?.into(),
        V::Int32(number) | V::Date32(number) => (*number)?.into(),
        V::Int64(number)
        | V::Date64(number)
        | V::TimestampSecond(number, _)
        | V::TimestampMillisecond(number, _)
        | V::TimestampMicrosecond(number, _)
        | V::TimestampNanosecond(number, _) => (*number)?.into(),
        V::UInt8(number) => (*number)?.into(),
        V::UInt16(number) => (*number)?.into(),
        V::UInt32(number) => (*number)?.into(),
        V::UInt64(number) => (*number)?.into(),
        V::Decimal128(number, ..) => (*number)?,
        _ => return None,
    })
}
