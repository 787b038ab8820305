//! A planned statement and its result.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow::compute::cast;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow::util::pretty::pretty_format_batches_with_options;
use datafusion::common::Result;
use datafusion::common::cast::as_string_array;
use datafusion::common::format::ExplainFormat;
use datafusion::dataframe::DataFrame;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::ExplainOption;
use datafusion::physical_plan::common::collect;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion_rmq::parts::Stop;
use futures::StreamExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use pyo3_arrow::PyRecordBatchReader;

use crate::errors::from_datafusion;
use crate::gather::Gather;
use crate::progress::{RunningPlan, run_with_bar};
use crate::python_values::python_columns;
use crate::running::Running;
use crate::runtime::run;
use crate::shared::{Frames, Planned, Shared};

/// A query. It runs when its rows are first asked for, and keeps them.
#[pyclass(frozen, module = "datafusion_rmq._native")]
pub struct Query {
    #[pyo3(get)]
    sql: String,
    frame: DataFrame,
    /// Whether the statement changed rows or tables. Of changed rows, the only row has the number.
    #[pyo3(get)]
    changes: bool,
    frames: Arc<Frames>,
    /// What the result's columns are, if they are not the query's.
    gather: Option<Arc<Gather>>,
    shared: Arc<Shared>,
    rows: Mutex<Option<Arc<[RecordBatch]>>>,
}

impl Query {
    pub fn new(
        sql: String,
        planned: Planned,
        frames: Frames,
        gather: Option<Gather>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            sql,
            frame: planned.frame,
            changes: planned.changes,
            frames: Arc::new(frames),
            gather: gather.map(Arc::new),
            shared,
            rows: Mutex::default(),
        }
    }

    fn schema(&self) -> SchemaRef {
        if let Some(gather) = &self.gather {
            return gather.schema();
        }
        let schema: &Schema = self.frame.schema().as_arrow();
        Arc::new(schema.clone())
    }

    /// Runs the query, once.
    fn rows(&self, py: Python<'_>) -> PyResult<Arc<[RecordBatch]>> {
        // The lock is not held while the query runs, so two threads that begin at a time run it twice.
        let known = self.lock().clone();
        if let Some(rows) = known {
            return Ok(rows);
        }
        let rows: Arc<[RecordBatch]> = self
            .collect(py, self.frame.clone(), self.gather.clone(), false)?
            .into();
        Ok(Arc::clone(self.lock().get_or_insert(rows)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<[RecordBatch]>>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a plan, with operators that end it soon after Ctrl-C unless it `is_shown`.
    fn collect(
        &self,
        py: Python<'_>,
        frame: DataFrame,
        gather: Option<Arc<Gather>>,
        is_shown: bool,
    ) -> PyResult<Vec<RecordBatch>> {
        let (shared, frames) = (Arc::clone(&self.shared), Arc::clone(&self.frames));
        let running = RunningPlan::default();
        let known = Arc::clone(&running);
        let stop = Stop::default();
        let watched = stop.clone();
        let rows = async move {
            let context = Arc::new(frame.task_ctx());
            let declared = Arc::clone(frame.schema().inner());
            let planned = frame.create_physical_plan();
            let plan = shared.with_frames(&frames, planned).await?;
            let plan = watched.watch_joins(plan, is_shown)?;
            collect(running_query(
                Arc::clone(known.get_or_init(|| plan)),
                declared,
                context,
                gather,
            )?)
            .await
        };
        let rows = run_with_bar(py, self.shared.progress.as_ref(), &running, rows);
        // An operator may compute on, for all that its runtime knows.
        rows.inspect_err(|_| stop.request())
    }
}

#[pymethods]
impl Query {
    /// The names of the columns.
    #[getter]
    fn columns(&self) -> Vec<String> {
        let schema = self.schema();
        schema.fields().iter().map(|f| f.name().clone()).collect()
    }

    /// The Arrow types of the columns.
    #[getter]
    fn types(&self) -> Vec<String> {
        let schema = self.schema();
        let types = schema.fields().iter().map(|f| f.data_type().to_string());
        types.collect()
    }

    /// The number of rows.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.rows(py)?.iter().map(RecordBatch::num_rows).sum())
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let reader = RecordBatchIterator::new(vec![], self.schema());
        let reader = PyRecordBatchReader::new(Box::new(reader)).into_pyobject(py)?;
        Ok(reader.call_method0("__arrow_c_schema__")?.cast_into()?)
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let rows = self.rows(py)?.to_vec();
        let reader = RecordBatchIterator::new(rows.into_iter().map(Ok), self.schema());
        capsule(py, Box::new(reader), requested_schema)
    }

    /// The result as a stream that is computed while it is read, and is not kept.
    #[pyo3(signature = (requested_schema=None))]
    fn stream<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let (shared, frames) = (Arc::clone(&self.shared), Arc::clone(&self.frames));
        let (frame, gather) = (self.frame.clone(), self.gather.clone());
        let stop = Stop::default();
        let watched = stop.clone();
        let stream = run(py, async move {
            let context = Arc::new(frame.task_ctx());
            let declared = Arc::clone(frame.schema().inner());
            let planned = frame.create_physical_plan();
            let plan = shared.with_frames(&frames, planned).await?;
            let plan = watched.watch_joins(plan, false)?;
            running_query(plan, declared, context, gather)
        })?;
        let reader = Running::new(self.schema(), stream, stop, None);
        capsule(py, Box::new(reader), requested_schema)
    }

    /// Some rows, from one on, as Python values, column by column.
    fn python_columns<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        rows: usize,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let some = slice(&self.rows(py)?, start, rows);
        python_columns(py, &self.schema(), &some)
    }

    /// The first rows as a table of text, and whether there are more.
    fn text(&self, py: Python<'_>, rows: usize) -> PyResult<(String, bool)> {
        let first = slice(&self.rows(py)?, 0, rows);
        let table = pretty_format_batches_with_options(&first, &format_options());
        let mut text = table.map_err(from_arrow)?.to_string();
        if first.is_empty() {
            let empty = RecordBatch::new_empty(self.schema());
            let table = pretty_format_batches_with_options(&[empty], &format_options());
            text = table.map_err(from_arrow)?.to_string();
        }
        Ok((text, self.__len__(py)? > rows))
    }

    /// The first rows as texts, and whether there are more.
    fn cells(&self, py: Python<'_>, rows: usize) -> PyResult<(Vec<Vec<String>>, bool)> {
        let first = slice(&self.rows(py)?, 0, rows);
        let mut cells = vec![];
        for batch in &first {
            let options = format_options();
            let columns = batch.columns().iter();
            let columns = columns
                .map(|column| ArrayFormatter::try_new(column, &options))
                .collect::<Result<Vec<_>, _>>()
                .map_err(from_arrow)?;
            for row in 0..batch.num_rows() {
                cells.push(columns.iter().map(|c| c.value(row).to_string()).collect());
            }
        }
        Ok((cells, self.__len__(py)? > rows))
    }

    /// The plan as text. With `analyze`, the query runs, and the plan has its measurements.
    fn explain(
        &self,
        py: Python<'_>,
        analyze: bool,
        verbose: bool,
        format: &str,
    ) -> PyResult<String> {
        let format = match (format, analyze) {
            ("indent", _) => ExplainFormat::Indent,
            ("tree", false) => ExplainFormat::Tree,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "format='{format}': 'indent' is possible, and 'tree' without analyze"
                )));
            }
        };
        let options = ExplainOption::default()
            .with_verbose(verbose)
            .with_analyze(analyze)
            .with_format(format);
        let frame = self.frame.clone().explain_with_options(options);
        let mut text = String::new();
        for batch in self.collect(py, frame.map_err(from_datafusion)?, None, true)? {
            let kinds = as_string_array(batch.column(0)).map_err(from_datafusion)?;
            let plans = as_string_array(batch.column(1)).map_err(from_datafusion)?;
            for (kind, plan) in kinds.iter().zip(plans) {
                let (kind, plan) = (kind.unwrap_or_default(), plan.unwrap_or_default());
                // A String takes any text.
                let _ = writeln!(text, "{kind}:\n{}", plan.trim_end());
            }
        }
        Ok(text)
    }
}

