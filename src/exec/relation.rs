//! A relation whose rows have positions, as one query sees it: which of its columns are asked, and their
//! indexes, found in the session's catalog or built.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use arrow::datatypes::DataType;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{
    DataFusionError, Result, SharedResult, exec_err, internal_datafusion_err, internal_err,
};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};

use super::load::{load_columns, plan_table_scan, read_version};
use crate::engine::Extreme;
use crate::engine::cpu::CpuEngine;
use crate::functions::column_name::ColumnName;
use crate::index::{Chunks, ColumnIndex, HeldIndex, IndexCatalog, IndexKey};
use crate::options::RmqOptions;
use crate::plan::Source;

/// Where a relation's rows come from.
#[derive(Debug)]
pub(crate) enum RelationSource {
    /// A table, its rows in scan order.
    Table {
        name: ColumnName,
        provider: Arc<dyn TableProvider>,
    },
    /// A query that states its order, planned.
    Query(Arc<dyn ExecutionPlan>),
}

/// A relation that calls of one query ask.
#[derive(Debug)]
pub(crate) struct Relation {
    label: String,
    is_subquery: bool,
    source: RelationSource,
    catalog: Arc<IndexCatalog>,
    /// Which indexes the query's calls need; complete once the query is planned.
    required: Mutex<BTreeSet<(String, Extreme)>>,
    /// The scan of the required columns.
    scan: OnceLock<Arc<dyn ExecutionPlan>>,
    /// The indexes as the runs of the plan that go on have them.
    runs: Mutex<Vec<Run>>,
}

/// The indexes that a run needs, or why they could not be made; all operators get the same.
type Made = SharedResult<Arc<Vec<PreparedIndex>>>;

/// The work of making them. Whoever waits drives it, so none depends on another's being polled; when all who wait are
/// gone, so is the work.
type Making = BoxFuture<'static, Made>;

/// One run of a plan is known by its task context, which all its operators share. A plan that is run again looks at
/// the data again.
struct Run {
    context: Weak<TaskContext>,
    making: Option<WeakShared<Making>>,
    made: Arc<OnceLock<Made>>,
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("made", &self.made)
            .finish_non_exhaustive()
    }
}

/// An index that is ready to be asked.
#[derive(Debug, Clone)]
pub(crate) struct PreparedIndex {
    column: String,
    extreme: Extreme,
    pub(crate) held: Arc<HeldIndex>,
    /// If this run built it: how long reading the column took.
    pub(crate) built: Option<Duration>,
}

impl Relation {
    /// The relation that `asked` names, whose rows come from `source`.
    pub(crate) fn new(asked: &Source, source: RelationSource, catalog: &Arc<IndexCatalog>) -> Self {
        let (label, is_subquery) = match asked {
            Source::Table(column) => (column.0.table.to_string(), false),
            Source::Query(_) => (asked.to_string(), true),
        };
        Self {
            label,
            is_subquery,
            source,
            catalog: Arc::clone(catalog),
            required: Mutex::default(),
            scan: OnceLock::new(),
            runs: Mutex::default(),
        }
    }

    /// What `EXPLAIN` calls the column.
    pub(crate) fn column_label(&self, column: &str) -> String {
        if self.is_subquery {
            // The label names the column.
            self.label.clone()
        } else {
            format!("{}.{column}", self.label)
        }
    }

    /// Notes, while the query is being planned, that a call needs this index.
    pub(crate) fn require(&self, column: &str, extreme: Extreme) {
        let mut required = self.required.lock().unwrap_or_else(PoisonError::into_inner);
        required.insert((column.to_string(), extreme));
    }

