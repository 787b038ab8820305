//! Arrow columns as Python values.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    DataType, Date32Type, DurationMicrosecondType, Float64Type, Int64Type, SchemaRef,
    Time64MicrosecondType, TimeUnit, TimestampMicrosecondType, UInt64Type,
};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors::OperationalError;

/// Returns a list for each column. Dates and times are those of Python's `datetime`, which has microseconds: finer ones
/// are cut off. Lists are lists and structs are dicts. A type that Python lacks, such as an interval, is a text.
pub fn python_columns<'py>(
    py: Python<'py>,
    schema: &SchemaRef,
    rows: &[RecordBatch],
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let mut columns = vec![];
    for (i, field) in schema.fields().iter().enumerate() {
        let values = PyList::empty(py);
        for batch in rows {
            let part = list(py, batch.column(i));
            let part = part.map_err(|error| {
                let name = field.name();
                let reason = error.value(py);
                OperationalError::new_err(format!("column {name:?}: {reason}"))
            })?;
            values.call_method1("extend", (part,))?;
        }
        columns.push(values.into_any());
    }
    Ok(columns)
}

/// The values of an array, as a list.
fn list<'py>(py: Python<'py>, array: &ArrayRef) -> PyResult<Bound<'py, PyList>> {
    use DataType as T;

    let wide = widest(array.data_type());
    if wide != *array.data_type() {
        let checked = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        return list(
            py,
            &cast_with_options(array, &wide, &checked).map_err(failed)?,
        );
    }
    match array.data_type() {
        T::Null => each(py, vec![None::<i64>; array.len()].into_iter()),
        T::Boolean => each(py, array.as_boolean().iter()),
        T::Int64 => each(py, array.as_primitive::<Int64Type>().iter()),
        T::UInt64 => each(py, array.as_primitive::<UInt64Type>().iter()),
        T::Float64 => each(py, array.as_primitive::<Float64Type>().iter()),
        T::LargeUtf8 => each(py, array.as_string::<i64>().iter()),
        T::LargeBinary => each(py, array.as_binary::<i64>().iter()),
        T::Date32 => {
            let days = array.as_primitive::<Date32Type>();
            temporal(py, array, |i| days.value_as_date(i))
        }
        T::Time64(_) => {
            let times = array.as_primitive::<Time64MicrosecondType>();
            temporal(py, array, |i| times.value_as_time(i))
        }
        T::Duration(_) => {
            let spans = array.as_primitive::<DurationMicrosecondType>();
            temporal(py, array, |i| spans.value_as_duration(i))
        }
        T::Timestamp(_, zone) => {
            let times = array.as_primitive::<TimestampMicrosecondType>();
            let naive = temporal(py, array, |i| times.value_as_datetime(i))?;
            match zone {
                None => Ok(naive),
                Some(zone) => in_zone(&naive, zone),
            }
        }
        T::Decimal32(..) | T::Decimal64(..) | T::Decimal128(..) | T::Decimal256(..) => {
            let decimal = py.import("decimal")?.getattr("Decimal")?;
            map(&texts(py, array)?, |text| decimal.call1((text,)))
        }
        T::LargeList(_) => {
            let lists = array.as_list::<i64>();
            let rows = lists
                .iter()
                .map(|row| row.map(|row| list(py, &row)).transpose());
            PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
        }
        T::Struct(fields) => {
            let structs = array.as_struct();
            let columns = structs.columns().iter().map(|column| list(py, column));
            let columns = columns.collect::<PyResult<Vec<_>>>()?;
            let mut rows = vec![];
            for row in 0..structs.len() {
                if structs.is_null(row) {
                    rows.push(None);
                    continue;
                }
                let dict = PyDict::new(py);
                for (field, column) in fields.iter().zip(&columns) {
                    dict.set_item(field.name(), column.get_item(row)?)?;
                }
                rows.push(Some(dict));
            }
            PyList::new(py, rows)
        }
        _ => texts(py, array),
    }
}

