//! What a range join is made of besides its inputs, from which another process makes it again.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::range_join::engine_choice::RangeJoinEngine;
use crate::exec::range_join::exec::RangeJoinExec;
use crate::exec::range_join::mode::JoinMode;
use crate::exec::range_join::row_join::RowJoin;
use crate::kept::catalog::SharedIndexes;
use crate::logical_plan::range_join::RangeJoinSpec;

/// The parts of a range join.
#[derive(Debug, Clone)]
pub struct RangeJoinParts {
    /// The keys, bounds and aggregates, over the inputs.
    pub spec: Arc<RangeJoinSpec<PhysicalExprRef>>,
    /// What is made of single pairs, if anything.
    pub row_join: Option<Arc<RowJoin>>,
    /// The join as EXPLAIN shows it.
    pub label: String,
    /// How the build side is divided.
    pub mode: JoinMode,
    /// Whether nothing divides the sides of a partitioned join.
    pub is_undivided: bool,
    /// The column of a partitioned build side by which its rows are in the order of one node, where that matters.
    pub position: Option<usize>,
    /// The most rows that each partition returns.
    pub fetch: Option<usize>,
    /// The estimated number of probe rows, if known.
    pub probe_rows: Option<usize>,
}

impl RangeJoinParts {
    /// The parts of `join`.
    #[must_use]
    pub fn of(join: &RangeJoinExec) -> Self {
        Self {
            spec: Arc::clone(&join.spec),
            row_join: join.row_join.clone(),
            label: join.label.clone(),
            mode: join.mode,
            is_undivided: join.is_undivided,
            position: join.position,
            fetch: join.fetch,
            probe_rows: join.engine.probe_rows(),
        }
    }

    /// The join of these inputs, which is executed once, in a session with `target_partitions` partitions. It chooses
    /// the engine when the build rows have been collected, by the options of the session that executes it, among the
    /// devices of `indexes`.
    ///
    /// # Errors
    /// If an expression does not fit its input.
    pub fn join(
        self,
        (probe, build): (Arc<dyn ExecutionPlan>, Arc<dyn ExecutionPlan>),
        indexes: &SharedIndexes,
        target_partitions: usize,
    ) -> Result<RangeJoinExec> {
        let engine = match &self.row_join {
            Some(_) => RangeJoinEngine::cpu(),
            None => RangeJoinEngine::unplanned(
                Arc::clone(&indexes.0),
                &self.spec,
                &build.schema(),
                self.probe_rows,
                target_partitions,
            )?,
        };
        let (spec, row_join, label) = (self.spec, self.row_join, self.label);
        let join =
            RangeJoinExec::with_spec(probe, build, spec, row_join, label, engine, self.mode)?;
        let limited = join.limited(self.is_undivided, self.position, self.fetch);
        Ok(limited.of_one_run())
    }
}
