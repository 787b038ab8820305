//! A relation whose rows have positions, as one query sees it: which of its columns are asked, and their
//! indexes, found in the session's catalog or built.

use crate::common::errors::engine_error;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{
    DataFusionError, Result, SharedResult, Statistics, exec_err, internal_datafusion_err,
    internal_err,
};
use datafusion::datasource::MemTable;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};

use crate::common::column_ref::ColumnRef;
use crate::common::options::{EngineChoice, RmqOptions};
use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::common::engine_choice::{Case, Decision, decide};
use crate::exec::range_lookup::scan::{ScanVersion, load_columns, plan_table_scan, read_version};
use crate::index::catalog::{ReservedIndex, IndexCatalog, IndexKey};
use crate::index::column_index::ColumnIndex;
use crate::index::ready_index::ReadyIndex;
use crate::index::devices::{DeviceEngine, Target};
use crate::common::ordered_type::key_bytes;
use crate::index::sort_keys::Chunks;
use crate::logical_plan::range_lookup::Source;
use rmq_engine::{EngineError, Extreme};

/// Where a relation's rows come from.
#[derive(Debug)]
pub(crate) enum RelationSource {
    /// A table, its rows in scan order.
    Table {
        name: ColumnRef,
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
    /// How many rows there are, where that is known before they are read.
    rows: Option<usize>,
    /// Which indexes the query's calls need; complete once the query is planned.
    required: Mutex<BTreeMap<(String, Extreme), Required>>,
    /// The scan of the required columns.
    scan: OnceLock<Arc<dyn ExecutionPlan>>,
    /// The indexes as the runs of the plan that go on have them.
    runs: Mutex<Vec<Run>>,
}

/// An index that calls need.
#[derive(Debug, Clone)]
struct Required {
    demand: Demand,
    /// What the option said when the query was planned.
    option: EngineChoice,
    /// The engine, once it is decided.
    decision: Option<Decision>,
}

/// What calls ask of an index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    /// About how many ranges, where that is known.
    pub(crate) ranges: Option<usize>,
    /// Whether an expression asks.
    pub(crate) in_expression: bool,
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
    pub(crate) ready: ReadyIndex,
    /// If this run built it: how long reading the column took.
    pub(crate) built: Option<Duration>,
    /// Whether it was meant for devices and is on the CPU.
    pub(crate) fell_back: bool,
}

