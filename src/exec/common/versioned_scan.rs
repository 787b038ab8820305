//! The scan of a table that states its version, which tells its rows from those of another version.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::exec::common::plan_methods::{no_expressions, no_inputs, operators_text};
use crate::kept::table_version::StatedTable;
use datafusion_rmq_logical::common::sql_text::tree_text;

/// Returns the rows of the scan of a [`VersionedTable`](crate::VersionedTable), by whose version range joins keep them.
/// No rule looks into the scan: another division of it would return the rows in another order.
#[derive(Debug)]
pub(crate) struct VersionedScanExec {
    hidden: Arc<dyn ExecutionPlan>,
    /// The table in the version that it had when the scan was planned.
    pub(crate) stated: StatedTable,
    pub(crate) request: ScanRequest,
    /// Whether the rows of a version come in the same order each time they are requested so.
    pub(crate) is_in_order: bool,
}

/// What a table was asked for.
#[derive(Debug, Clone)]
pub(crate) struct ScanRequest {
    /// All columns of the table.
    pub(crate) schema: SchemaRef,
    /// Those that are read. Not which rows these are.
    pub(crate) columns: Vec<usize>,
    /// The filters that the table may apply.
    pub(crate) filters: Vec<Expr>,
    /// The session's number of partitions, and that of the scan.
    pub(crate) partitions: (usize, usize),
}

impl VersionedScanExec {
    pub(crate) fn new(
        hidden: Arc<dyn ExecutionPlan>,
        stated: StatedTable,
        request: ScanRequest,
        is_in_order: bool,
    ) -> Self {
        Self {
            hidden,
            stated,
            request,
            is_in_order,
        }
    }

    /// The scan.
    pub(crate) fn hidden(&self) -> &Arc<dyn ExecutionPlan> {
        &self.hidden
    }

    /// The same scan of those parts whose numbers `is_read` selects; `None` if the table has none of some parts.
    pub(crate) fn over_parts(&self, is_read: &dyn Fn(usize) -> bool) -> Option<Self> {
        let hidden = self.stated.scan_of_parts(&self.hidden, is_read)?;
        Some(self.over(hidden))
    }

    fn over(&self, hidden: Arc<dyn ExecutionPlan>) -> Self {
        let (stated, request) = (self.stated.clone(), self.request.clone());
        Self::new(hidden, stated, request, self.is_in_order)
    }
}

impl DisplayAs for VersionedScanExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let version = &self.stated.version;
        let (parts, rows) = (version.parts().len(), version.rows());
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                let operators = operators_text(self.hidden.as_ref());
                write!(
                    f,
                    "VersionedScanExec: parts={parts}, rows={rows}, rows of {operators}"
                )
            }
            DisplayFormatType::TreeRender => {
                writeln!(f, "parts={parts}\nrows={rows}")?;
                writeln!(f, "{}", tree_text(self.hidden.name()))
            }
        }
    }
}

impl ExecutionPlan for VersionedScanExec {
    fn name(&self) -> &'static str {
        "VersionedScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.hidden.properties()
    }

    no_expressions!();

    no_inputs!();

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        let hidden = reset_plan_states(Arc::clone(&self.hidden))?;
        Ok(Arc::new(self.over(hidden)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.hidden.metrics()
    }

    fn statistics_from_inputs(
        &self,
        _inputs: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        StatisticsContext::new().compute(self.hidden.as_ref(), args)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.hidden.execute(partition, context)
    }
}
