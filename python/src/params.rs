//! Python values as parameters of a statement.

use std::collections::HashMap;

use arrow::array::{Array, new_empty_array};
use arrow::compute::concat;
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::binary::comparison_coercion;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDate, PyDateTime, PyDelta, PyDict, PyFloat, PyInt,
    PyMemoryView, PyString, PyTime, PyTzInfoAccess,
};
use pyo3_arrow::input::AnyArray;

use crate::errors::from_datafusion;

/// Converts a dict, whose values are for `$name`, or a sequence, for `$1`, `$2` and so on.
pub fn values(params: &Bound<'_, PyAny>) -> PyResult<ParamValues> {
    if let Ok(named) = params.cast::<PyDict>() {
        let mut values = HashMap::new();
        for (name, value) in named {
            let name: String = name.extract()?;
            let scalar = scalar(&value).map_err(|error| named_error(&value, &name, &error))?;
            values.insert(name, scalar);
        }
        return Ok(values.into());
    }
    let mut values = vec![];
    for (i, value) in params.try_iter()?.enumerate() {
        let value = value?;
        let scalar = scalar(&value);
        values.push(scalar.map_err(|error| named_error(&value, &(i + 1).to_string(), &error))?);
    }
    Ok(values.into())
}

fn named_error(value: &Bound<'_, PyAny>, name: &str, error: &PyErr) -> PyErr {
    let reason = error.value(value.py());
    PyTypeError::new_err(format!("parameter ${name}: {reason}"))
}

fn scalar(value: &Bound<'_, PyAny>) -> PyResult<ScalarValue> {
    let py = value.py();
    if value.is_none() {
        return Ok(ScalarValue::Null);
    }
    // A scalar of pyarrow.
    if value.hasattr(intern!(py, "as_py"))? {
        return scalar(&value.call_method0("as_py")?);
    }
    if is_list(value)? {
        return list(value);
    }
    // pandas' Timestamp and Timedelta are Python's with nanoseconds, and have their NaT.
    if value.hasattr(intern!(py, "nanosecond"))? || value.hasattr(intern!(py, "nanoseconds"))? {
        return nanoseconds(value);
    }
    if value.is_instance_of::<PyBool>() {
        return Ok(ScalarValue::Boolean(Some(value.extract()?)));
    }
    if value.is_instance_of::<PyInt>() {
        let signed = value.extract().map(|v| ScalarValue::Int64(Some(v)));
        let unsigned = || value.extract().map(|v| ScalarValue::UInt64(Some(v)));
        return signed.or_else(|_| unsigned()).map_err(|_| {
            PyValueError::new_err(format!("{value} does not fit 64 bits; pass a Decimal"))
        });
    }
    if value.is_instance_of::<PyFloat>() {
        let float: f64 = value.extract()?;
        // One NaN of all, as in frames.
        let float = if float.is_nan() { f64::NAN } else { float };
        return Ok(ScalarValue::Float64(Some(float)));
    }
    if value.is_instance_of::<PyString>() {
        return Ok(ScalarValue::Utf8(Some(value.extract()?)));
    }
    if value.is_instance_of::<PyBytes>() || value.is_instance_of::<PyByteArray>() {
        return Ok(ScalarValue::Binary(Some(value.extract()?)));
    }
    if let Ok(time) = value.cast::<PyDateTime>() {
        return timestamp(time);
    }
    if value.is_instance_of::<PyDate>() {
        return cast(&value.str()?.to_string(), &DataType::Date32);
    }
    if value.is_instance_of::<PyTime>() {
        return cast(
            &value.str()?.to_string(),
            &DataType::Time64(TimeUnit::Microsecond),
        );
    }
    if let Ok(delta) = value.cast::<PyDelta>() {
        return Ok(ScalarValue::DurationMicrosecond(Some(microseconds(delta)?)));
    }
    if value.hasattr(intern!(py, "as_tuple"))? {
        return decimal(value);
    }
    // Scalars of NumPy; its times are `kind` m and M.
    if let Ok(dtype) = value.getattr(intern!(py, "dtype")) {
        let kind: String = dtype.getattr("kind")?.extract()?;
        let made = match kind.as_str() {
            "M" => value.call_method1("astype", ("datetime64[ns]",))?,
            "m" => value.call_method1("astype", ("timedelta64[ns]",))?,
            _ => return scalar(&value.call_method0("item")?),
        };
        let nanoseconds: i64 = made.call_method1("astype", ("int64",))?.extract()?;
        let nanoseconds = (nanoseconds != i64::MIN).then_some(nanoseconds);
        return Ok(match kind.as_str() {
            "M" => ScalarValue::TimestampNanosecond(nanoseconds, None),
            _ => ScalarValue::DurationNanosecond(nanoseconds),
        });
    }
    let kind = value.get_type().fully_qualified_name()?;
    Err(PyTypeError::new_err(format!(
        "a {kind} is no SQL value; pass None, bool, int, float, str, bytes, Decimal, a date or time, a NumPy or Arrow scalar, \
         or a list, array or Series of these"
    )))
}

/// Whether a value is a list, an array or a Series.
fn is_list(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = value.py();
    let is_other = value.is_instance_of::<PyString>()
        || value.is_instance_of::<PyBytes>()
        || value.is_instance_of::<PyByteArray>()
        || value.is_instance_of::<PyMemoryView>()
        || value.is_instance_of::<PyDict>();
    if is_other || !value.hasattr(intern!(py, "__len__"))? {
        return Ok(false);
    }
    // NumPy's arrays of no dimension are scalars.
    let dimensions = value.getattr(intern!(py, "ndim"));
    Ok(!dimensions.is_ok_and(|dimensions| dimensions.eq(0).unwrap_or(false)))
}

