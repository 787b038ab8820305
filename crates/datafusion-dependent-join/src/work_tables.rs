//! The tables that have the rows of the last step of a recursive query.

use datafusion_catalog::cte_worktable::CteWorkTable;
use datafusion_catalog::default_table_source::source_as_provider;
use datafusion_expr::{LogicalPlan, TableScan};

/// A work table with the domain.
#[derive(Debug, Clone)]
pub(crate) struct WorkTable {
    /// The name that it had without the domain.
    pub(crate) name: String,
    /// Its columns, and behind them those of the domain.
    pub(crate) scan: LogicalPlan,
}

/// The name of the work table that a scan reads, if it is one.
pub(crate) fn work_table(scan: &TableScan) -> Option<String> {
    let provider = source_as_provider(&scan.source).ok()?;
    let table = provider.downcast_ref::<CteWorkTable>()?;
    Some(table.name().to_string())
}

/// Whether a scan reads the work table with this name.
pub(crate) fn is_work_table(name: &str, scan: &TableScan) -> bool {
    work_table(scan).is_some_and(|other| other == name)
}
