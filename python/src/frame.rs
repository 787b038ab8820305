//! Tables of other libraries: read once, by the Arrow C data interface.

use std::sync::Arc;

use arrow::array::{RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use arrow::error::ArrowError;
use datafusion::catalog::TableProvider;
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use datafusion::prelude::ident;
use pyo3::exceptions::{PyNotImplementedError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3_arrow::input::AnyRecordBatch;

use crate::canonical_nans::with_one_nan;
use crate::errors::{OperationalError, from_datafusion};

/// A table that was read from an object with `__arrow_c_stream__` or `__arrow_c_array__`. It keeps the object's
/// buffers, not the object.
///
/// All rows are one partition in the order in which they came: positions need a stable order, and a stream can be read
/// only once.
#[pyclass(frozen, module = "datafusion_rmq._native")]
pub struct Frame {
    pub schema: SchemaRef,
    pub batches: Arc<[RecordBatch]>,
    /// Whether the rows are sorted by the last column, which numbers them.
    is_numbered: bool,
}

#[pymethods]
impl Frame {
    /// Reads `data`, which errors call `name`.
    #[new]
    fn new(py: Python<'_>, name: &str, data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (schema, batches) = read(py, name, data)?;
        Ok(Self {
            schema,
            batches: batches.into(),
            is_numbered: false,
        })
    }

    /// Some of the columns, by position, and one of this name that numbers the rows.
    fn numbered(&self, columns: Vec<usize>, name: &str) -> PyResult<Self> {
        let frame = with_row_numbers(self, &columns, name);
        frame.map_err(|error| from_datafusion(error.into()))
    }

    /// The names of the columns.
    #[getter]
    fn columns(&self) -> Vec<String> {
        let fields = self.schema.fields().iter();
        fields.map(|field| field.name().clone()).collect()
    }

    /// Their Arrow types.
    #[getter]
    fn types(&self) -> Vec<String> {
        let fields = self.schema.fields().iter();
        fields.map(|field| field.data_type().to_string()).collect()
    }
}

impl Frame {
    /// The frame as a table of one partition.
    pub fn table(&self) -> Result<Arc<dyn TableProvider>> {
        let partitions = vec![self.batches.to_vec()];
        let table = MemTable::try_new(Arc::clone(&self.schema), partitions)?;
        let order = self.schema.fields().last().filter(|_| self.is_numbered);
        Ok(Arc::new(match order {
            Some(number) => {
                table.with_sort_order(vec![vec![ident(number.name()).sort(true, false)]])
            }
            None => table,
        }))
    }
}

fn read(
    py: Python<'_>,
    name: &str,
    data: &Bound<'_, PyAny>,
) -> PyResult<(SchemaRef, Vec<RecordBatch>)> {
    let exports = data.hasattr(intern!(py, "__arrow_c_stream__"))?
        || data.hasattr(intern!(py, "__arrow_c_array__"))?;
    let kind = data.get_type().fully_qualified_name()?;
    if !exports {
        return Err(PyTypeError::new_err(format!(
            "{name}: {kind} is no table: it has neither __arrow_c_stream__ nor __arrow_c_array__. Pass a pandas or \
             polars DataFrame, a pyarrow Table or RecordBatch, a DuckDB relation, or another Arrow table; call \
             collect() on a LazyFrame, to_table() on a pyarrow Dataset"
        )));
    }
    let reader = data
        .extract::<AnyRecordBatch>()
        .and_then(AnyRecordBatch::into_reader);
    let reader = reader.map_err(|error| {
        let is_refusal = error.is_instance_of::<PyValueError>(py)
            || error.is_instance_of::<PyTypeError>(py)
            || error.is_instance_of::<PyNotImplementedError>(py);
        // Another error of the exporter stays as it is.
        if !is_refusal {
            return error;
        }
        let reason = error.value(py);
        let text = format!("{name}: {kind} cannot be read as an Arrow table: {reason}");
        let wrapped = PyTypeError::new_err(text);
        wrapped.set_cause(py, Some(error));
        wrapped
    })?;
    let schema = reader.schema();
    if schema.fields().is_empty() {
        return Err(PyValueError::new_err(format!(
            "{name}: the table has no columns"
        )));
    }
    // An exporter may run Python code, or wait for another thread that does.
    let batches = py.detach(|| {
        let batches = reader.map(|batch| with_one_nan(batch?));
        batches.collect::<Result<Vec<_>, ArrowError>>()
    });
    let batches = batches.map_err(|error| {
        OperationalError::new_err(format!("{name}: {kind} failed while it was read: {error}"))
    })?;
    Ok((schema, batches))
}

/// The frame of some columns and a last one that numbers the rows.
fn with_row_numbers(frame: &Frame, columns: &[usize], name: &str) -> Result<Frame, ArrowError> {
    let schema = frame.schema.project(columns)?;
    let number = Arc::new(Field::new(name, DataType::UInt64, false));
    let fields: Fields = schema.fields().iter().cloned().chain([number]).collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata));
    let mut first = 0;
    let batches = frame.batches.iter().map(|batch| {
        let end = first + batch.num_rows() as u64;
        let mut columns = batch.project(columns)?.columns().to_vec();
        columns.push(Arc::new(UInt64Array::from_iter_values(first..end)));
        first = end;
        RecordBatch::try_new(Arc::clone(&schema), columns)
    });
    Ok(Frame {
        batches: batches.collect::<Result<_, ArrowError>>()?,
        schema,
        is_numbered: true,
    })
}
