//! Reads the probe side first, and decides whether the build side is pruned by its windows: as it is read, or before it
//! is sorted.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::FutureExt;

use crate::exec::common::blocking::blocking;
use crate::exec::common::statistics::expected_scanned_rows;
use crate::exec::range_join::build_side::builder::BuildSideBuilder;
use crate::exec::range_join::build_side::collect_or_spill::CollectedRows;
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::metrics::{BuildMetrics, ReachCounts};
use crate::exec::range_join::probe::probe_input::{ProbeInput, ProbeInputs, ReadBefore};
use crate::exec::range_join::probe::slicing::Slicing;
use crate::exec::range_join::reach::build_extent::BuildExtent;
use crate::exec::range_join::reach::collected_reach::{
    CollectedReach, MIN_ROWS_PER_WINDOW, is_long_to_sort, over_collected,
};
use crate::exec::range_join::reach::intervals::{Intervals, MAX_FINE_INTERVALS, MAX_INTERVALS};
use crate::exec::range_join::reach::nearest_rows::{SoughtRows, first_share};
use crate::exec::range_join::reach::nearest_slices::read_slices;
use crate::exec::range_join::reach::probe_keys::{
    MIN_ROWS_PER_READ_WINDOW, are_worth_reading, can_be_read, read_keys, span,
};
use crate::exec::range_join::reach::pruned_plan::pruned;
use crate::exec::range_join::reach::seekers::{Seekers, Seeking};
use crate::exec::range_join::reach::sought::Sought;
use crate::exec::range_join::reach::statistics_reach::reach_of_statistics;
use crate::exec::range_join::reach::window_reach::{Reach, reach_of};
use crate::exec::range_join::spill::retaining_pool::is_out_of_memory;
use crate::kept::giving_pool::GivingPool;
use datafusion_rmq_logical::common::options::{PruningChoice, RmqOptions};
use datafusion_rmq_logical::logical_plan::range_join::RangeJoinSpec;
use datafusion_rmq_logical::rules::common::max_rows::MAX_EAGERLY_SORTED_ROWS;
use rmq_arrow::common::workers::Workers;

/// Windows that reach more of a build side than this do not prune it: the scan reads most of it all the same, and all
/// of it may be kept.
pub(crate) const MAX_SHARE: f64 = 0.6;

/// The part of the free memory that rows which are read ahead may take.
const MEMORY_PART: usize = 8;

/// A probe side that is read before the build side.
#[derive(Debug)]
pub(crate) struct ProbeAhead {
    pub(crate) inputs: Arc<ProbeInputs>,
    pub(crate) probe: Arc<dyn ExecutionPlan>,
    /// The join, with the point as its bound if it seeks rows nearest to one.
    pub(crate) spec: Arc<RangeJoinSpec<PhysicalExprRef>>,
    /// The rows that are nearest to bounds, if the join seeks such.
    pub(crate) sought: Option<Sought>,
    /// Whether the scan of the build side prunes. Otherwise the rows that it has collected are compared.
    pub(crate) prunes_scan: bool,
    pub(crate) context: Arc<TaskContext>,
}