    fn required(&self) -> BTreeSet<(String, Extreme)> {
        self.required
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Plans one scan of all the columns that the query's calls need, so that all see one version of the table.
    pub(crate) async fn plan_scan(&self, session: &dyn Session) -> Result<()> {
        let scan = match &self.source {
            RelationSource::Query(plan) => Arc::clone(plan),
            RelationSource::Table { name, provider } => {
                let columns: BTreeSet<_> = self.required().into_iter().map(|(c, _)| c).collect();
                plan_table_scan(session, name, provider, &columns).await?
            }
        };
        // A relation is planned once: nobody has set it before.
        let _ = self.scan.set(scan);
        Ok(())
    }

    /// The index of a column, made ready by the first that asks in this run.
    ///
    /// # Errors
    /// What reading the table, or building the index, came to; each operator that asks gets it.
    pub(crate) async fn index(
        self: &Arc<Self>,
        column: &str,
        extreme: Extreme,
        context: &Arc<TaskContext>,
    ) -> Result<PreparedIndex> {
        let made = match self.make(context) {
            Ok(made) => made,
            Err(making) => making.await,
        };
        let prepared = made.map_err(DataFusionError::Shared)?;
        prepared
            .iter()
            .find(|p| p.column == column && p.extreme == extreme)
            .cloned()
            .ok_or_else(|| internal_datafusion_err!("no index of {column} was asked for"))
    }

    /// The indexes of this run if they are made, else the work of making them.
    fn make(self: &Arc<Self>, context: &Arc<TaskContext>) -> Result<Made, Shared<Making>> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|run| run.context.strong_count() > 0);
        let here = Arc::downgrade(context);
        let place = runs
            .iter()
            .position(|run| run.context.ptr_eq(&here))
            .unwrap_or_else(|| {
                runs.push(Run {
                    context: here,
                    making: None,
                    made: Arc::default(),
                });
                runs.len() - 1
            });
        let run = &mut runs[place];
        if let Some(made) = run.made.get() {
            return Ok(made.clone());
        }
        if let Some(making) = run.making.as_ref().and_then(WeakShared::upgrade) {
            return Err(making);
        }
        let (this, context, done) = (Arc::clone(self), Arc::clone(context), Arc::clone(&run.made));
        let making = async move {
            let made = this.prepare(&context).await.map(Arc::new).map_err(Arc::new);
            done.get_or_init(|| made).clone()
        };
        let making = making.boxed().shared();
        run.making = making.downgrade();
        Err(making)
    }

    /// Finds or builds all indexes that the query needs of this relation.
    async fn prepare(&self, context: &Arc<TaskContext>) -> Result<Vec<PreparedIndex>> {
        let Some(scan) = self.scan.get() else {
            return internal_err!(
                "the relation {} was not planned by RmqQueryPlanner",
                self.label
            );
        };
        // The operators of a query keep the state of a run; one that was given up, or an earlier one, may have left its own.
        let scan = &match &self.source {
            RelationSource::Table { .. } => Arc::clone(scan),
            RelationSource::Query(_) => reset_plan_states(Arc::clone(scan))?,
        };
        let options = RmqOptions::of(context.session_config().options());
        let version = match &self.source {
            RelationSource::Table { provider, .. } => {
                read_version(&self.label, scan, provider, context).await?
            }
            RelationSource::Query(_) => None,
        };

        let mut prepared = vec![];
        let mut missing = vec![];
        for (column, extreme) in self.required() {
            let data_type = column_type(scan, &column)?;
            let held = match (self.key(&column, extreme), &version) {
                (Some(key), Some(version)) if options.keep_indexes => {
                    let value_type = crate::index::value_type(&data_type);
                    self.catalog
                        .find(&key, &version.of_column(&column), &value_type)
                }
                _ => None,
            };
            match held {
                Some(held) => prepared.push(PreparedIndex {
                    column,
                    extreme,
                    held,
                    built: None,
                }),
                None => missing.push((column, extreme, data_type)),
            }
        }
        // The option may have been set lower since they were built.
        self.catalog.shrink_to(options.index_memory_limit);
        if missing.is_empty() {
            return Ok(prepared);
        }

        let started = Instant::now();
        let wanted: BTreeSet<&str> = missing.iter().map(|(c, ..)| c.as_str()).collect();
        let loaded = load_columns(
            &self.label,
            scan,
            &wanted,
            context,
            options.index_memory_limit,
        )
        .await?;
        let load_time = started.elapsed();
        // Files are looked at again: an index is kept only of what was the same before and after.
        let version = match (version, &self.source) {
            (Some(before), RelationSource::Table { provider, .. }) => {
                let after = read_version(&self.label, scan, provider, context).await?;
                after.filter(|after| after.is_settled_since(&before))
            }
            _ => None,
        };
        for (column, extreme, data_type) in missing {
            let chunks = loaded.chunks(&column)?;
            let held = self
                .build(&column, extreme, &data_type, chunks, context, &options)
                .await?;
            if let (Some(key), Some(version)) = (self.key(&column, extreme), &version)
                && options.keep_indexes
            {
                self.catalog.keep(key, version.of_column(&column), &held);
            }
            prepared.push(PreparedIndex {
                column,
                extreme,
                held,
                built: Some(load_time),
            });
        }
        Ok(prepared)
    }

    /// Builds an index off the threads that poll streams.
    async fn build(
        &self,
        column: &str,
        extreme: Extreme,
        data_type: &DataType,
        chunks: Chunks,
        context: &Arc<TaskContext>,
        options: &RmqOptions,
    ) -> Result<Arc<HeldIndex>> {
        let engine = CpuEngine::default();
        let bytes = ColumnIndex::estimate(&engine, &chunks, data_type);
        let label = self.column_label(column);
        let limit = options.index_memory_limit;
        let memory = self
            .catalog
            .reserve(&label, bytes, limit, context.memory_pool())?;
        let (data_type, threads) = (data_type.clone(), options.threads());
        // The memory goes along: a build that has begun can't be stopped, and uses it to its end.
        let build = move || {
            let index = ColumnIndex::build(&engine, &chunks, &data_type, extreme, threads)?;
            Ok::<_, DataFusionError>(HeldIndex::new(index, memory))
        };
        let held = SpawnedTask::spawn_blocking(build)
            .join_unwind()
            .await
            .map_err(|e| {
                internal_datafusion_err!("building the index of {label} did not end: {e}")
            })??;
        Ok(Arc::new(held))
    }

    /// Under which key the session's catalog holds an index of this relation; queries have none.
    fn key(&self, column: &str, extreme: Extreme) -> Option<IndexKey> {
        match &self.source {
            RelationSource::Table { name, .. } => {
                let column = ColumnName {
                    column: column.to_string(),
                    ..name.clone()
                };
                Some(IndexKey { column, extreme })
            }
            RelationSource::Query(_) => None,
        }
    }
}

fn column_type(scan: &Arc<dyn ExecutionPlan>, column: &str) -> Result<DataType> {
    match scan.schema().field_with_name(column) {
        Ok(field) => Ok(field.data_type().clone()),
        Err(_) => exec_err!("the column {column} is gone since the query was planned"),
    }
}
