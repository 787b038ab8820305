//! A relation whose rows have positions: a table or a subquery that range calls of one query look up in.

use std::sync::{Arc, OnceLock};

use datafusion::catalog::Session;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::common::once_per_run::{PerContext, SharedWork};
use crate::exec::range_lookup::index_builder::{IndexBuilder, PreparedIndex};
use crate::exec::range_lookup::required::{IndexId, IndexUse, RequiredIndexes};
use crate::exec::range_lookup::scan::RelationScan;
use crate::exec::range_lookup::source::RelationSource;
use crate::kept::catalog::IndexCatalog;
use datafusion_rmq_logical::common::options::RmqOptions;
use datafusion_rmq_logical::common::unique_id::unique_id;
use datafusion_rmq_logical::logical_plan::range_lookup::Source;
use rmq_arrow::common::range_function::IndexKind;

/// A relation that calls of one query look up in. All operators with such calls share it.
#[derive(Debug)]
pub(crate) struct Relation {
    /// Tells it from those of other queries, also where it is sent to another process.
    pub(crate) id: u64,
    pub(crate) required: RequiredIndexes,
    /// The number of rows, if it is known before they are read.
    rows: Option<usize>,
    /// The scan of the required columns, once it is planned.
    scan: OnceLock<RelationScan>,
    /// The indexes of each run: a plan that is run again reads the data again.
    prepared: PerContext<SharedWork<Vec<PreparedIndex>>>,
}

impl Relation {
    /// The relation `named`, whose rows come from `source`.
    pub(crate) async fn new(
        named: &Source,
        source: RelationSource,
        catalog: &Arc<IndexCatalog>,
    ) -> Self {
        let rows = source.rows().await;
        Self {
            id: unique_id(),
            required: RequiredIndexes::new(named, source, catalog),
            rows,
            scan: OnceLock::new(),
            prepared: PerContext::default(),
        }
    }

    /// A relation that another process has planned, of a query that is executed once.
    pub(crate) fn planned(required: RequiredIndexes, scan: RelationScan) -> Self {
        Self {
            id: unique_id(),
            required,
            rows: None,
            scan: OnceLock::from(scan),
            prepared: PerContext::of_one_run(),
        }
    }

    /// The scan of the required columns, if it is planned.
    pub(crate) fn scan(&self) -> Option<&RelationScan> {
        self.scan.get()
    }

    /// The rows that its scan has read so far. A table in memory is not read.
    pub(crate) fn rows_read(&self) -> usize {
        match self.scan.get() {
            Some(RelationScan::Plan(scan)) => rows_of_leaves(&scan.plan),
            _ => 0,
        }
    }

    /// The name of a column in `EXPLAIN`.
    pub(crate) fn column_label(&self, column: &str) -> String {
        self.required.column_label(column)
    }

    /// Registers, while the query is planned, that a call needs an index, and chooses the engine of the index if the
    /// calls registered so far tell enough.
    ///
    /// # Errors
    /// A planning error if the option forces an engine that is not available.
    pub(crate) async fn require(
        &self,
        column: &str,
        kind: IndexKind,
        index_use: IndexUse,
        session: &dyn Session,
    ) -> Result<()> {
        let options = RmqOptions::of(session.config_options());
        let id = index_id(column, kind);
        let index_use = self.required.add(&id, index_use, options.engine);
        let data_type = self.required.source.data_type(column)?;
        let partitions = session.config().target_partitions();
        let decision = self
            .required
            .decide(&id, index_use, self.rows, &data_type, partitions, &options)
            .await?;
        if let Some(decision) = decision {
            self.required.record(&id, decision);
        }
        Ok(())
    }

    /// The engine of an index in `EXPLAIN`.
    pub(crate) fn engine_label(&self, column: &str, kind: IndexKind) -> String {
        self.required.engine_label(&index_id(column, kind))
    }

    /// Plans one scan of all columns to be indexed, so that all indexes see the same version of the table.
    ///
    /// # Errors
    /// An error that names the columns that do not exist any more, and the provider's own.
    pub(crate) async fn plan_scan(&self, session: &dyn Session) -> Result<()> {
        let columns = self.required.columns();
        let versioned = self.required.catalog.versioned();
        let source = &self.required.source;
        let scan = source.plan_scan(session, &columns, versioned).await?;
        // A relation is planned once, so the scan is not set yet.
        let _ = self.scan.set(scan);
        Ok(())
    }

    /// Returns an index. The first call in a run prepares all indexes that the query needs of this relation.
    ///
    /// # Errors
    /// Those of reading the table and of building the indexes; all operators of the run get the same.
    pub(crate) async fn index(
        self: &Arc<Self>,
        column: &str,
        kind: IndexKind,
        context: &Arc<TaskContext>,
    ) -> Result<PreparedIndex> {
        let work = self.prepared.get_retained(context);
        let prepared = work.get_or_restart(|| {
            let (this, context) = (Arc::clone(self), Arc::clone(context));
            async move { this.prepare(&context).await }
        });
        let id = index_id(column, kind);
        let prepared = prepared.await?;
        let prepared = prepared.iter().find(|prepared| prepared.id == id);
        prepared
            .cloned()
            .ok_or_else(|| internal_datafusion_err!("no index of {column} was registered"))
    }

    async fn prepare(&self, context: &Arc<TaskContext>) -> Result<Vec<PreparedIndex>> {
        match self.scan.get() {
            Some(scan) => {
                let builder = IndexBuilder::new(&self.required, context);
                builder.prepare(scan).await
            }
            None => internal_err!(
                "the relation {} was not planned: the query planner did not call datafusion_rmq::plan",
                self.required.label
            ),
        }
    }
}

fn index_id(column: &str, kind: IndexKind) -> IndexId {
    IndexId {
        column: column.to_string(),
        kind,
    }
}

/// The rows that the operators without an input have returned so far.
fn rows_of_leaves(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let children = plan.children();
    if children.is_empty() {
        let metrics = plan.metrics();
        return metrics.and_then(|m| m.output_rows()).unwrap_or(0);
    }
    children.into_iter().map(rows_of_leaves).sum()
}
