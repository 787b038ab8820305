//! The input of a build side, before it is read.

use std::ops::Range;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::builder::BuildSideBuilder;
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::build_side::kept_side::Segment;
use crate::exec::range_join::engine_choice::RangeJoinEngine;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::probe::build_state::{BuildState, PreparedBuild, ProbeShape};
use crate::exec::range_join::row_join::RowJoin;

/// The input of a build side, and what building it needs.
#[derive(Debug)]
pub(crate) struct BuildInput {
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    pub(crate) columns: BuildColumns,
    pub(crate) metrics: BuildMetrics,
    pub(crate) engine: RangeJoinEngine,
    pub(crate) context: Arc<TaskContext>,
    /// Whether the probe side ends.
    pub(crate) is_probe_bounded: bool,
    /// What is made of single pairs, if anything.
    pub(crate) row_join: Option<Arc<RowJoin>>,
}

impl BuildInput {
    pub(super) fn execute(&self, partition: usize) -> Result<SendableRecordBatchStream> {
        self.plan.execute(partition, Arc::clone(&self.context))
    }

    /// What builds a build side of these columns, one of `builds` that share threads and memory.
    pub(super) fn builder(&self, columns: BuildColumns, builds: usize) -> Result<BuildSideBuilder> {
        BuildSideBuilder::try_new(
            columns,
            &self.plan.schema(),
            self.metrics.clone(),
            &self.context,
            self.engine.clone(),
            self.is_probe_bounded,
            builds,
        )
    }

    /// Reads and builds these partitions of `plan`, the input or a part of it, for this many partitions of the probe
    /// side, one of `builds` build sides.
    pub(super) async fn prepare(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        partitions: Range<usize>,
        probe_partitions: usize,
        builds: usize,
        keeper: Option<Arc<BuildSideKeeper>>,
        kept: Option<Arc<Segment>>,
    ) -> Result<PreparedBuild> {
        let shape = ProbeShape {
            partitions: probe_partitions,
            is_bounded: self.is_probe_bounded,
        };
        let builder = self.builder(self.columns.clone(), builds)?;
        let mut partitions = partitions;
        let inputs = || {
            partitions.try_fold(vec![], |mut inputs, partition| {
                inputs.push(plan.execute(partition, Arc::clone(&self.context))?);
                Ok(inputs)
            })
        };
        BuildState::collect(builder.with_keeper(keeper, kept), inputs, shape).await
    }
}
