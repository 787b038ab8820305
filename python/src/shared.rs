//! What a session shares with its queries: DataFusion's context, and the tables that single statements see.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::{ParamValues, Result, TableReference};
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rmq::{RmqOptions, prepare_statement};
use pyo3::prelude::*;
use tokio::sync::RwLock;

use crate::insert_values::parenthesize_parameters;

/// Options that are no part of a configuration; SET sets them.
pub const RUNTIME_OPTIONS: [&str; 3] = [
    "datafusion.runtime.max_temp_directory_size",
    "datafusion.runtime.memory_limit",
    "datafusion.runtime.temp_directory",
];

/// Tables that one statement sees, by name.
pub type Frames = Vec<(String, Arc<dyn TableProvider>)>;

/// A session and its lock.
pub struct Shared {
    pub ctx: SessionContext,
    /// Held while names are resolved, exclusively by a statement with frames: these are registered for that time, and
    /// no other statement sees them.
    pub names: RwLock<()>,
    /// Makes a progress bar.
    pub progress: Option<Py<PyAny>>,
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
        let (runtime, plain): (Vec<_>, Vec<_>) = options
            .into_iter()
            .partition(|(name, _)| RUNTIME_OPTIONS.contains(&name.as_str()));
        let mut config = SessionConfig::new()
            .with_information_schema(true)
            .with_option_extension(RmqOptions::default());
        for (name, value) in plain {
            config.options_mut().set(&name, &value)?;
        }
        let ctx = SessionContext::new_with_config(config);
        datafusion_rmq::register(&ctx);
        for (name, value) in runtime {
            // Planning it sets it.
            ctx.sql(&format!("SET {name} = '{}'", value.replace('\'', "''")))
                .await?;
        }
        Ok(Self {
            ctx,
            names: RwLock::default(),
            progress,
        })
    }

    /// Plans a statement.
    pub async fn plan(
        &self,
        text: &str,
        params: Option<ParamValues>,
        frames: &Frames,
    ) -> Result<LogicalPlan> {
        let state = self.ctx.state();
        let planned = async {
            let dialect = state.config_options().sql_parser.dialect;
            let mut statement = state.sql_to_statement(text, &dialect)?;
            prepare_statement(&mut statement, state.config_options())?;
            parenthesize_parameters(&mut statement);
            let plan = state.statement_to_plan(statement).await?;
            match params {
                Some(params) => plan.with_param_values(params),
                None => Ok(plan),
            }
        };
        self.with_frames(frames, planned).await
    }

    /// Plans a statement, and runs it if it is no query.
    pub async fn statement(
        &self,
        text: &str,
        params: Option<ParamValues>,
        frames: &Frames,
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
            .filter(|(name, _)| Some(name.as_str()) != created);
        let others: Frames = others.cloned().collect();
        let run = async {
            let frame = self.ctx.execute_logical_plan(plan.clone()).await?;
            run_at_once(frame).await
        };
        let frame = self.with_frames(&others, run).await?;
        Ok(Planned { frame, changes })
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
            let reference = TableReference::bare(name.as_str());
            if !self.ctx.table_exist(reference.clone())? {
                self.ctx
                    .register_table(reference.clone(), Arc::clone(table))?;
                registered.names.push(reference);
            }
        }
        work.await
    }
}

/// The table or view that a statement creates.
fn created(plan: &LogicalPlan) -> Option<&str> {
    match plan {
        LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) => Some(create.name.table()),
        LogicalPlan::Ddl(DdlStatement::CreateView(create)) => Some(create.name.table()),
        _ => None,
    }
}

/// Runs a statement that changes data, so that it runs once and when it is given. The result has its counts.
async fn run_at_once(frame: DataFrame) -> Result<DataFrame> {
    match frame.logical_plan() {
        LogicalPlan::Dml(_) | LogicalPlan::Copy(_) => frame.cache().await,
        _ => Ok(frame),
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
