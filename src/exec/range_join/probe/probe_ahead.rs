//! Reads the probe side first, and decides whether the build side is pruned by its windows: as it is read, or before it
//! is sorted.

use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::common::options::{PruningChoice, RmqOptions};
use crate::common::workers::Workers;
use crate::exec::common::blocking::blocking;
use crate::exec::common::statistics::{expected_scanned_rows, statistics};
use crate::exec::range_join::build_side::builder::BuildSideBuilder;
use crate::exec::range_join::build_side::collect_or_spill::CollectedRows;
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::metrics::{BuildMetrics, ReachCounts};
use crate::exec::range_join::probe::probe_input::{ProbeInput, ProbeInputs};
use crate::exec::range_join::reach::collected_reach::{
    CollectedReach, MAX_EAGERLY_SORTED_ROWS, MIN_ROWS_PER_WINDOW, is_long_to_sort, over_collected,
};
use crate::exec::range_join::reach::intervals::{MAX_INTERVALS, MAX_SCAN_INTERVALS};
use crate::exec::range_join::reach::pruned_plan::pruned;
use crate::exec::range_join::reach::window_reach::{Reach, ReachBuilder};
use crate::exec::range_join::spill::retaining_pool::is_out_of_memory;
use crate::logical_plan::range_join::RangeJoinSpec;

/// Windows that reach more of a build side than this do not prune it: the scan reads most of it all the same, and all
/// of it may be kept.
const MAX_SHARE: f64 = 0.5;

/// A probe side that is read before the build side.
#[derive(Debug)]
pub(crate) struct ProbeAhead {
    pub(crate) inputs: Arc<ProbeInputs>,
    pub(crate) probe: Arc<dyn ExecutionPlan>,
    pub(crate) spec: Arc<RangeJoinSpec<PhysicalExprRef>>,
    /// Whether the scan of the build side prunes. Otherwise the rows that it has collected are compared.
    pub(crate) prunes_scan: bool,
    pub(crate) context: Arc<TaskContext>,
}

/// A build side of which only what is reached is read.
pub(crate) struct PrunedBuild {
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    pub(crate) counts: ReachCounts,
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

    /// What is to be read of a build side; `None` if all is, as where no scan prunes. `keeper` tells what queries have
    /// read of it before.
    ///
    /// # Errors
    /// Those of the operators.
    pub(crate) async fn pruned(
        &self,
        build: &Arc<dyn ExecutionPlan>,
        keeper: Option<&BuildSideKeeper>,
        metrics: &BuildMetrics,
    ) -> Result<Option<PrunedBuild>> {
        if !self.prunes_scan {
            return Ok(None);
        }
        let choice = self.options().pruning;
        let reach = if is_worthwhile(choice, build) {
            let most = (usize::MAX, MAX_SCAN_INTERVALS);
            self.reach(&self.spec, build.schema(), most).await?
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

    /// What is to be sorted of a collected build side, and what builds that: all rows, or those that are reached, which
    /// are not kept.
    ///
    /// # Errors
    /// Those of the comparisons. If the query is cancelled.
    pub(crate) async fn reached(
        &self,
        builder: BuildSideBuilder,
        rows: CollectedRows,
    ) -> Result<(BuildSideBuilder, CollectedRows)> {
        let reached = self.find_reached(&builder, &rows).await?;
        self.inputs.stop();
        let Some(reached) = reached else {
            return Ok((builder, rows));
        };
        let (all, counts) = (rows.num_rows(), builder.metrics.reach_counts());
        counts.scanned.add(all);
        counts.dropped.add(all - reached.num_rows());
        Ok((builder.of_part(all), reached))
    }

    /// The reached ones of collected rows, where sorting these is less than sorting all rows and keeping them.
    async fn find_reached(
        &self,
        builder: &BuildSideBuilder,
        rows: &CollectedRows,
    ) -> Result<Option<CollectedRows>> {
        if self.prunes_scan || builder.adds_values() {
            return Ok(None);
        }
        let (columns, total) = (builder.columns.clone(), rows.num_rows());
        let is_forced = match self.options().pruning {
            PruningChoice::Always => true,
            PruningChoice::Auto if is_long_to_sort(&columns, &rows.batches)? => false,
            PruningChoice::Auto | PruningChoice::Never => return Ok(None),
        };
        if builder.select_devices(total).await?.is_some()
            || !is_forced && builder.is_worth_keeping(total)
        {
            return Ok(None);
        }
        let spec = Arc::new(over_collected(&self.spec, &columns));
        let most_windows = if is_forced {
            usize::MAX
        } else {
            total / MIN_ROWS_PER_WINDOW
        };
        let (schema, most) = (Arc::clone(&rows.schema), (most_windows, MAX_INTERVALS));
        let Some(reach) = self.reach(&spec, schema, most).await? else {
            return Ok(None);
        };
        let (started, threads) = (Instant::now(), builder.options.threads());
        let (batches, memory) = (rows.batches.clone(), rows.memory.new_empty());
        let schema = Arc::clone(&rows.schema);
        let reached = blocking(move |waiting| {
            let compared = CollectedReach {
                reach: &reach,
                columns: &columns,
                batches: &batches,
            };
            if !is_forced && !compared.is_small()? {
                return Ok(None);
            }
            let check = || waiting.check();
            let batches = compared.rows(&memory, Workers::new(threads, &check))?;
            Ok(Some(CollectedRows {
                schema,
                batches,
                memory,
            }))
        });
        let reached = reached.await;
        builder.metrics.record_build(started);
        match reached {
            // All rows can be spilled.
            Err(error) if is_out_of_memory(&error) => Ok(None),
            reached => reached,
        }
    }

    /// What all windows reach, if these are at most so many, in at most so many intervals; `None` if the probe side is
    /// too large to know that in advance, or the windows can't be told. A bound may have failed for some row, which the
    /// join need not meet.
    async fn reach(
        &self,
        spec: &Arc<RangeJoinSpec<PhysicalExprRef>>,
        build: SchemaRef,
        (most_windows, most_intervals): (usize, usize),
    ) -> Result<Option<Reach>> {
        for partition in 0..self.probe.output_partitioning().partition_count() {
            self.input(partition)?;
        }
        self.inputs.limit_rows(most_windows);
        let Some(batches) = self.inputs.read_ahead().await else {
            return Ok(None);
        };
        let Ok(mut builder) = ReachBuilder::try_new(spec, &build) else {
            return Ok(None);
        };
        let reach = blocking(move |waiting| {
            for batch in &batches {
                waiting.check()?;
                builder.add(batch)?;
            }
            builder.finish(&build, most_intervals)
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
        let column = self.spec.key.downcast_ref::<Column>();
        let extremes = statistics.as_ref().zip(column).and_then(|(all, column)| {
            let known = all.column_statistics.get(column.index())?;
            known.min_value.get_value().zip(known.max_value.get_value())
        });
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
