//! What a session shares with its queries: DataFusion's context, and the tables that single statements see.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::catalog::{MemoryCatalogProvider, MemorySchemaProvider, TableProvider};
use datafusion::common::{ParamValues, ResolvedTableReference, Result, TableReference, plan_err};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::MemTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::{AggregateUDF, DdlStatement, LogicalPlan, ScalarUDF, WindowUDF};
use datafusion::optimizer::Analyzer;
use datafusion::physical_plan::collect_partitioned;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rmq::parts::{parse_statement, plan_statement, prepare_statement};
use datafusion_rmq::{RmqOptions, SessionStateBuilderExt};
use pyo3::prelude::*;
use tokio::sync::RwLock;

use crate::foreign_exec::HideForeignPlans;
use crate::numbered_rows::NumberRowsInOrder;
use crate::ordered_categories::{OrderedCategories, check_created, check_query};
use crate::placeholders::{
    cast_updated, check_values, number_question_marks, parenthesize_inserted,
};
use crate::progress::RunningPlan;
use crate::run_merge::MergeRuns;

/// How names of options begin that are no part of a configuration, but of its runtime.
const RUNTIME: &str = "datafusion.runtime.";

/// The full names of all options.
pub fn option_names() -> Vec<String> {
    let config = SessionConfig::new().with_option_extension(RmqOptions::default());
    let mut entries = config.options().entries();
    entries.extend(RuntimeEnvBuilder::default().entries());
    entries.into_iter().map(|entry| entry.key).collect()
}

/// Tables that one statement sees, by name.
pub type Frames = Vec<(TableReference, Arc<dyn TableProvider>)>;

/// A session and its lock.
pub struct Shared {
    pub ctx: SessionContext,
    /// Held while names are resolved, exclusively by a statement with frames: these are registered for that time, and
    /// no other statement sees them.
    pub names: RwLock<()>,
    /// Makes a progress bar.
    pub progress: Option<Py<PyAny>>,
    /// Names of functions of another session that were registered for a statement, and may have changed since.
    borrowed: Mutex<HashSet<String>>,
}

/// A statement that was planned, and has run if it is no query.
pub struct Planned {
    pub frame: DataFrame,
    /// Whether it changed rows or tables. Of changed rows, `frame` has the number.
    pub changes: bool,
}

impl Shared {
    /// Opens a session with the options of these full names. `progress` makes a progress bar for a query.
    pub async fn open(
        options: HashMap<String, String>,
        progress: Option<Py<PyAny>>,
    ) -> Result<Self> {
        let mut config = SessionConfig::new()
            .with_information_schema(true)
            .with_option_extension(RmqOptions::default());
        // DataFusion would keep its list of a folder's files for as long as the session lives, so that no query would
        // see a file that is added later.
        let mut runtime = RuntimeEnvBuilder::new().with_object_list_cache_limit(0);
        let mut settings = BTreeMap::new();
        for (name, value) in options {
            // Each SET of one of the first three would put the other two back to their defaults.
            match name.strip_prefix(RUNTIME) {
                Some("temp_directory") => runtime = runtime.with_temp_file_path(value),
                Some("max_temp_directory_size") => {
                    let limit = SessionContext::parse_capacity_limit(&name, &value)?;
                    runtime = runtime.with_max_temp_directory_size(limit as u64);
                }
                Some("max_spill_merge_fan_in") => {
                    let parsed = value.parse();
                    let files = parsed.or_else(|_| plan_err!("{name}={value}: no number of files"));
                    runtime = runtime.with_max_spill_merge_fan_in(files?);
                }
                Some(_) => {
                    settings.insert(name, value);
                }
                None => config.options_mut().set(&name, &value)?,
            }
        }
        let mut analyzer = Analyzer::default();
        analyzer.rules.insert(0, Arc::new(OrderedCategories));
        let mut state = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(runtime.build_arc()?)
            .with_analyzer_rules(analyzer.rules)
            .with_default_features()
            .with_rmq()
            .with_physical_optimizer_rule(Arc::new(MergeRuns));
        let rules = state.physical_optimizers().get_or_insert_default();
        rules.rules.insert(0, Arc::new(HideForeignPlans));
        rules.rules.insert(1, Arc::new(NumberRowsInOrder));
        let ctx = SessionContext::new_with_state(state.build());
        // In the order of their names, since a cache has a time to live only where it has a limit.
        for (name, value) in settings {
            // Planning it sets it.
            ctx.sql(&format!("SET {name} = '{}'", value.replace('\'', "''")))
                .await?;
        }
        Ok(Self {
            ctx,
            names: RwLock::default(),
            progress,
            borrowed: Mutex::default(),
        })
    }

