//! Where the rows of a relation come from.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result, exec_err};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::common::plan_key::{RepeatedPlan, ScanPlan};
use crate::exec::common::statistics::{exact, exact_rows};
use crate::exec::range_lookup::scan::{RelationScan, plan_table_scan};
use crate::kept::table_version::VersionedTypes;
use datafusion_rmq_logical::common::column_ref::ColumnRef;

/// The source of a relation's rows.
#[derive(Debug)]
pub(crate) enum RelationSource {
    /// A table, its rows in scan order.
    Table {
        name: ColumnRef,
        provider: Arc<dyn TableProvider>,
    },
    /// The plan of a subquery that states its order.
    Query(Arc<dyn ExecutionPlan>),
    /// A plan that another process has sent. Its key tells its rows from others, if they are known to be repeated.
    Sent {
        plan: Arc<dyn ExecutionPlan>,
        key: Option<Arc<RepeatedPlan>>,
    },
}

impl RelationSource {
    /// The rows of a plan that another process has sent.
    pub(crate) fn sent(plan: Arc<dyn ExecutionPlan>) -> Self {
        let key = ScanPlan::repeated(&plan).map(Arc::new);
        Self::Sent { plan, key }
    }

    /// The number of rows, if it is known exactly without reading them.
    pub(crate) async fn rows(&self) -> Option<usize> {
        let rows = match self {
            Self::Query(plan) | Self::Sent { plan, .. } => return exact_rows(plan),
            Self::Table { provider, .. } => match provider.downcast_ref::<MemTable>() {
                None => return exact(&provider.statistics()?.num_rows),
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

    /// The current type of a column.
    ///
    /// # Errors
    /// An execution error for a column that does not exist any more.
    pub(crate) fn data_type(&self, column: &str) -> Result<DataType> {
        let schema = match self {
            Self::Table { provider, .. } => provider.schema(),
            Self::Query(plan) | Self::Sent { plan, .. } => plan.schema(),
        };
        column_type(&schema, column)
    }

    /// Plans a scan of these columns; of a subquery, of all columns.
    ///
    /// # Errors
    /// An error that names the columns that do not exist any more, and the provider's own.
    pub(crate) async fn plan_scan(
        &self,
        session: &dyn Session,
        columns: &BTreeSet<String>,
        versioned: &VersionedTypes,
    ) -> Result<RelationScan> {
        match self {
            Self::Query(plan) | Self::Sent { plan, .. } => RelationScan::of_plan(Arc::clone(plan)),
            Self::Table { name, provider } => {
                plan_table_scan(session, name, provider, columns, versioned).await
            }
        }
    }
}

/// The type of a column in this schema.
///
/// # Errors
/// An execution error for a column that does not exist any more.
pub(crate) fn column_type(schema: &Schema, column: &str) -> Result<DataType> {
    match schema.field_with_name(column) {
        Ok(field) => Ok(field.data_type().clone()),
        Err(_) => exec_err!("the column {column} is gone since the query was planned"),
    }
}
