//! Reads the probe side first, and decides whether the build side is pruned by its windows.

use std::sync::Arc;

use datafusion::common::{Result, ScalarValue, Statistics};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{CastExpr, Column};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::common::options::{PruningChoice, RmqOptions};
use crate::exec::common::blocking::blocking;
use crate::exec::common::statistics::{expected_scanned_rows, statistics};
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::metrics::{BuildMetrics, ReachCounts};
use crate::exec::range_join::probe::compare_or_build::MAX_EAGERLY_SORTED_ROWS;
use crate::exec::range_join::probe::probe_input::{ProbeInput, ProbeInputs};
use crate::exec::range_join::reach::pruned_plan::pruned;
use crate::exec::range_join::reach::window_reach::{Reach, ReachBuilder};
use crate::logical_plan::range_join::RangeJoinSpec;

/// Windows that reach more of a build side than this do not prune it: the scan reads most of it all the same, and all
/// of it may be kept.
pub(crate) const MAX_SHARE: f64 = 0.5;

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

/// The least and the greatest value of a key that is a column, or a column as a wider integer, if statistics tell.
pub(crate) fn extremes<'a>(
    key: &PhysicalExprRef,
    statistics: &'a Statistics,
) -> Option<(&'a ScalarValue, &'a ScalarValue)> {
    let widened = key.downcast_ref::<CastExpr>();
    let column = widened
        .map_or(key, CastExpr::expr)
        .downcast_ref::<Column>()?;
    let known = statistics.column_statistics.get(column.index())?;
    known.min_value.get_value().zip(known.max_value.get_value())
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
        let bytes = self.options().pruning_memory.0;
        let execute = || self.probe.execute(partition, Arc::clone(&self.context));
        let pool = self.context.memory_pool();
        self.inputs.partition(partition, bytes, pool, execute)
    }

    /// What is to be read of a build side; `None` if all is. `keeper` tells what queries have read of it before.
    ///
    /// # Errors
    /// Those of the operators.
    pub(crate) async fn pruned(
        &self,
        build: &Arc<dyn ExecutionPlan>,
        keeper: Option<&BuildSideKeeper>,
        metrics: &BuildMetrics,
    ) -> Result<Option<PrunedBuild>> {
        let choice = self.options().pruning;
        let reach = if is_worthwhile(choice, build) {
            self.reach(build).await?
        } else {
            None
        };
        self.inputs.stop();
        let Some(reach) = reach else {
            return Ok(None);
        };
        let reads_less = choice == PruningChoice::Always || self.reads_less(&reach, build, keeper);
        if !reads_less {
            return Ok(None);
        }
        let (counts, config) = (
            metrics.reach_counts(),
            self.context.session_config().options(),
        );
        let plan = pruned(build, Arc::new(reach), counts.clone(), config)?;
        Ok(Some(PrunedBuild { plan, counts }))
    }

    /// What all windows reach; `None` if the probe side is too large to know that in advance, or a bound has failed for
    /// some row, which the join need not meet.
    async fn reach(&self, build: &Arc<dyn ExecutionPlan>) -> Result<Option<Reach>> {
        for partition in 0..self.probe.output_partitioning().partition_count() {
            self.input(partition)?;
        }
        let Some(batches) = self.inputs.read_ahead().await else {
            return Ok(None);
        };
        let schema = build.schema();
        let Some(mut builder) = ReachBuilder::try_new(&self.spec, &schema)? else {
            return Ok(None);
        };
        let reach = blocking(move |waiting| {
            for batch in &batches {
                waiting.check()?;
                builder.add(batch)?;
            }
            builder.finish(&schema)
        });
        Ok(reach.await.ok())
    }

    /// Whether to read what is reached is less than to read all rows and keep them. Once queries have read as many rows
    /// as there are, all are kept: so no number of queries reads more than twice what the best choice would have.
    fn reads_less(
        &self,
        reach: &Reach,
        build: &Arc<dyn ExecutionPlan>,
        keeper: Option<&BuildSideKeeper>,
    ) -> bool {
        let statistics = statistics(build);
        let known = statistics.as_deref();
        let extremes = known.and_then(|known| extremes(&self.spec.key, known));
        let share = extremes.and_then(|(min, max)| reach.share(min, max));
        if share.is_some_and(|share| share > MAX_SHARE) {
            return false;
        }
        let rows = statistics.and_then(|all| all.num_rows.get_value().copied());
        let is_worth_keeping =
            |(keeper, rows): (&BuildSideKeeper, usize)| keeper.is_worth_keeping(rows);
        !keeper.zip(rows).is_some_and(is_worth_keeping)
    }
}