    /// Plans a statement.
    pub async fn plan(
        &self,
        text: &str,
        params: Option<ParamValues>,
        frames: &Frames,
    ) -> Result<LogicalPlan> {
        datafusion_rmq::follow_memory_limit(&self.ctx);
        let state = self.ctx.state();
        let planned = async {
            let mut statement = parse_statement(&state, text)?;
            let marks = number_question_marks(&mut statement)?;
            prepare_statement(&mut statement, state.config_options())?;
            parenthesize_inserted(&mut statement);
            let plan = cast_updated(plan_statement(&state, statement).await?)?;
            let Some(params) = params else {
                return Ok(plan);
            };
            check_values(marks, &params)?;
            plan.with_param_values(params)
        };
        let plan = self.with_frames(frames, planned).await?;
        self.check_target(&plan, frames)?;
        // Now, as DataFusion analyzes a query when it runs.
        check_query(&plan)?;
        Ok(plan)
    }

    /// Refuses to change a table that only this statement sees.
    fn check_target(&self, plan: &LogicalPlan, frames: &Frames) -> Result<()> {
        let (statement, table) = match plan {
            LogicalPlan::Dml(change) => (change.op.to_string(), &change.table_name),
            LogicalPlan::Ddl(DdlStatement::CreateIndex(create)) => {
                ("CREATE INDEX".to_string(), &create.table)
            }
            _ => return Ok(()),
        };
        let target = self.resolved(table);
        if frames.iter().any(|(name, _)| self.resolved(name) == target) {
            return plan_err!(
                "{statement} {table}: the table is read for this statement alone and can't be changed; register it, or, if \
                 it is a table of session=, change it there"
            );
        }
        Ok(())
    }

    fn resolved(&self, table: &TableReference) -> ResolvedTableReference {
        let state = self.ctx.state();
        let defaults = &state.config_options().catalog;
        let (catalog, schema) = (&defaults.default_catalog, &defaults.default_schema);
        table.clone().resolve(catalog, schema)
    }

    /// Plans a statement, and runs it if it is no query: once, and when it is given. `running` becomes the plan of what
    /// runs then and reads rows.
    pub async fn statement(
        &self,
        text: &str,
        params: Option<ParamValues>,
        frames: &Frames,
        running: &RunningPlan,
    ) -> Result<Planned> {
        let plan = self.plan(text, params, frames).await?;
        let changes = matches!(
            plan,
            LogicalPlan::Ddl(_) | LogicalPlan::Dml(_) | LogicalPlan::Copy(_)
        );
        // A table can be made of a frame of the same name.
        let created = created(&plan);
        let others = frames
            .iter()
            .filter(|(name, _)| Some(name.table()) != created);
        let others: Frames = others.cloned().collect();
        let run = async {
            let plan = self.with_collected_input(plan, running).await?;
            let frame = self.ctx.execute_logical_plan(plan).await?;
            match frame.logical_plan() {
                LogicalPlan::Dml(_) | LogicalPlan::Copy(_) => self.collected(frame, running).await,
                _ => Ok(frame),
            }
        };
        // On the heap: it is large.
        let frame = self.with_frames(&others, Box::pin(run)).await?;
        Ok(Planned { frame, changes })
    }

