//! The operator of `CREATE INDEX`: builds what range functions or range joins look for, and gives it a name.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use datafusion::common::{Result, exec_err, resources_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExprRef};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::{TryStreamExt, stream};

use crate::exec::common::another_run::another_run;
use crate::exec::common::plan_key::ScanPlan;
use crate::exec::common::plan_methods::{no_expressions, replace_input};
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::builder::BuildSideBuilder;
use crate::exec::range_join::build_side::collect_or_spill::Collected;
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::engine_choice::RangeJoinEngine;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::kept::catalog::IndexCatalog;
use crate::kept::entries::Kept;
use crate::kept::version::Version;
use datafusion_rmq_logical::common::options::{ByteSize, RmqOptions};
use datafusion_rmq_logical::logical_plan::named_index::NamedIndex;

/// How long files that have just been written are waited for, until their times tell whether they change again.
const SETTLING: Duration = Duration::from_secs(5);

/// How often they are looked at.
const SETTLING_STEP: Duration = Duration::from_millis(300);

/// What makes the index available by its name, such as a table of a schema.
pub(crate) trait Publisher: fmt::Debug + Send + Sync {
    /// Called before the index is built.
    ///
    /// # Errors
    /// If the name can't be had.
    fn publish(&self) -> Result<()>;
}

/// Builds an index, and gives it a name. Returns no rows.
#[derive(Debug)]
pub struct CreateIndexExec {
    build: IndexBuild,
    properties: Arc<PlanProperties>,
}

impl CreateIndexExec {
    /// `input` has the key columns of the table, in the order of the index; for an index of one column, a lookup in it.
    pub(crate) fn new(
        input: Arc<dyn ExecutionPlan>,
        (index, if_not_exists): (NamedIndex, bool),
        catalog: Arc<IndexCatalog>,
        publisher: Arc<dyn Publisher>,
    ) -> Self {
        Self::with_build(IndexBuild {
            input,
            index,
            if_not_exists,
            catalog,
            publisher,
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    fn with_build(build: IndexBuild) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::new(Schema::empty())),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        Self {
            build,
            properties: Arc::new(properties),
        }
    }
}

impl DisplayAs for CreateIndexExec {
    fn fmt_as(&self, _t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let index = &self.build.index;
        let (name, label) = (&index.name, index.label());
        write!(f, "CreateIndexExec: {name} on {label}")
    }
}

impl ExecutionPlan for CreateIndexExec {
    fn name(&self) -> &'static str {
        "CreateIndexExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.build.input]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        // As the searched side of a range join, so that the plan of that is the same.
        vec![false]
    }

    no_expressions!();

    replace_input!(|create, input| Self::with_build(IndexBuild {
        input,
        metrics: ExecutionPlanMetricsSet::new(),
        ..create.build.clone()
    }));

    fn execute(
        &self,
        _partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let build = self.build.clone();
        let done = async move {
            let outcome = build.run(&context).await;
            let name = &build.index.name;
            outcome.map_err(|error| error.context(format!("CREATE INDEX {name}")))
        };
        let schema = self.schema();
        let rows = stream::once(done).try_filter_map(|()| async { Ok(None::<RecordBatch>) });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.build.metrics.clone_inner())
    }
}

/// What building an index needs.
#[derive(Debug, Clone)]
struct IndexBuild {
    input: Arc<dyn ExecutionPlan>,
    index: NamedIndex,
    if_not_exists: bool,
    catalog: Arc<IndexCatalog>,
    publisher: Arc<dyn Publisher>,
    metrics: ExecutionPlanMetricsSet,
}

impl IndexBuild {
    async fn run(&self, context: &Arc<TaskContext>) -> Result<()> {
        if self.if_not_exists && self.catalog.has_named(&self.index.name) {
            return Ok(());
        }
        self.catalog.check_name(&self.index)?;
        let options = RmqOptions::of(context.session_config().options());
        if !options.keep_indexes {
            return exec_err!("rmq.keep_indexes = false, so that no index is kept; set it to true");
        }
        self.publisher.publish()?;
        match self.index.columns.as_slice() {
            [_] => self.build_column(options.index_memory_limit, context).await,
            _ => self.sort_rows(options.index_memory_limit, context).await,
        }
    }

    /// Builds the indexes of one column, for minima and for maxima.
    async fn build_column(&self, limit: ByteSize, context: &TaskContext) -> Result<()> {
        let started = Instant::now();
        loop {
            // In another context, the indexes are built again.
            let input = Arc::clone(&self.input).reset_state()?;
            let config = context.session_config().clone();
            let mut rows = input.execute(0, another_run(context, config))?;
            while rows.try_next().await?.is_some() {}
            let is_of = |kept: &dyn Kept, _: &Version| kept.is_of(&self.index);
            if self.catalog.name(&self.index, is_of, limit)? {
                return Ok(());
            }
            if started.elapsed() > SETTLING {
                return self.unknown_version();
            }
            tokio::time::sleep(SETTLING_STEP).await;
        }
    }

