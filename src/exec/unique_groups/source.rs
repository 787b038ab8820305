//! Looks for duplicates in the table that grouping columns come from, where its rows are in memory.
//!
//! Operators between the table and the aggregate drop rows or add columns, but none repeats a row. So a column without
//! duplicates in the table has none in the aggregate's input.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use futures::future::try_join_all;

use crate::exec::common::blocking::joined;
use crate::exec::common::once_per_run::SharedWork;
use crate::exec::range_join::exec::RangeJoinExec;
use crate::exec::range_lookup::exec::RangeLookupExec;
use crate::exec::unique_groups::ascending::AscendingColumns;

/// Rows that a task checks before it yields.
const STEP_ROWS: usize = 1 << 16;

/// Grouping columns of a table in memory.
#[derive(Debug, Clone)]
pub(crate) struct SourceKeys {
    /// The scan of a table in memory.
    scan: Arc<dyn ExecutionPlan>,
    /// Indexes of the columns in the table's batches.
    columns: Vec<usize>,
    /// Whether a column is without duplicates, which is found out once: the batches of a plan do not change.
    is_unique: Arc<SharedWork<bool>>,
}

impl SourceKeys {
    /// Finds the table of these columns of a plan. `None` if they do not come unchanged from a table in memory.
    pub(crate) fn find(plan: &Arc<dyn ExecutionPlan>, keys: &[usize]) -> Option<Self> {
        let mut columns = vec![];
        let mut found = None;
        for key in keys {
            if let Some((scan, column)) = source_column(plan, *key) {
                columns.push(column);
                found = Some(scan);
            }
        }
        Some(Self {
            scan: Arc::clone(found?),
            columns,
            is_unique: Arc::default(),
        })
    }

    /// Whether one of the columns has no duplicates, as far as ascending values show it. `tasks` threads look at the
    /// table.
    ///
    /// # Errors
    /// An internal error if a task panics.
    pub(crate) async fn is_unique(&self, tasks: usize) -> Result<bool> {
        let this = self.clone();
        let found = self.is_unique.get_or_restart(|| this.check(tasks)).await?;
        Ok(*found)
    }

    async fn check(self, tasks: usize) -> Result<bool> {
        let rows: usize = self.batches().map(RecordBatch::num_rows).sum();
        let tasks = tasks.min(rows / STEP_ROWS).max(1);
        let check = Arc::new(Check {
            ascending: AscendingColumns::new(&(0..self.columns.len()).collect::<Vec<_>>()),
            is_contradicted: AtomicBool::new(false),
            keys: self,
        });
        let tasks = (0..tasks).map(|task| SpawnedTask::spawn(Arc::clone(&check).run(task, tasks)));
        // All tasks start before the first is awaited.
        let tasks: Vec<_> = tasks.collect();
        let checked = tasks.into_iter();
        try_join_all(checked.map(|task| joined(task, "looking for duplicates"))).await?;
        Ok(!check.is_contradicted.load(Ordering::Relaxed))
    }

    fn batches(&self) -> impl Iterator<Item = &RecordBatch> {
        let table = memory_table(&self.scan);
        let partitions = table.into_iter().flat_map(MemorySourceConfig::partitions);
        partitions.flatten()
    }
}

/// A search for duplicates that several tasks share.
struct Check {
    keys: SourceKeys,
    ascending: AscendingColumns,
    is_contradicted: AtomicBool,
}

impl Check {
    /// Looks at every batch whose number is `task`, modulo the number of tasks.
    async fn run(self: Arc<Self>, task: usize, tasks: usize) -> Result<()> {
        for batch in self.keys.batches().skip(task).step_by(tasks) {
            let columns = batch.project(&self.keys.columns)?;
            for start in (0..columns.num_rows()).step_by(STEP_ROWS) {
                if self.is_contradicted.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let rows = STEP_ROWS.min(columns.num_rows() - start);
                if !self.ascending.add(&columns.slice(start, rows)) {
                    self.is_contradicted.store(true, Ordering::Relaxed);
                }
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }
}

/// The table in memory that a plan scans, if it is such a scan.
fn memory_table(plan: &Arc<dyn ExecutionPlan>) -> Option<&MemorySourceConfig> {
    let scan = plan.downcast_ref::<DataSourceExec>()?;
    scan.data_source().downcast_ref::<MemorySourceConfig>()
}

/// The scan of a table in memory, and the column of the table, whose values are in this column of a plan: each row of
/// the table at most once.
fn source_column(
    mut plan: &Arc<dyn ExecutionPlan>,
    mut column: usize,
) -> Option<(&Arc<dyn ExecutionPlan>, usize)> {
    loop {
        if let Some(table) = memory_table(plan) {
            let column = match table.projection() {
                Some(projection) => *projection.get(column)?,
                None => column,
            };
            return Some((plan, column));
        }
        plan = if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
            let expr = &projection.expr().get(column)?.expr;
            column = expr.downcast_ref::<Column>()?.index();
            projection.input()
        } else if let Some(filter) = plan.downcast_ref::<FilterExec>() {
            if let Some(projection) = filter.projection() {
                column = *projection.get(column)?;
            }
            filter.input()
        } else if let Some(join) = plan.downcast_ref::<RangeJoinExec>() {
            // A join that returns pairs has a probe row several times.
            let is_probe_row = !join.returns_rows();
            let is_probe_column = column < join.probe().schema().fields().len();
            (is_probe_row && is_probe_column).then(|| join.probe())?
        } else if let Some(lookup) = plan.downcast_ref::<RangeLookupExec>() {
            (column < lookup.input().schema().fields().len()).then(|| lookup.input())?
        } else if plan.is::<RepartitionExec>()
            || plan.is::<SortExec>()
            || plan.is::<CooperativeExec>()
        {
            plan.children().first()?
        } else {
            return None;
        };
    }
}
