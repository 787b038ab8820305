//! A DataFusion session with range queries, whose statements see tables of the caller beside its own.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::{Result, TableReference};
use datafusion::datasource::file_format::options::{
    CsvReadOptions, ParquetReadOptions, ReadOptions,
};
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;

use crate::errors::from_datafusion;
use crate::ffi::functions::range_calls;
use crate::ffi::lender::Lender;
use crate::ffi::lent_table::LentTable;
use crate::frame::Frame;
use crate::gather::{Gather, Shown};
use crate::lent;
use crate::params;
use crate::progress::{RunningPlan, run_with_bar};
use crate::query::Query;
use crate::runtime::run;
use crate::shared::{Frames, Shared, option_names};
use crate::table_names::Names;

/// The columns of a result, and the frames whose rows columns of the query number.
type ShownColumns<'py> = (Vec<Shown>, Vec<(usize, PyRef<'py, Frame>)>);

/// A session.
#[pyclass(frozen, module = "datafusion_rmq._native")]
pub struct Session {
    shared: Arc<Shared>,
}

#[pymethods]
impl Session {
    /// Opens a session with the options of these full names. `progress` makes a progress bar for a query.
    #[new]
    fn new(
        py: Python<'_>,
        options: HashMap<String, String>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let shared = run(py, Shared::open(options, progress))?;
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// The full names of all options.
    #[staticmethod]
    fn option_names() -> Vec<String> {
        option_names()
    }

    /// Registers a table. It replaces one of the same name.
    fn register(&self, py: Python<'_>, name: String, frame: &Frame) -> PyResult<()> {
        let table = frame.table().map_err(from_datafusion)?;
        self.replace(py, name, table)
    }

    /// Removes a table.
    fn deregister(&self, py: Python<'_>, name: String) -> PyResult<()> {
        let shared = Arc::clone(&self.shared);
        let table = name.clone();
        let removed = run(py, async move { shared.remove(table).await })?;
        if !removed {
            let text = format!("no table is registered as '{name}'");
            return Err(PyKeyError::new_err(text));
        }
        Ok(())
    }

    /// Registers Parquet files as a table.
    fn read_parquet(&self, py: Python<'_>, name: String, paths: Vec<String>) -> PyResult<()> {
        let state = self.shared.ctx.state();
        let options = ParquetReadOptions::default();
        let listing = options.to_listing_options(state.config(), state.default_table_options());
        self.read_files(py, name, paths, listing)
    }

    /// Registers CSV files as a table.
    #[pyo3(signature = (name, paths, header, delimiter, infer_rows))]
    fn read_csv(
        &self,
        py: Python<'_>,
        name: String,
        paths: Vec<String>,
        header: bool,
        delimiter: u8,
        infer_rows: usize,
    ) -> PyResult<()> {
        let state = self.shared.ctx.state();
        let options = CsvReadOptions::default()
            .has_header(header)
            .delimiter(delimiter)
            .schema_infer_max_records(infer_rows);
        let listing = options.to_listing_options(state.config(), state.default_table_options());
        self.read_files(py, name, paths, listing)
    }

    /// The columns of a registered table.
    fn columns(&self, py: Python<'_>, name: String) -> PyResult<Vec<String>> {
        let schema = self.schema(py, name)?;
        Ok(schema.fields().iter().map(|f| f.name().clone()).collect())
    }

    /// The Arrow types of these columns.
    fn types(&self, py: Python<'_>, name: String) -> PyResult<Vec<String>> {
        let schema = self.schema(py, name)?;
        let types = schema.fields().iter().map(|f| f.data_type().to_string());
        Ok(types.collect())
    }

    /// The names of the registered tables, sorted.
    fn tables(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let shared = Arc::clone(&self.shared);
        run(py, async move {
            let _shared = shared.names.read().await;
            let state = shared.ctx.state();
            let schema = state.schema_for_ref(TableReference::bare("t"))?;
            let mut names = schema.table_names();
            names.sort_unstable();
            Ok(names)
        })
    }

    /// The tables that a statement names and that are not registered, by the parts of their names. With `in_views`,
    /// also those that range functions name in the views that it reads.
    fn missing_tables(
        &self,
        py: Python<'_>,
        sql: String,
        in_views: bool,
    ) -> PyResult<Vec<Vec<String>>> {
        let shared = Arc::clone(&self.shared);
        run(py, async move {
            let _shared = shared.names.read().await;
            let state = shared.ctx.state();
            let mut names = Vec::from_iter(Names::of(&state, &sql)?.tables);
            let mut missing = vec![];
            let mut seen = 0;
            while let Some(name) = names.get(seen).cloned() {
                seen += 1;
                // A schema that does not exist is an error.
                if !shared.ctx.table_exist(name.clone()).unwrap_or(false) {
                    missing.push(name.to_vec());
                } else if in_views
                    && let Some(view) = shared.ctx.table_provider(name).await?.get_logical_plan()
                    && let Some(calls) = range_calls(&view)?
                {
                    for called in Names::of(&state, &calls)?.tables {
                        if !names.contains(&called) {
                            names.push(called);
                        }
                    }
                }
            }
            Ok(missing)
        })
    }

    /// What reads tables and functions of a session of the package `datafusion` for this one.
    fn lender(&self) -> Lender {
        Lender::new(Arc::clone(&self.shared))
    }

    /// The functions that a statement names and the session does not have.
    fn missing_functions(&self, sql: &str) -> PyResult<Vec<String>> {
        let state = self.shared.ctx.state();
        let names = Names::of(&state, sql).map_err(from_datafusion)?.functions;
        let borrowed = self.shared.borrowed_functions();
        let is_missing = |name: &String| {
            borrowed.contains(name)
                || !(state.scalar_functions().contains_key(name)
                    || state.aggregate_functions().contains_key(name)
                    || state.window_functions().contains_key(name))
        };
        Ok(names.into_iter().filter(is_missing).collect())
    }

    /// Lends the session to the ADBC driver, for one database that is opened with this number.
    fn lend(&self) -> u64 {
        lent::lend(&self.shared)
    }

    /// Plans a statement, and runs it if it is no query. It sees `frames` and the tables that another session has
    /// `lent`. With `shown`, the result has these columns, some of which are
    /// taken from frames whose rows the query numbers.
    fn sql(
        &self,
        py: Python<'_>,
        sql: &str,
        params: Option<&Bound<'_, PyAny>>,
        frames: Vec<(String, PyRef<'_, Frame>)>,
        lent: Vec<(Vec<String>, PyRef<'_, LentTable>)>,
        shown: Option<ShownColumns<'_>>,
    ) -> PyResult<Query> {
        let params = params.map(params::values).transpose()?;
        let frames = frames
            .into_iter()
            .map(|(name, frame)| Ok(vec![(TableReference::bare(name), frame.table()?)]))
            .chain(lent.into_iter().map(|(name, lent)| lent.frames(name)))
            .collect::<Result<Vec<Frames>>>()
            .map_err(from_datafusion)?
            .concat();
        let shown = shown.map(|(columns, numbered)| {
            let numbered = numbered.into_iter().map(|(number, frame)| {
                let batches = Arc::clone(&frame.batches);
                (number, Arc::clone(&frame.schema), batches)
            });
            (columns, numbered.collect::<Vec<_>>())
        });
        let shared = Arc::clone(&self.shared);
        let text = sql.to_string();
        let running = RunningPlan::default();
        let known = Arc::clone(&running);
        let planned = async move {
            let planned = shared.statement(&text, params, &frames, &known).await?;
            let schema = planned.frame.schema().as_arrow();
            let gather = shown.map(|(columns, frames)| Gather::new(schema, columns, frames));
            Ok(Query::new(text, planned, frames, gather, shared))
        };
        run_with_bar(py, self.shared.progress.as_ref(), &running, planned)
    }
}

impl Session {
    fn schema(&self, py: Python<'_>, name: String) -> PyResult<SchemaRef> {
        let shared = Arc::clone(&self.shared);
        let table = run(py, async move {
            let _shared = shared.names.read().await;
            shared.ctx.table_provider(TableReference::bare(name)).await
        })?;
        Ok(table.schema())
    }

    fn replace(&self, py: Python<'_>, name: String, table: Arc<dyn TableProvider>) -> PyResult<()> {
        let shared = Arc::clone(&self.shared);
        run(py, async move { shared.replace(name, table).await })
    }

    fn read_files(
        &self,
        py: Python<'_>,
        name: String,
        paths: Vec<String>,
        options: ListingOptions,
    ) -> PyResult<()> {
        let shared = Arc::clone(&self.shared);
        // Files are named by the caller, so their extension does not matter; in a folder it does. There is one for all.
        let folder = paths.iter().find(|path| Path::new(path).is_dir());
        let options = if let Some(folder) = folder {
            let ending = &options.file_extension;
            let is_read = |path: &&String| Path::new(path).is_dir() || path.ends_with(ending);
            if let Some(other) = paths.iter().find(|path| !is_read(path)) {
                let pattern = Path::new(folder).join("*");
                return Err(PyValueError::new_err(format!(
                    "path '{other}': beside the folder '{folder}' only files that end in '{ending}' are read; write '{}' \
                     instead of the folder to read all files of both",
                    pattern.display()
                )));
            }
            options
        } else {
            options.with_file_extension("")
        };
        let shown = paths.join(", ");
        let table = run(py, async move {
            let urls = paths.iter().map(ListingTableUrl::parse);
            let urls = urls.collect::<Result<Vec<_>>>()?;
            let config = ListingTableConfig::new_with_multi_paths(urls);
            let config = config.with_listing_options(options);
            let state = shared.ctx.state();
            Ok(Arc::new(ListingTable::try_new(
                config.infer_schema(&state).await?,
            )?))
        })?;
        if table.schema().fields().is_empty() {
            let text = format!("{name}: no file, or none with a column, matches {shown}");
            return Err(PyValueError::new_err(text));
        }
        self.replace(py, name, table)
    }
}