/// The widest type of a family, such as integers: only that is converted.
fn widest(values: &DataType) -> DataType {
    use DataType as T;
    match values {
        T::Int8 | T::Int16 | T::Int32 => T::Int64,
        T::UInt8 | T::UInt16 | T::UInt32 => T::UInt64,
        T::Float16 | T::Float32 => T::Float64,
        T::Utf8 | T::Utf8View => T::LargeUtf8,
        T::Binary | T::BinaryView | T::FixedSizeBinary(_) => T::LargeBinary,
        T::Date64 => T::Date32,
        T::Time32(_) | T::Time64(TimeUnit::Nanosecond) => T::Time64(TimeUnit::Microsecond),
        T::Timestamp(unit, zone) if *unit != TimeUnit::Microsecond => {
            T::Timestamp(TimeUnit::Microsecond, zone.clone())
        }
        T::Duration(unit) if *unit != TimeUnit::Microsecond => T::Duration(TimeUnit::Microsecond),
        T::Dictionary(_, entries) => entries.as_ref().clone(),
        T::RunEndEncoded(_, run) => run.data_type().clone(),
        T::List(item) | T::FixedSizeList(item, _) | T::ListView(item) => {
            T::LargeList(Arc::clone(item))
        }
        T::LargeListView(item) => T::LargeList(Arc::clone(item)),
        other => other.clone(),
    }
}

/// Converts each value that is not NULL.
fn each<'py, V: IntoPyObject<'py>>(
    py: Python<'py>,
    values: impl Iterator<Item = Option<V>>,
) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, values.collect::<Vec<_>>())
}

/// Converts each value that is not NULL by the number of its row, and fails for those that have no date or time.
fn temporal<'py, V: IntoPyObject<'py>>(
    py: Python<'py>,
    array: &ArrayRef,
    value: impl Fn(usize) -> Option<V>,
) -> PyResult<Bound<'py, PyList>> {
    let rows = (0..array.len()).map(|i| {
        if array.is_null(i) {
            return Ok(None);
        }
        let beyond = || OperationalError::new_err("a value is beyond the times that Python has");
        value(i).map(Some).ok_or_else(beyond)
    });
    PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
}

/// The values as texts, with None for NULL.
fn texts<'py>(py: Python<'py>, array: &ArrayRef) -> PyResult<Bound<'py, PyList>> {
    let options = FormatOptions::default();
    let formatter = ArrayFormatter::try_new(array, &options).map_err(failed)?;
    let texts = (0..array.len()).map(|i| array.is_valid(i).then(|| formatter.value(i).to_string()));
    PyList::new(py, texts.collect::<Vec<_>>())
}

/// The times of a list, which are in UTC without saying so, in a time zone.
fn in_zone<'py>(times: &Bound<'py, PyList>, zone: &str) -> PyResult<Bound<'py, PyList>> {
    let py = times.py();
    let datetime = py.import("datetime")?;
    let utc = datetime.getattr("timezone")?.getattr("utc")?;
    let zone = if zone.starts_with(['+', '-']) {
        let spelled = format!("2000-01-01 00:00:00{zone}");
        let parsed = datetime
            .getattr("datetime")?
            .call_method1("fromisoformat", (spelled,))?;
        parsed.getattr("tzinfo")?
    } else {
        py.import("zoneinfo")?.getattr("ZoneInfo")?.call1((zone,))?
    };
    let replace = PyDict::new(py);
    replace.set_item("tzinfo", utc)?;
    map(times, |time| {
        let aware = time.call_method("replace", (), Some(&replace))?;
        aware.call_method1("astimezone", (&zone,))
    })
}

/// Converts each item of a list that is not None.
fn map<'py>(
    items: &Bound<'py, PyList>,
    convert: impl Fn(&Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let converted = items.iter().map(|item| {
        if item.is_none() {
            Ok(item)
        } else {
            convert(&item)
        }
    });
    PyList::new(items.py(), converted.collect::<PyResult<Vec<_>>>()?)
}

fn failed(error: arrow::error::ArrowError) -> PyErr {
    OperationalError::new_err(error.to_string())
}