    fn unknown_version<T>(&self) -> Result<T> {
        let table = &self.index.table;
        exec_err!(
            "the table {table} can't tell whether it has changed since, so that its index would be built for each query: only \
             tables in memory, at most 256 Parquet files, and tables that state their versions can, if they have rows and are \
             not being written"
        )
    }

    /// Sorts the rows by all columns of the input.
    async fn sort_rows(&self, limit: ByteSize, context: &Arc<TaskContext>) -> Result<()> {
        if has_no_rows(&self.input) {
            // The query that sorts the first rows keeps them under this name.
            return self.catalog.name_unbuilt(&self.index);
        }
        let schema = self.input.schema();
        let columns = key_columns(&schema);
        let keeper = self.settled_keeper(&columns, context).await?;
        if self.name_rows(&keeper, limit)? {
            return Ok(());
        }
        let builder = BuildSideBuilder::try_new(
            columns,
            &schema,
            BuildMetrics::new(&self.metrics),
            context,
            RangeJoinEngine::cpu(),
            true,
            1,
        )?;
        let keeper = Arc::new(keeper);
        if let Some(persisted) = keeper.find_persisted().await?
            && builder.load(&keeper, persisted).await?.is_some()
            && self.name_rows(&keeper, limit)?
        {
            return Ok(());
        }
        let plan = Arc::clone(keeper.plan());
        let partitions = 0..plan.output_partitioning().partition_count();
        let inputs = partitions.map(|partition| plan.execute(partition, Arc::clone(context)));
        let Collected { rows, runs, failed } =
            builder.collect(inputs.collect::<Result<_>>()?).await?;
        if let Some(error) = failed.error() {
            return Err(error);
        }
        if runs.is_some() {
            return resources_err!(
                "the session's memory pool has too little memory to sort the rows"
            );
        }
        let builder = builder.with_keeper(Some(keeper), None);
        let side = builder.sort_and_index(rows).await?;
        builder.finish(side);
        let keeper = self.settled_keeper(&builder.columns, context).await?;
        if self.name_rows(&keeper, limit)? {
            return Ok(());
        }
        if !keeper.is_unchanged().await {
            return exec_err!("the table has changed while its index was built");
        }
        resources_err!(
            "the index needs more memory than rmq.index_memory_limit = '{limit}' leaves; raise it"
        )
    }

    /// Names the rows, if they are kept.
    fn name_rows(&self, keeper: &BuildSideKeeper, limit: ByteSize) -> Result<bool> {
        let is_of = |kept: &dyn Kept, version: &Version| keeper.is_of(kept, version);
        self.catalog.name(&self.index, is_of, limit)
    }

    /// What keeps the rows, once files that were written just now have got old enough for it.
    async fn settled_keeper(
        &self,
        columns: &BuildColumns,
        context: &Arc<TaskContext>,
    ) -> Result<BuildSideKeeper> {
        let started = Instant::now();
        loop {
            let keeper = BuildSideKeeper::of(&self.input, columns, None, context).await;
            match keeper.map(BuildSideKeeper::in_any_pool) {
                Some(keeper) if !keeper.is_in_order() => {
                    return exec_err!(
                        "the rows of {} come in another order each time, as those of a filter over several partitions do",
                        self.index.table
                    );
                }
                Some(keeper) if keeper.is_settled() => return Ok(keeper),
                Some(_) if started.elapsed() <= SETTLING => {
                    tokio::time::sleep(SETTLING_STEP).await;
                }
                _ => return self.unknown_version(),
            }
        }
    }
}

/// Whether this is the scan of a table in memory without a row, which would tell its version from others.
fn has_no_rows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    ScanPlan::of(plan).and_then(|scanned| scanned.rows_in_memory()) == Some(0)
}

/// The columns of a build side that are all of this schema, as keys.
fn key_columns(schema: &Schema) -> BuildColumns {
    let keys = schema.fields().iter().enumerate();
    let keys = keys.map(|(i, field)| Arc::new(Column::new(field.name(), i)) as PhysicalExprRef);
    BuildColumns::of_keys(keys.collect())
}

/// Notes that the rows of this plan, which has the key columns of a table, are those of a named index, so that the next
/// query that sorts them keeps them under its name.
pub(crate) async fn expect_rows(
    name: &str,
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
) {
    let columns = key_columns(&plan.schema());
    if let Some(keeper) = BuildSideKeeper::of(plan, &columns, None, context).await {
        keeper.expect(name);
    }
}
