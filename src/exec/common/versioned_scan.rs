//! The scan of a table that states its version, which tells its rows from those of another version.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};

use crate::exec::common::plan_methods::{no_expressions, replace_input, rows_of_input};
use crate::index::table_version::TableVersion;

/// Returns the rows of the scan of a [`VersionedTable`](crate::VersionedTable), by whose version range joins keep them.
#[derive(Debug)]
pub(crate) struct VersionedScanExec {
    input: Arc<dyn ExecutionPlan>,
    /// The version of the table when the scan was planned.
    pub(crate) version: TableVersion,
    /// The columns of the table that are read.
    pub(crate) columns: Vec<usize>,
    /// The filters that the table may apply.
    pub(crate) filters: Vec<Expr>,
    /// Whether the rows of a version come in the same order each time.
    pub(crate) is_in_order: bool,
}

impl VersionedScanExec {
    pub(crate) fn new(
        input: Arc<dyn ExecutionPlan>,
        version: TableVersion,
        columns: Vec<usize>,
        filters: Vec<Expr>,
        is_in_order: bool,
    ) -> Self {
        Self {
            input,
            version,
            columns,
            filters,
            is_in_order,
        }
    }
}

impl DisplayAs for VersionedScanExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let (parts, rows) = (self.version.parts(), self.version.rows());
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "VersionedScanExec: parts={parts}, rows={rows}")
            }
            DisplayFormatType::TreeRender => writeln!(f, "parts={parts}\nrows={rows}"),
        }
    }
}

impl ExecutionPlan for VersionedScanExec {
    fn name(&self) -> &'static str {
        "VersionedScanExec"
    }

    rows_of_input!();

    no_expressions!();

    replace_input!(|scan, input| Self {
        input,
        version: scan.version.clone(),
        columns: scan.columns.clone(),
        filters: scan.filters.clone(),
        is_in_order: scan.is_in_order,
    });

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}