/// A build side of which only what is reached is read.
pub(crate) struct PrunedBuild {
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    pub(crate) counts: ReachCounts,
    /// That of rows that have been read already.
    pub(crate) memory: Option<Arc<MemoryReservation>>,
    /// The probe side, if what is reached is known of an execution before that of the join.
    pub(crate) read_before: Option<ReadBefore>,
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
        self.inputs
            .partition(partition, self.most_bytes(), pool, execute)
    }

    /// The most memory of what is read of the probe side before the build side.
    fn most_bytes(&self) -> usize {
        let free = GivingPool::free_bytes(self.context.memory_pool());
        self.options().pruning_memory.0.min(free / MEMORY_PART)
    }

    /// What is to be read of a build side, of which the join has columns of the schema `read`: all where no scan
    /// prunes. `keeper` tells what queries have read of it before.
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
        if !self.prunes_scan {
            return Ok(BuildReads::All);
        }
        let choice = self.options().pruning;
        if !is_worthwhile(choice, build) {
            self.inputs.stop();
            return Ok(BuildReads::All);
        }
        let extent = BuildExtent::of(build, &self.spec.key);
        let most_windows = match (choice, extent.rows) {
            (PruningChoice::Auto, Some(rows)) => rows / MIN_ROWS_PER_READ_WINDOW,
            _ => usize::MAX,
        };
        let batches = self.read_ahead(most_windows).await?;
        self.inputs.stop();
        let is_less =
            |share| choice == PruningChoice::Always || reads_less(share, extent.rows, keeper);
        let seekers = match &self.sought {
            Some(sought) => {
                let seekers = self.seekers(sought, batches.as_deref(), build, &extent, is_less);
                seekers.boxed().await
            }
            None => None,
        };
        let pruned = match (&self.sought, seekers, batches) {
            (Some(_), Some(seekers), batches) => {
                let read_before = batches.is_none().then(|| ReadBefore {
                    plan: Arc::clone(&self.probe),
                    context: Arc::clone(&self.context),
                });
                let nearest = self.nearest(build, seekers, &extent, is_less, metrics);
                nearest.boxed().await?.map(|nearest| PrunedBuild {
                    read_before,
                    ..nearest
                })
            }
            (Some(_), None, Some(_)) => None,
            (Some(sought), None, None) if sought.is_beside_windows(&self.spec) => None,
            (_, _, batches) => {
                let is_of_statistics = batches.is_none();
                let reach = self.reach(build, batches, &extent).await?;
                let partitions = self.probe.output_partitioning().partition_count();
                let slicing =
                    Slicing::try_new(&self.spec, build, &extent, read, partitions, &self.context);
                // Rows of ranges that are returned are read after the slice.
                if let Some(slicing) = slicing.filter(|_| !self.spec.returns_ranges()) {
                    let fits = |reach| slicing.fits(reach, is_of_statistics);
                    let fits = reach.as_ref().is_some_and(fits);
                    if !fits && slicing.is_worthwhile(self.inputs.read_so_far()).await {
                        return Ok(BuildReads::Slices(slicing));
                    }
                }
                match reach.filter(|reach| is_less(extent.share(reach.intervals(), 0.0))) {
                    Some(reach) => {
                        let counts = metrics.reach_counts();
                        let config = self.context.session_config().options();
                        let plan = pruned(build, Arc::new(reach), counts.clone(), config)?;
                        Some(PrunedBuild {
                            plan,
                            counts,
                            memory: None,
                            read_before: None,
                        })
                    }
                    None => None,
                }
            }
        };
        Ok(pruned.map_or(BuildReads::All, BuildReads::Reached))
    }

    /// What the probe rows seek: these, or without them all of a probe side whose keys can be read before its rows are.
    /// `None` if that is not known, or a bound has failed for some row, which the join need not meet.
    async fn seekers(
        &self,
        sought: &Sought,
        batches: Option<&[RecordBatch]>,
        build: &Arc<dyn ExecutionPlan>,
        extent: &BuildExtent,
        is_less: impl Fn(Option<f64>) -> bool,
    ) -> Option<Seekers> {
        let sought = sought.clone().within(extent);
        let seeking = Arc::new(Seeking::try_new(&self.spec, sought, &build.schema()).ok()?);
        let (probe, pool) = (&self.probe, self.context.memory_pool());
        if let Some(batches) = batches {
            let (schema, batches, pool) = (probe.schema(), batches.to_vec(), Arc::clone(pool));
            let seekers =
                blocking(move |_| Seekers::of_rows(&seeking, &schema, &batches, &pool)).await;
            return seekers.ok();
        }
        if !can_be_read(&seeking, probe) {
            return None;
        }
        // Where the files don't tell how far bounds are apart, their keys would most likely be read in vain.
        let (span, rows) = span(&seeking, probe).await?;
        let share = first_share(extent.numbers()?, span);
        let is_forced = self.options().pruning == PruningChoice::Always;
        let scanned = expected_scanned_rows(build)?;
        if !is_less(Some(share)) || !is_forced && !are_worth_reading(rows, scanned, share) {
            return None;
        }
        let seekers = read_keys(seeking, probe, &self.context, self.most_bytes()).await;
        seekers.ok().flatten()
    }

    /// What is nearest to bounds, which is read at once; `None` if all rows are to be read.
    async fn nearest(
        &self,
        build: &Arc<dyn ExecutionPlan>,
        seekers: Seekers,
        extent: &BuildExtent,
        is_less: impl Fn(Option<f64>) -> bool,
        metrics: &BuildMetrics,
    ) -> Result<Option<PrunedBuild>> {
        let rows = SoughtRows::new(seekers, extent.numbers());
        // Without statistics of the key no scan prunes by it, and each slice would read all.
        let share = rows.first_share().unwrap_or(1.0);
        if !is_less(Some(share)) {
            return Ok(None);
        }
        let counts = metrics.reach_counts();
        let read = read_slices(rows, build, counts.clone(), &self.context).await?;
        Ok(read.map(|read| PrunedBuild {
            plan: read.plan,
            counts,
            memory: Some(read.memory),
            read_before: None,
        }))
    }

    /// What all windows reach: those of `batches`, or without these what statistics tell. `None` if that is not known,
    /// a bound has failed for some row, which the join need not meet, or the first windows reach too much already.
    async fn reach(
        &self,
        build: &Arc<dyn ExecutionPlan>,
        batches: Option<Vec<RecordBatch>>,
        extent: &BuildExtent,
    ) -> Result<Option<Reach>> {
        let (spec, schema) = (Arc::clone(&self.spec), build.schema());
        let Some(batches) = batches else {
            return reach_of_statistics(&spec, &self.probe, &schema).await;
        };
        let (extent, is_forced) = (
            extent.clone(),
            self.options().pruning == PruningChoice::Always,
        );
        let is_too_much = move |intervals: &Intervals| {
            let share = extent.share(intervals, 0.0);
            !is_forced && share.is_some_and(|share| share > MAX_SHARE)
        };
        Ok(reach_of(spec, schema, batches, MAX_FINE_INTERVALS, is_too_much).await)
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
        let schema = Arc::clone(&rows.schema);
        let Some(batches) = self.read_ahead(most_windows).await? else {
            return Ok(None);
        };
        let Some(reach) = reach_of(spec, schema, batches, MAX_INTERVALS, |_| false).await else {
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

    /// All rows of the probe side; `None` if these are more than `most`, or too many for the budget.
    async fn read_ahead(&self, most: usize) -> Result<Option<Vec<RecordBatch>>> {
        for partition in 0..self.probe.output_partitioning().partition_count() {
            self.input(partition)?;
        }
        self.inputs.limit_rows(most);
        Ok(self.inputs.read_ahead().await)
    }
}

/// Whether to read this part of so many rows is less than to read all and keep them. Once queries have read as many
/// rows as there are, all are kept: so no number of queries reads more than twice what the best choice would have.
fn reads_less(share: Option<f64>, rows: Option<usize>, keeper: Option<&BuildSideKeeper>) -> bool {
    if share.is_some_and(|share| share > MAX_SHARE) {
        return false;
    }
    let is_worth_keeping =
        |(keeper, rows): (&BuildSideKeeper, usize)| keeper.is_worth_keeping(rows);
    !keeper.zip(rows).is_some_and(is_worth_keeping)
}
