//! Reads the probe side first, and decides whether the build side is pruned by its windows.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::common::options::{PruningChoice, RmqOptions};
use crate::exec::common::blocking::blocking;
use crate::exec::common::statistics::{expected_scanned_rows, statistics};
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::metrics::{BuildMetrics, ReachCounts};
use crate::exec::range_join::probe::compare_or_build::MAX_EAGERLY_SORTED_ROWS;
use crate::exec::range_join::probe::probe_input::{ProbeInput, ProbeInputs};
use crate::exec::range_join::probe::slices::slicing::Slicing;
use crate::exec::range_join::reach::build_extent::BuildExtent;
use crate::exec::range_join::reach::pruned_plan::pruned;
use crate::exec::range_join::reach::statistics_reach::reach_of_statistics;
use crate::exec::range_join::reach::window_reach::Reach;
use crate::index::giving_pool::GivingPool;
use crate::logical_plan::range_join::RangeJoinSpec;

/// Windows that reach more of a build side than this do not prune it: the scan reads most of it all the same, and all
/// of it may be kept.
const MAX_SHARE: f64 = 0.5;

/// The part of the free memory that rows which are read ahead may take.
const MEMORY_PART: usize = 8;

/// A probe side that is read before the build side.
#[derive(Debug)]
pub(crate) struct ProbeAhead {
    pub(crate) inputs: Arc<ProbeInputs>,
    pub(crate) probe: Arc<dyn ExecutionPlan>,
    pub(crate) spec: Arc<RangeJoinSpec<PhysicalExprRef>>,
    pub(crate) context: Arc<TaskContext>,
}

/// A build side of which only what is reached is read.
pub(crate) struct PrunedBuild {
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    pub(crate) counts: ReachCounts,
}

/// What is read of a build side.
pub(crate) enum BuildReads {
    All,
    /// What all windows reach.
    Reached(PrunedBuild),
    /// What the windows of some probe rows reach, then what those of the next reach.
    Slices(Slicing),
}

/// Whether a build side is large enough to be pruned, if its windows reach little of it.
pub(crate) fn is_worthwhile(choice: PruningChoice, build: &Arc<dyn ExecutionPlan>) -> bool {
    let is_small =
        || expected_scanned_rows(build).is_some_and(|rows| rows <= MAX_EAGERLY_SORTED_ROWS);
    match choice {
        PruningChoice::Auto => !is_small(),
        PruningChoice::Always => true,
        PruningChoice::Never => false,
    }
}

impl ProbeAhead {
    fn options(&self) -> RmqOptions {
        RmqOptions::of(self.context.session_config().options())
    }

    /// The input of a partition, which is executed unless it has been.
    ///
    /// # Errors
    /// Those of the probe side.
    pub(crate) fn input(&self, partition: usize) -> Result<Arc<ProbeInput>> {
        let execute = || self.probe.execute(partition, Arc::clone(&self.context));
        let pool = self.context.memory_pool();
        let bytes = self.options().pruning_memory.0;
        let bytes = bytes.min(GivingPool::free_bytes(pool) / MEMORY_PART);
        self.inputs.partition(partition, bytes, pool, execute)
    }

    /// What is to be read of a build side, of which the join has columns of the schema `read`. `keeper` tells what
    /// queries have read of it before.
    ///
    /// # Errors
    /// Those of the operators.
    pub(crate) async fn reads(
        &self,
        build: &Arc<dyn ExecutionPlan>,
        read: &Schema,
        keeper: Option<&BuildSideKeeper>,
        metrics: &BuildMetrics,
    ) -> Result<BuildReads> {
        let choice = self.options().pruning;
        let is_worthwhile = is_worthwhile(choice, build);
        let batches = if is_worthwhile {
            self.read_ahead().await?
        } else {
            None
        };
        self.inputs.stop();
        if !is_worthwhile {
            return Ok(BuildReads::All);
        }
        let extent = BuildExtent::of(build, &self.spec.key);
        let reach = self.reach(build, batches).await?;
        let partitions = self.probe.output_partitioning().partition_count();
        let slicing = Slicing::try_new(&self.spec, build, &extent, read, partitions, &self.context);
        if let Some(slicing) = slicing {
            let fits = reach.as_ref().is_some_and(|reach| slicing.fits(reach));
            if !fits && slicing.is_worthwhile(self.inputs.read_so_far()).await {
                return Ok(BuildReads::Slices(slicing));
            }
        }
        let Some(reach) = reach else {
            return Ok(BuildReads::All);
        };
        let reads_less = choice == PruningChoice::Always || reads_less(&reach, &extent, keeper);
        if !reads_less {
            return Ok(BuildReads::All);
        }
        let (counts, config) = (
            metrics.reach_counts(),
            self.context.session_config().options(),
        );
        let plan = pruned(build, Arc::new(reach), counts.clone(), config)?;
        Ok(BuildReads::Reached(PrunedBuild { plan, counts }))
    }

    /// All rows of the probe side; `None` if it is too large for that.
    async fn read_ahead(&self) -> Result<Option<Vec<RecordBatch>>> {
        for partition in 0..self.probe.output_partitioning().partition_count() {
            self.input(partition)?;
        }
        Ok(self.inputs.read_ahead().await)
    }

    /// What all windows reach: those of `batches`, or without these what statistics tell. `None` if that is not known,
    /// or a bound has failed for some row, which the join need not meet.
    async fn reach(
        &self,
        build: &Arc<dyn ExecutionPlan>,
        batches: Option<Vec<RecordBatch>>,
    ) -> Result<Option<Reach>> {
        let (spec, schema) = (Arc::clone(&self.spec), build.schema());
        let Some(batches) = batches else {
            let statistics = statistics(&self.probe);
            let reach = statistics.map(|rows| reach_of_statistics(&spec, &rows, &schema));
            return Ok(reach.transpose()?.flatten());
        };
        let reach =
            blocking(move |waiting| Reach::of_rows(&spec, &schema, &batches, || waiting.check()));
        Ok(reach.await.ok().flatten())
    }
}

/// Whether to read what is reached is less than to read all rows and keep them. Once queries have read as many rows as
/// there are, all are kept: so no number of queries reads more than twice what the best choice would have.
fn reads_less(reach: &Reach, build: &BuildExtent, keeper: Option<&BuildSideKeeper>) -> bool {
    if build.share(reach).is_some_and(|share| share > MAX_SHARE) {
        return false;
    }
    let is_worth_keeping =
        |(keeper, rows): (&BuildSideKeeper, usize)| keeper.is_worth_keeping(rows);
    !keeper.zip(build.rows).is_some_and(is_worth_keeping)
}