impl Relation {
    /// The relation that `asked` names, whose rows come from `source`.
    pub(crate) async fn new(
        asked: &Source,
        source: RelationSource,
        catalog: &Arc<IndexCatalog>,
    ) -> Self {
        let (label, is_subquery) = match asked {
            Source::Table(column) => (column.0.table.to_string(), false),
            Source::Query(_) => (asked.to_string(), true),
        };
        Self {
            label,
            is_subquery,
            rows: source.rows().await,
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

    /// Notes, while the query is being planned, that a call needs this index, and decides which engine is to have it, as far
    /// as the calls noted tell.
    ///
    /// # Errors
    /// A planning error where the option demands an engine that can't be had.
    pub(crate) async fn require(
        &self,
        column: &str,
        extreme: Extreme,
        demand: Demand,
        session: &dyn Session,
    ) -> Result<()> {
        let options = RmqOptions::of(session.config_options());
        let key = (column.to_string(), extreme);
        let demand = {
            let mut required = self.required.lock().unwrap_or_else(PoisonError::into_inner);
            let known = required.entry(key.clone()).and_modify(|known| {
                let sum = known.demand.ranges.zip(demand.ranges);
                known.demand.ranges = sum.map(|(a, b)| a.saturating_add(b));
                known.demand.in_expression |= demand.in_expression;
            });
            let known = known.or_insert(Required {
                demand,
                option: options.engine,
                decision: None,
            });
            known.demand
        };
        let data_type = self.data_type(column)?;
        let partitions = session.config().target_partitions();
        let decision = self
            .decide(&key, demand, self.rows, &data_type, partitions, &options)
            .await?;
        if let Some(decision) = decision {
            self.note(&key, decision);
        }
        Ok(())
    }

    /// The type of a column, as the query is planned.
    fn data_type(&self, column: &str) -> Result<DataType> {
        let schema = match &self.source {
            RelationSource::Table { provider, .. } => provider.schema(),
            RelationSource::Query(plan) => plan.schema(),
        };
        match schema.field_with_name(column) {
            Ok(field) => Ok(field.data_type().clone()),
            Err(_) => exec_err!("the column {column} is gone since the query was planned"),
        }
    }

    async fn decide(
        &self,
        (column, extreme): &(String, Extreme),
        demand: Demand,
        rows: Option<usize>,
        data_type: &DataType,
        partitions: usize,
        options: &RmqOptions,
    ) -> Result<Option<Decision>> {
        let is_held = |target: &Target| {
            self.key(column, *extreme, target)
                .is_some_and(|key| self.catalog.has(&key))
        };
        let case = Case {
            rows,
            key_bytes: key_bytes(data_type),
            search_key_bytes: 0,
            ranges: demand.ranges,
            in_expression: demand.in_expression,
            partitions,
            is_held: &is_held,
        };
        decide(&self.catalog, options, &case).await
    }

    /// Notes which engine has an index.
    fn note(&self, key: &(String, Extreme), decision: Decision) {
        let mut required = self.required.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(required) = required.get_mut(key) {
            required.decision = Some(decision);
        }
    }

    fn required(&self) -> BTreeMap<(String, Extreme), Required> {
        self.required
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// What `EXPLAIN` says of the engine that has an index.
    pub(crate) fn engine_label(&self, column: &str, extreme: Extreme) -> String {
        let required = self.required.lock().unwrap_or_else(PoisonError::into_inner);
        match required.get(&(column.to_string(), extreme)) {
            Some(Required {
                decision: Some(decision),
                ..
            }) => decision.to_string(),
            Some(Required {
                option: option @ (EngineChoice::Cpu | EngineChoice::Cuda),
                ..
            }) => option.to_string(),
            _ => "auto (chosen when the rows are read)".to_string(),
        }
    }

    /// Plans one scan of all the columns that the query's calls need, so that all see one version of the table.
    pub(crate) async fn plan_scan(&self, session: &dyn Session) -> Result<()> {
        let scan = match &self.source {
            RelationSource::Query(plan) => Arc::clone(plan),
            RelationSource::Table { name, provider } => {
                let columns = self.required().into_keys().map(|(column, _)| column);
                let columns: BTreeSet<_> = columns.collect();
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

        let partitions = context.session_config().target_partitions();
        let mut prepared = vec![];
        let mut missing = vec![];
        for (key, required) in self.required() {
            let data_type = column_type(scan, &key.0)?;
            let held = self.held(&key, version.as_ref(), &data_type, &options);
            let mut decision = required.decision;
            if decision.is_none()
                && let Some(rows) = held.rows()
            {
                let rows = Some(rows);
                let demand = required.demand;
                decision = self
                    .decide(&key, demand, rows, &data_type, partitions, &options)
                    .await?;
            }
            if let Some(decision) = &decision {
                self.note(&key, decision.clone());
                if let Some(found) = held.find(&decision.target) {
                    prepared.push(PreparedIndex::new(key, found, decision, None));
                    continue;
                }
            }
            missing.push(Missing {
                key,
                data_type,
                demand: required.demand,
                decision,
            });
        }
        // The option may have been set lower since they were built.
        self.catalog.shrink_to(options.index_memory_limit);
        if let Some(limit) = options.device_memory_limit {
            self.catalog.shrink_devices_to(limit);
        }
        if missing.is_empty() {
            return Ok(prepared);
        }

        let started = Instant::now();
        let wanted: BTreeSet<&str> = missing.iter().map(|m| m.key.0.as_str()).collect();
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
        let run = ThisRun {
            context,
            options: &options,
            partitions,
            version,
            load_time,
        };
        for missing in missing {
            let chunks = loaded.chunks(&missing.key.0)?;
            prepared.push(self.make_missing(missing, chunks, &run).await?);
        }
        Ok(prepared)
    }

    /// Builds an index that is not held, where it is decided or else on the CPU.
    async fn make_missing(
        &self,
        missing: Missing,
        chunks: Chunks,
        run: &ThisRun<'_>,
    ) -> Result<PreparedIndex> {
        let Missing {
            key,
            data_type,
            demand,
            decision,
        } = missing;
        let ThisRun {
            context, options, ..
        } = *run;
        let decision = match decision {
            Some(decision) => decision,
            None => {
                let rows = Some(chunks.rows());
                self.decide(&key, demand, rows, &data_type, run.partitions, options)
                    .await?
                    .unwrap_or_else(|| Decision::cpu(""))
            }
        };
        self.note(&key, decision.clone());
        let building = Building {
            label: self.column_label(&key.0),
            extreme: key.1,
            data_type,
            chunks,
            threads: options.threads(),
        };
        let mut built = Some(run.load_time);
        let Target::Devices(engine) = &decision.target else {
            let held = self.build(&building, context, options).await?;
            self.keep(&key, &Target::Cpu, &held, run);
            return Ok(PreparedIndex::new(key, held, &decision, built));
        };
        let on_devices = self.build_on_devices(engine, &building, context, options);
        let why = match on_devices.await {
            Ok(held) => {
                self.keep(&key, &decision.target, &held, run);
                return Ok(PreparedIndex::new(key, held, &decision, built));
            }
            Err(error) if decision.demanded => {
                let label = building.label;
                return Err(error.context(format!("rmq.engine = 'cuda': the index of {label}")));
            }
            Err(error) => of_devices(&error).ok_or(error)?,
        };
        log::warn!("the CPU answers ranges of {}: {why}", building.label);
        self.note(&key, Decision::cpu(why));
        let version = run.version.as_ref();
        let known = self.held(&key, version, &building.data_type, options);
        let held = match known.find(&Target::Cpu) {
            Some(held) => {
                built = None;
                held
            }
            None => {
                let held = self.build(&building, context, options).await?;
                self.keep(&key, &Target::Cpu, &held, run);
                held
            }
        };
        Ok(PreparedIndex {
            fell_back: true,
            ..PreparedIndex::new(key, held, &decision, built)
        })
    }

    /// Keeps an index for later queries, where its table can tell that nothing changed.
    fn keep(
        &self,
        (column, extreme): &(String, Extreme),
        target: &Target,
        held: &Arc<ReservedIndex>,
        run: &ThisRun<'_>,
    ) {
        if let (Some(key), Some(version)) = (self.key(column, *extreme, target), &run.version)
            && run.options.keep_indexes
        {
            self.catalog.keep(key, version.of_column(column), held);
        }
    }

    /// Builds the CPU engine's index off the threads that poll streams.
    async fn build(
        &self,
        building: &Building,
        context: &Arc<TaskContext>,
        options: &RmqOptions,
    ) -> Result<Arc<ReservedIndex>> {
        let bytes = ColumnIndex::estimate_on_cpu(&building.chunks, &building.data_type);
        let limit = options.index_memory_limit;
        let memory = self
            .catalog
            .reserve(&building.label, bytes, limit, context.memory_pool())?;
        // The memory goes along: a build that has begun can't be stopped, and uses it to its end.
        building
            .spawn(move |b, _| {
                let index = ColumnIndex::on_cpu(&b.chunks, &b.data_type, b.extreme, b.threads)?;
                Ok(ReservedIndex::new(index, memory, None))
            })
            .await
    }

    /// Builds an index in the memory of devices, where others make room for it.
    ///
    /// # Errors
    /// One that [`of_devices`] knows where the CPU engine may have an answer.
    async fn build_on_devices(
        &self,
        engine: &Arc<dyn DeviceEngine>,
        building: &Building,
        context: &Arc<TaskContext>,
        options: &RmqOptions,
    ) -> Result<Arc<ReservedIndex>> {
        let (chunks, data_type) = (&building.chunks, &building.data_type);
        let needed = ColumnIndex::estimate_on_devices(&**engine, chunks, data_type);
        let bytes = ColumnIndex::estimate(&**engine, chunks, data_type);
        loop {
            let limit = options.device_memory_limit;
            let on_device = self
                .catalog
                .reserve_on_devices(&**engine, needed, limit)
                .map_err(engine_error)?;
            let limit = options.index_memory_limit;
            let memory =
                self.catalog
                    .reserve(&building.label, bytes, limit, context.memory_pool())?;
            let engine = Arc::clone(engine);
            let built = building
                .spawn(move |b, waiting| {
                    let engine = engine.until(Arc::clone(waiting.stop()));
                    let (chunks, data_type) = (&b.chunks, &b.data_type);
                    let index =
                        ColumnIndex::on_devices(&*engine, chunks, data_type, b.extreme, b.threads)?;
                    Ok(ReservedIndex::new(index, memory, Some(on_device)))
                })
                .await;
            match built {
                // Others use the device as well: what is held makes room.
                Err(error) if lacks_device_memory(&error) && self.catalog.evict_from_device() => {}
                built => return built,
            }
        }
    }

    /// The indexes of a column that the session's catalog holds.
    fn held<'a>(
        &'a self,
        key: &'a (String, Extreme),
        version: Option<&'a ScanVersion>,
        data_type: &DataType,
        options: &RmqOptions,
    ) -> Held<'a> {
        Held {
            relation: self,
            key,
            version: version.filter(|_| options.keep_indexes),
            value_type: crate::common::ordered_type::value_type(data_type),
        }
    }

    /// Under which key the session's catalog holds an index of this relation; queries have none.
    fn key(&self, column: &str, extreme: Extreme, target: &Target) -> Option<IndexKey> {
        match &self.source {
            RelationSource::Table { name, .. } => {
                let column = ColumnRef {
                    column: column.to_string(),
                    ..name.clone()
                };
                let target = target.clone();
                Some(IndexKey {
                    column,
                    extreme,
                    target,
                })
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

impl RelationSource {
    /// How many rows there are, where that is known without reading them; estimates don't count.
    async fn rows(&self) -> Option<usize> {
        let rows = match self {
            Self::Query(plan) => return exactly(&statistics(plan)?.num_rows),
            Self::Table { provider, .. } => match provider.downcast_ref::<MemTable>() {
                None => return exactly(&provider.statistics()?.num_rows),
                Some(table) => {
                    let mut rows = 0;
                    for partition in &table.batches {
                        let batches = partition.read().await;
                        rows += batches.iter().map(RecordBatch::num_rows).sum::<usize>();
                    }
                    rows
                }
            },
        };
        Some(rows)
    }
}

/// About how many rows a plan gives, where its statistics tell.
pub(crate) fn expected_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    statistics(plan)?.num_rows.get_value().copied()
}

fn statistics(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<Statistics>> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new());
    statistics.ok()
}

fn exactly(rows: &Precision<usize>) -> Option<usize> {
    match rows {
        Precision::Exact(rows) => Some(*rows),
        _ => None,
    }
}

/// Why an index could not be built on devices, if that is no error of the query: the CPU engine may have an answer.
pub(crate) fn of_devices(error: &DataFusionError) -> Option<String> {
    match error {
        DataFusionError::External(error) => {
            let error = error.downcast_ref::<EngineError>();
            error.map(ToString::to_string)
        }
        DataFusionError::ResourcesExhausted(why) => Some(why.clone()),
        _ => None,
    }
}

/// Whether the memory of devices is what lacks.
fn lacks_device_memory(error: &DataFusionError) -> bool {
    match error {
        DataFusionError::External(error) => {
            matches!(error.downcast_ref(), Some(EngineError::DeviceMemory { .. }))
        }
        _ => false,
    }
}

impl PreparedIndex {
    fn new(
        (column, extreme): (String, Extreme),
        held: Arc<ReservedIndex>,
        decision: &Decision,
        built: Option<Duration>,
    ) -> Self {
        Self {
            column,
            extreme,
            ready: ReadyIndex {
                reserved: held,
                allow_cpu_fallback: !decision.demanded,
            },
            built,
            fell_back: false,
        }
    }
}

/// What a run goes by.
struct ThisRun<'a> {
    context: &'a Arc<TaskContext>,
    options: &'a RmqOptions,
    partitions: usize,
    /// The version of what was read, if it can be told.
    version: Option<ScanVersion>,
    load_time: Duration,
}

/// An index that is not held.
struct Missing {
    key: (String, Extreme),
    data_type: DataType,
    demand: Demand,
    decision: Option<Decision>,
}

/// What the session's catalog holds of a column in this version.
struct Held<'a> {
    relation: &'a Relation,
    key: &'a (String, Extreme),
    /// None where nothing that is held serves.
    version: Option<&'a ScanVersion>,
    value_type: DataType,
}

impl Held<'_> {
    /// The index that is there.
    fn find(&self, target: &Target) -> Option<Arc<ReservedIndex>> {
        let (column, extreme) = self.key;
        let version = self.version?.of_column(column);
        let key = self.relation.key(column, *extreme, target)?;
        self.relation.catalog.find(&key, &version, &self.value_type)
    }

    /// The column's number of rows, if one of its indexes is held.
    fn rows(&self) -> Option<usize> {
        let (column, extreme) = self.key;
        let version = self.version?.of_column(column);
        let devices = self.relation.catalog.devices().in_use();
        let targets = [Some(Target::Cpu), devices.map(Target::Devices)];
        targets.into_iter().flatten().find_map(|target| {
            let key = self.relation.key(column, *extreme, &target)?;
            self.relation.catalog.rows(&key, &version)
        })
    }
}

/// What a build needs.
#[derive(Clone)]
struct Building {
    label: String,
    extreme: Extreme,
    data_type: DataType,
    chunks: Chunks,
    threads: usize,
}

impl Building {
    /// Builds off the threads that poll streams.
    async fn spawn(
        &self,
        build: impl FnOnce(&Self, &Waiting) -> Result<ReservedIndex> + Send + 'static,
    ) -> Result<Arc<ReservedIndex>> {
        let this = self.clone();
        let held = blocking(move |waiting| build(&this, &waiting)).await?;
        Ok(Arc::new(held))
    }
}