/// A list as one value, a SQL array.
fn list(value: &Bound<'_, PyAny>) -> PyResult<ScalarValue> {
    let py = value.py();
    let exports = value.hasattr(intern!(py, "__arrow_c_array__"))?
        || value.hasattr(intern!(py, "__arrow_c_stream__"))?;
    let items = if exports {
        let chunked = value.extract::<AnyArray>()?.into_chunked_array()?;
        let (chunks, field) = chunked.into_inner();
        let chunks: Vec<&dyn Array> = chunks.iter().map(AsRef::as_ref).collect();
        if chunks.is_empty() {
            Ok(new_empty_array(field.data_type()))
        } else {
            concat(&chunks).map_err(DataFusionError::from)
        }
    } else {
        let items = value.try_iter()?.map(|item| scalar(&item?));
        let items = items.collect::<PyResult<Vec<_>>>()?;
        let kind = common_type(&items)?;
        let items = items.into_iter().map(|item| item.cast_to(&kind));
        let items = items.collect::<Result<Vec<_>, _>>();
        items.and_then(|items| match items.as_slice() {
            [] => Ok(new_empty_array(&kind)),
            _ => ScalarValue::iter_to_array(items),
        })
    };
    let items = items.map_err(from_datafusion)?;
    Ok(SingleRowListArrayBuilder::new(items).build_list_scalar())
}

/// The type of a list's items: one, or the wider of several numbers or times.
fn common_type(items: &[ScalarValue]) -> PyResult<DataType> {
    let mut common = DataType::Null;
    for item in items {
        let kind = item.data_type();
        if common == DataType::Null {
            common = kind;
        } else if kind != common && kind != DataType::Null {
            let alike = common.is_numeric() && kind.is_numeric()
                || common.is_temporal() && kind.is_temporal()
                || common.is_nested() && kind.is_nested();
            let wider = comparison_coercion(&common, &kind).filter(|_| alike);
            common = wider.ok_or_else(|| {
                PyValueError::new_err(format!("a list of both {common} and {kind} values"))
            })?;
        }
    }
    Ok(common)
}

fn nanoseconds(value: &Bound<'_, PyAny>) -> PyResult<ScalarValue> {
    let py = value.py();
    let times = value.hasattr(intern!(py, "nanosecond"))?;
    // NaT is not equal to itself.
    let missing = !value.eq(value)?;
    let whole = if missing {
        None
    } else {
        let whole = value.call_method1("as_unit", ("ns",))?;
        Some(whole.getattr("value")?.extract::<i64>()?)
    };
    if !times {
        return Ok(ScalarValue::DurationNanosecond(whole));
    }
    let aware = !value.getattr(intern!(py, "tzinfo"))?.is_none();
    let zone = aware.then(|| "UTC".into());
    Ok(ScalarValue::TimestampNanosecond(whole, zone))
}

fn timestamp(time: &Bound<'_, PyDateTime>) -> PyResult<ScalarValue> {
    let py = time.py();
    let datetime = py.import("datetime")?;
    let aware = time.get_tzinfo().is_some();
    let zone = if aware {
        datetime.getattr("timezone")?.getattr("utc")?
    } else {
        py.None().into_bound(py)
    };
    let epoch = (1970, 1, 1, 0, 0, 0, 0, zone);
    let epoch = datetime.getattr("datetime")?.call1(epoch)?;
    let since = time.call_method1("__sub__", (epoch,))?;
    let since = Some(microseconds(&since)?);
    Ok(ScalarValue::TimestampMicrosecond(
        since,
        aware.then(|| "UTC".into()),
    ))
}

/// The whole microseconds of a timedelta, which has no others.
fn microseconds(delta: &Bound<'_, PyAny>) -> PyResult<i64> {
    let days: i64 = delta.getattr("days")?.extract()?;
    let seconds: i64 = delta.getattr("seconds")?.extract()?;
    let rest: i64 = delta.getattr("microseconds")?.extract()?;
    let whole = (days * 86_400 + seconds).checked_mul(1_000_000);
    whole
        .and_then(|whole| whole.checked_add(rest))
        .ok_or_else(|| {
            PyValueError::new_err(format!("{delta} does not fit 64 bits of microseconds"))
        })
}

fn decimal(value: &Bound<'_, PyAny>) -> PyResult<ScalarValue> {
    let (_, digits, exponent): (i64, Vec<u8>, Bound<'_, PyAny>) =
        value.call_method0("as_tuple")?.extract()?;
    let text = || value.str().map(|text| text.to_string());
    let Ok(exponent) = exponent.extract::<i64>() else {
        return Err(PyValueError::new_err(format!("{} is no number", text()?)));
    };
    let scale = (-exponent).max(0);
    let digits = i64::try_from(digits.len()).unwrap_or(i64::MAX);
    let precision = digits.saturating_add(exponent.max(0)).max(scale).max(1);
    let sized = u8::try_from(precision).ok().zip(i8::try_from(scale).ok());
    let (precision, scale) = sized
        .filter(|(precision, _)| *precision <= 76)
        .ok_or_else(|| {
            PyValueError::new_err("a Decimal of more than 76 digits fits no SQL type")
        })?;
    // Without an exponent.
    let plain = value.call_method1("__format__", ("f",))?.to_string();
    let kind = if precision <= 38 {
        DataType::Decimal128(precision, scale)
    } else {
        DataType::Decimal256(precision, scale)
    };
    cast(&plain, &kind)
}

fn cast(text: &str, kind: &DataType) -> PyResult<ScalarValue> {
    ScalarValue::try_from_string(text.to_string(), kind).map_err(from_datafusion)
}
