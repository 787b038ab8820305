//! Range keys that are whole numbers of some unit: integers, decimals, dates and timestamps. Beside each there is a
//! next one, so keys can be divided into intervals that share no end.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Int64Type, UInt64Type};
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

/// A number as a value of such a type; `None` if it is beyond all of them.
///
/// # Errors
/// Arrow's, if it is another type.
pub(super) fn value(number: i128, data_type: &DataType) -> Result<Option<ScalarValue>> {
    match data_type {
        DataType::Decimal128(precision, scale) => {
            let value = ScalarValue::Decimal128(Some(number), *precision, *scale);
            return Ok(Some(value));
        }
        DataType::UInt64 => {
            let value = u64::try_from(number).ok();
            return Ok(value.map(|value| ScalarValue::UInt64(Some(value))));
        }
        _ => {}
    }
    let number: ArrayRef = Arc::new(Int64Array::from(vec![i64::try_from(number).ok()]));
    let number = match data_type {
        DataType::Date32 => cast(&number, &DataType::Int32)?,
        _ => number,
    };
    let value = ScalarValue::try_from_array(&cast(&number, data_type)?, 0)?;
    Ok(Some(value).filter(|value| !value.is_null()))
}

/// The number of a value of such a type.
pub(crate) fn number(value: &ScalarValue) -> Option<i128> {
    let values = value.to_array().ok()?;
    let numbers = is_whole_number(values.data_type()).then(|| numbers(&values).ok())??;
    numbers.is_valid(0).then(|| numbers.value(0))
}
