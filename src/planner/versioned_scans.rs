//! Has the scans of tables that state their versions tell it, where a range join may keep their rows.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Constraints, Result, Statistics};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::logical_expr::{Expr, LogicalPlan, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::common::options::RmqOptions;
use crate::exec::common::versioned_scan::VersionedScanExec;
use crate::exec::range_join::mode::JoinMode;
use crate::index::catalog::IndexCatalog;
use crate::logical_plan::create_index::CreateIndex;
use crate::logical_plan::nearest_rows::NearestRows;
use crate::logical_plan::range_join::RangeJoin;

/// The plan, in which tables that state their versions are scanned by [`VersionedScanExec`]. It is borrowed where there
/// is none of them, no range join can come of it, or an engine that divides plans into tasks would have to know that
/// operator.
pub(crate) fn with_versioned_scans<'a>(
    plan: Cow<'a, LogicalPlan>,
    catalog: &Arc<IndexCatalog>,
    session: &dyn Session,
) -> Result<Cow<'a, LogicalPlan>> {
    let config = session.config_options();
    let keeps =
        RmqOptions::of(config).keep_indexes && JoinMode::planned(config) == JoinMode::Shared;
    if !keeps || catalog.versioned().is_empty() || !plan.exists(|node| Ok(may_keep(node)))? {
        return Ok(plan);
    }
    versioned(plan.into_owned(), catalog).map(Cow::Owned)
}

/// The plan, in which tables that state their versions are scanned by [`VersionedScanExec`].
pub(super) fn versioned(plan: LogicalPlan, catalog: &Arc<IndexCatalog>) -> Result<LogicalPlan> {
    let versioned = plan.transform_up_with_subqueries(|node| {
        let LogicalPlan::TableScan(mut scan) = node else {
            return Ok(Transformed::no(node));
        };
        let table = source_as_provider(&scan.source)?;
        if catalog.versioned().version(table.as_ref()).is_none() {
            return Ok(Transformed::no(LogicalPlan::TableScan(scan)));
        }
        let catalog = Arc::clone(catalog);
        scan.source = provider_as_source(Arc::new(StatedVersion { table, catalog }));
        Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
    })?;
    Ok(versioned.data)
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

/// A table that states its version, whose scans do so, too.
#[derive(Debug)]
struct StatedVersion {
    table: Arc<dyn TableProvider>,
    catalog: Arc<IndexCatalog>,
}

#[async_trait]
impl TableProvider for StatedVersion {
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
        let version = || self.catalog.versioned().version(self.table.as_ref());
        let before = version();
        let scan = self.table.scan(session, projection, filters, limit).await?;
        let Some(version) = before.filter(|before| version().as_ref() == Some(before)) else {
            return Ok(scan);
        };
        // Which rows a limit returns, and what a volatile filter does, is another thing each time.
        if limit.is_some() || filters.iter().any(Expr::is_volatile) {
            return Ok(scan);
        }
        let all = || (0..self.schema().fields().len()).collect();
        let columns = projection.cloned().unwrap_or_else(all);
        // The trait promises the order of all rows in one partition.
        let is_promised = filters.is_empty()
            && session.config().target_partitions() == 1
            && scan.output_partitioning().partition_count() == 1;
        let is_in_order = is_promised || self.catalog.versioned().repeats_order(&*self.table);
        let filters = filters.to_vec();
        let scan = VersionedScanExec::new(scan, version, columns, filters, is_in_order);
        Ok(Arc::new(scan))
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
