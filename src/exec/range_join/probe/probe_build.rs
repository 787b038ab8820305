//! The build side of one partition of the probe side, before it is read.

use std::ops::Range;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::{FutureExt, StreamExt};

use crate::common::options::RmqOptions;
use crate::exec::common::once_per_run::SharedWork;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::builder::BuildSideBuilder;
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::build_side::kept_side::KeptSide;
use crate::exec::range_join::engine_choice::RangeJoinEngine;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::probe::build_state::{BuildState, ProbeShape};
use crate::exec::range_join::row_threshold::RowThreshold;

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
    /// The threshold of a join that returns rows.
    pub(crate) threshold: Option<RowThreshold>,
}

/// The build side of one partition of the probe side, before it is read.
#[derive(Debug)]
pub(crate) enum ProbeBuild {
    /// That of all partitions.
    Shared {
        input: BuildInput,
        run: Arc<SharedWork<BuildState>>,
        probe_partitions: usize,
    },
    /// One partition of the input, of `partitions` that are built at the same time.
    Partition {
        input: BuildInput,
        partition: usize,
        partitions: usize,
    },
}

impl BuildInput {
    fn execute(&self, partition: usize) -> Result<SendableRecordBatchStream> {
        self.plan.execute(partition, Arc::clone(&self.context))
    }

    /// Finds the build side of all partitions of the input, or reads and builds it.
    async fn find_or_prepare(mut self, probe_partitions: usize) -> Result<BuildState> {
        let threshold = self.threshold.as_ref();
        let keeper = BuildSideKeeper::of(&self.plan, &self.columns, threshold, &self.context).await;
        let mut kept = None;
        if let Some(keeper) = &keeper {
            self.plan = Arc::clone(keeper.plan());
            kept = keeper.find();
        }
        if let Some(side) = &kept {
            let options = RmqOptions::of(self.context.session_config().options());
            let rows = side.sorted().total_rows;
            if self.engine.select_devices(rows, &options).await?.is_some() {
                kept = None;
            } else {
                self.metrics.record_kept();
            }
        }
        let partitions = 0..self.plan.output_partitioning().partition_count();
        self.prepare(partitions, probe_partitions, 1, keeper, kept)
            .await
    }

    /// Reads and builds these partitions of the input for this many partitions of the probe side, one of `builds` build
    /// sides.
    async fn prepare(
        self,
        partitions: Range<usize>,
        probe_partitions: usize,
        builds: usize,
        keeper: Option<BuildSideKeeper>,
        kept: Option<Arc<KeptSide>>,
    ) -> Result<BuildState> {
        let Self {
            plan,
            columns,
            metrics,
            engine,
            context,
            is_probe_bounded: is_bounded,
            threshold: _,
        } = self;
        let shape = ProbeShape {
            partitions: probe_partitions,
            is_bounded,
        };
        let builder = BuildSideBuilder::try_new(
            columns,
            &plan.schema(),
            metrics,
            &context,
            engine,
            is_bounded,
            builds,
        )?;
        let mut partitions = partitions;
        let inputs = || {
            partitions.try_fold(vec![], |mut inputs, partition| {
                inputs.push(plan.execute(partition, Arc::clone(&context))?);
                Ok(inputs)
            })
        };
        BuildState::collect(builder.with_keeper(keeper, kept), inputs, shape).await
    }
}

impl ProbeBuild {
    /// The number of partitions that probe the build side.
    pub(crate) fn probe_partitions(&self) -> usize {
        match self {
            Self::Shared {
                probe_partitions, ..
            } => *probe_partitions,
            Self::Partition { .. } => 1,
        }
    }

    /// Reads the build side, or awaits that a partition that shares it has read it.
    pub(crate) async fn prepare(self) -> Result<Arc<BuildState>> {
        match self {
            Self::Shared {
                input,
                run,
                probe_partitions,
            } => run.get(|| input.find_or_prepare(probe_partitions)).await,
            Self::Partition {
                input,
                partition,
                partitions,
            } => {
                let read = partition..partition + 1;
                let built = input.prepare(read, 1, partitions, None, None).await;
                built.map(Arc::new)
            }
        }
    }

    /// Ends the build side of a partition that has no row to probe it with.
    pub(crate) fn discard(self) -> Result<()> {
        if let Self::Partition {
            input, partition, ..
        } = self
        {
            let mut unread = input.execute(partition)?;
            // A RepartitionExec keeps the rows of a partition in memory unless its stream has been polled and dropped.
            // No row needs what ends in an error here.
            drop(unread.next().now_or_never());
        }
        Ok(())
    }
}
