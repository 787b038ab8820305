//! What a range join is made of besides its inputs, from which another process makes it again.

use std::sync::Arc;

use datafusion::physical_expr::PhysicalExprRef;

use crate::exec::range_join::mode::JoinMode;
use crate::exec::range_join::row_join::RowJoin;
use datafusion_rmq_logical::logical_plan::range_join::RangeJoinSpec;

/// The parts of a range join.
#[derive(Debug, Clone)]
pub struct RangeJoinParts {
    /// The keys, bounds and aggregates, over the inputs.
    pub spec: Arc<RangeJoinSpec<PhysicalExprRef>>,
    /// What is made of single pairs, if anything.
    pub row_join: Option<Arc<RowJoin>>,
    /// The join as EXPLAIN shows it: `type=Left`, `on=[sym]` and so on.
    pub label: Vec<String>,
    /// How the build side is divided.
    pub mode: JoinMode,
    /// Whether nothing divides the sides of a partitioned join: each has one partition.
    pub is_undivided: bool,
    /// The column of a partitioned build side by which its rows are in the order of one node, where that matters.
    pub position: Option<usize>,
    /// The most rows that each partition returns. Only where rows are returned: a limit of probe rows goes to the probe
    /// side.
    pub fetch: Option<usize>,
    /// The estimated number of probe rows, if known.
    pub probe_rows: Option<usize>,
}