    /// Runs the query of a CREATE TABLE … AS that will make a table. Its rows are then the input, which DataFusion
    /// reads without a copy. It would run the query itself otherwise, and show its plan to no progress bar.
    async fn with_collected_input(
        &self,
        plan: LogicalPlan,
        running: &RunningPlan,
    ) -> Result<LogicalPlan> {
        let LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(mut create)) = plan else {
            return Ok(plan);
        };
        check_created(&create.input)?;
        let replaces = create.or_replace && !create.if_not_exists;
        let exists = self.ctx.table_exist(create.name.clone())?;
        if !create.temporary && (replaces || !exists) {
            let state = self.ctx.state();
            // Its schema is that of the table.
            let input = state.optimize(&create.input)?;
            let rows = self
                .collected(DataFrame::new(state, input), running)
                .await?;
            create.input = Arc::new(rows.into_unoptimized_plan());
        }
        Ok(LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)))
    }

    /// Runs a query whole. Its rows are a table, in the same partitions.
    async fn collected(&self, frame: DataFrame, running: &RunningPlan) -> Result<DataFrame> {
        let schema = Arc::clone(frame.schema().inner());
        let context = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await?;
        let plan = Arc::clone(running.get_or_init(|| plan));
        let rows = collect_partitioned(plan, context).await?;
        self.ctx
            .read_table(Arc::new(MemTable::try_new(schema, rows)?))
    }

    /// Registers a table in place of one of the same name.
    pub async fn replace(&self, name: String, table: Arc<dyn TableProvider>) -> Result<()> {
        let _exclusive = self.names.write().await;
        let name = TableReference::bare(name);
        self.ctx.deregister_table(name.clone())?;
        self.ctx.register_table(name, table)?;
        self.drop_unused_indexes().await
    }

    /// Removes a table, and returns whether there was one.
    pub async fn remove(&self, name: String) -> Result<bool> {
        let _exclusive = self.names.write().await;
        let removed = self.ctx.deregister_table(TableReference::bare(name))?;
        let found = removed.is_some();
        drop(removed);
        self.drop_unused_indexes().await?;
        Ok(found)
    }

    /// Frees the indexes of tables that are gone, and the columns that these keep: listing indexes drops them.
    async fn drop_unused_indexes(&self) -> Result<()> {
        let listed = self.ctx.sql("SELECT count(*) FROM rmq_indexes()").await?;
        listed.collect().await?;
        Ok(())
    }

    /// Does `work`, in which names are resolved, with these frames as tables. A registered table hides a frame.
    pub async fn with_frames<T>(
        &self,
        frames: &Frames,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if frames.is_empty() {
            let _shared = self.names.read().await;
            return work.await;
        }
        let _exclusive = self.names.write().await;
        let mut registered = Registered {
            ctx: &self.ctx,
            names: vec![],
        };
        for (name, table) in frames {
            self.make_schema_of(name)?;
            if !self.ctx.table_exist(name.clone())? {
                self.ctx.register_table(name.clone(), Arc::clone(table))?;
                registered.names.push(name.clone());
            }
        }
        work.await
    }

    /// Makes the schema of a table of another session, and its catalog, unless this session has them.
    fn make_schema_of(&self, table: &TableReference) -> Result<()> {
        let name = self.resolved(table);
        let catalog = self.ctx.catalog(&name.catalog).unwrap_or_else(|| {
            let made = Arc::new(MemoryCatalogProvider::new());
            self.ctx
                .register_catalog(&*name.catalog, Arc::clone(&made) as _);
            made
        });
        if catalog.schema(&name.schema).is_none() {
            catalog.register_schema(&name.schema, Arc::new(MemorySchemaProvider::new()))?;
        }
        Ok(())
    }

    /// The names of functions that [`Self::borrow_function`] has registered.
    pub fn borrowed_functions(&self) -> MutexGuard<'_, HashSet<String>> {
        self.borrowed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a function of another session, in place of an earlier one of the same name.
    pub fn borrow_function(&self, name: String, function: BorrowedFunction) {
        match function {
            BorrowedFunction::Scalar(function) => self.ctx.register_udf(function),
            BorrowedFunction::Aggregate(function) => self.ctx.register_udaf(function),
            BorrowedFunction::Window(function) => self.ctx.register_udwf(function),
        }
        self.borrowed_functions().insert(name);
    }
}

/// A function of another session.
pub enum BorrowedFunction {
    Scalar(ScalarUDF),
    Aggregate(AggregateUDF),
    Window(WindowUDF),
}

/// The table or view that a statement creates.
fn created(plan: &LogicalPlan) -> Option<&str> {
    match plan {
        LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => Some(create.name.table()),
        LogicalPlan::Ddl(DdlStatement::CreateView(create)) => Some(create.name.table()),
        _ => None,
    }
}

/// Registered frames, which are tables until this is dropped, also if the work is cancelled.
struct Registered<'a> {
    ctx: &'a SessionContext,
    names: Vec<TableReference>,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        for name in self.names.drain(..) {
            // It fails only if the schema is gone, and the table with it.
            let _ = self.ctx.deregister_table(name);
        }
    }
}
