//! Scans of tables where a range join may keep their rows: of those that state their versions, which tell it, and of
//! those in memory, which queries share.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{MemTable, ScanArgs, ScanResult, Session, TableProvider};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Constraints, Result, Statistics};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::logical_expr::{
    Expr, LogicalPlan, TableProviderFilterPushDown, TableType, Volatility,
};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::common::versioned_scan::{ScanRequest, VersionedScanExec};
use crate::exec::range_join::mode::JoinMode;
use crate::kept::catalog::IndexCatalog;
use crate::optimizer::physical::row_order::in_its_order;
use datafusion_rmq_logical::common::options::RmqOptions;
use datafusion_rmq_logical::logical_plan::create_index::CreateIndex;
use datafusion_rmq_logical::logical_plan::nearest_rows::NearestRows;
use datafusion_rmq_logical::logical_plan::range_join::RangeJoin;

/// The plan, in which tables that state their versions are scanned by [`VersionedScanExec`], and those in memory by
/// plans that are shared. It is borrowed where there is none of them, no range join can come of it, or an engine that
/// divides plans into tasks would have to know that operator.
pub(crate) fn with_kept_scans<'a>(
    plan: Cow<'a, LogicalPlan>,
    catalog: &Arc<IndexCatalog>,
    session: &dyn Session,
) -> Result<Cow<'a, LogicalPlan>> {
    // Any query frees what is kept of tables that are gone.
    catalog.drop_dead();
    let config = session.config_options();
    let keeps =
        RmqOptions::of(config).keep_indexes && JoinMode::planned(config) == JoinMode::Shared;
    if !keeps || !plan.exists(|node| Ok(may_keep(node)))? {
        return Ok(plan);
    }
    kept(plan.into_owned(), catalog).map(Cow::Owned)
}

/// The plan, in which tables that state their versions, or are in memory, are scanned so.
pub(super) fn kept(plan: LogicalPlan, catalog: &Arc<IndexCatalog>) -> Result<LogicalPlan> {
    let kept = plan.transform_up_with_subqueries(|node| {
        let LogicalPlan::TableScan(mut scan) = node else {
            return Ok(Transformed::no(node));
        };
        // Other sources have planners of their own.
        let table = source_as_provider(&scan.source).ok();
        let is_kept = |table: &Arc<dyn TableProvider>| {
            table.is::<MemTable>() || catalog.versioned().stated(table).is_some()
        };
        let Some(table) = table.filter(is_kept) else {
            return Ok(Transformed::no(LogicalPlan::TableScan(scan)));
        };
        let catalog = Arc::clone(catalog);
        scan.source = provider_as_source(Arc::new(KeptTable { table, catalog }));
        Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
    })?;
    Ok(kept.data)
}

/// Whether a range join, or an index, may come of a node.
fn may_keep(node: &LogicalPlan) -> bool {
    match node {
        LogicalPlan::Extension(extension) => {
            let node = extension.node.as_any();
            node.is::<RangeJoin>() || node.is::<NearestRows>() || node.is::<CreateIndex>()
        }
        LogicalPlan::Join(join) => join.filter.is_some(),
        _ => false,
    }
}

/// Whether a filter of a scan is the same each time: functions may tell the time, or have a state.
fn is_immutable(filter: &Expr) -> bool {
    let may_differ = |expr: &Expr| {
        Ok(match expr {
            Expr::ScalarFunction(call) => call.func.signature().volatility != Volatility::Immutable,
            Expr::ScalarVariable(..) | Expr::Placeholder(_) => true,
            _ => false,
        })
    };
    !filter.exists(may_differ).unwrap_or(true)
}

/// A table in memory, whose scans queries share, or one that states its version, whose scans do so, too.
#[derive(Debug)]
struct KeptTable {
    table: Arc<dyn TableProvider>,
    catalog: Arc<IndexCatalog>,
}

#[async_trait]
impl TableProvider for KeptTable {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn constraints(&self) -> Option<&Constraints> {
        self.table.constraints()
    }

    fn table_type(&self) -> TableType {
        self.table.table_type()
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let args = ScanArgs::default()
            .with_projection(projection.map(Vec::as_slice))
            .with_filters(Some(filters))
            .with_limit(limit);
        Ok(self.scan_with_args(session, args).await?.into_inner())
    }

    async fn scan_with_args<'a>(
        &self,
        session: &dyn Session,
        args: ScanArgs<'a>,
    ) -> Result<ScanResult> {
        if let Some(memory) = self.table.downcast_ref::<MemTable>() {
            let scans = &self.catalog.memory_scans;
            return Ok(scans.scan(&self.table, memory, session, args).await?.into());
        }
        let stated = self.catalog.versioned().stated(&self.table);
        let filters = args.filters().unwrap_or_default().to_vec();
        // Which rows a limit returns is another thing each time.
        let is_repeated = args.limit().is_none() && filters.iter().all(is_immutable);
        let columns = args.projection().map(<[usize]>::to_vec);
        let scan = self.table.scan_with_args(session, args).await?.into_inner();
        let Some(stated) = stated.filter(|stated| is_repeated && stated.is_present()) else {
            return Ok(scan.into());
        };
        let scan = in_its_order(scan, session.config_options())?;
        let partitions = scan.output_partitioning().partition_count();
        let partitions = (session.config().target_partitions(), partitions);
        // The trait promises the order of all rows in one partition.
        let is_promised = filters.is_empty() && partitions == (1, 1);
        let is_in_order = is_promised || stated.repeats_order();
        let schema = self.schema();
        let request = ScanRequest {
            columns: columns.unwrap_or_else(|| (0..schema.fields().len()).collect()),
            schema,
            filters,
            partitions,
        };
        let scan = VersionedScanExec::new(scan, stated, request, is_in_order);
        Ok(ScanResult::new(Arc::new(scan)))
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        self.table.supports_filters_pushdown(filters)
    }

    fn statistics(&self) -> Option<Statistics> {
        self.table.statistics()
    }
}