/// The rows of a plan, as those of the result.
fn running_query(
    plan: Arc<dyn ExecutionPlan>,
    declared: SchemaRef,
    context: Arc<TaskContext>,
    gather: Option<Arc<Gather>>,
) -> Result<SendableRecordBatchStream> {
    let threads = context.session_config().target_partitions();
    let rows = with_types(execute_stream(plan, context)?, declared);
    Ok(match gather {
        Some(gather) => gather.applied(rows, threads),
        None => rows,
    })
}

/// The rows with the types that the statement declares. Of some unions of counts the plan has others, which readers of
/// Arrow's C stream would take for those of its schema.
fn with_types(rows: SendableRecordBatchStream, declared: SchemaRef) -> SendableRecordBatchStream {
    let (fields, planned) = (declared.fields().iter(), rows.schema());
    let mut fields = fields.zip(planned.fields());
    if fields.all(|(declared, planned)| declared.data_type() == planned.data_type()) {
        return rows;
    }
    let schema = Arc::clone(&declared);
    let cast = rows.map(move |batch| {
        let batch = batch?;
        let columns = batch.columns().iter().zip(declared.fields());
        let columns = columns.map(|(column, field)| cast(column, field.data_type()));
        let columns = columns.collect::<Result<Vec<_>, ArrowError>>()?;
        Ok(RecordBatch::try_new(Arc::clone(&declared), columns)?)
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, cast))
}

fn from_arrow(error: ArrowError) -> PyErr {
    from_datafusion(DataFusionError::from(error))
}

fn format_options() -> FormatOptions<'static> {
    FormatOptions::default().with_null("NULL")
}

/// Some rows, from one on.
fn slice(batches: &[RecordBatch], mut start: usize, mut rows: usize) -> Vec<RecordBatch> {
    let mut some = vec![];
    for batch in batches {
        let skipped = start.min(batch.num_rows());
        let taken = rows.min(batch.num_rows() - skipped);
        if taken > 0 {
            some.push(batch.slice(skipped, taken));
        }
        (start, rows) = (start - skipped, rows - taken);
    }
    some
}

fn capsule<'py>(
    py: Python<'py>,
    reader: Box<dyn RecordBatchReader + Send>,
    requested_schema: Option<Bound<'py, PyCapsule>>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let reader = PyRecordBatchReader::new(reader).into_pyobject(py)?;
    let args = PyTuple::new(py, [requested_schema])?;
    Ok(reader
        .call_method1("__arrow_c_stream__", args)?
        .cast_into()?)
}
