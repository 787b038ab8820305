//! A build side of which slices are read, or all rows for the probe rows that these do not suit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::execution_plan::reset_plan_states;

use crate::exec::common::once_per_run::{SharedWork, lock};
use crate::exec::common::plan_key::ScanPlan;
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::metrics::ReachCounts;
use crate::exec::range_join::probe::build_input::BuildInput;
use crate::exec::range_join::probe::build_state::{BuildState, PreparedBuild, ProbeShape};
use crate::exec::range_join::probe::slices::slicing::Slicing;
use crate::exec::range_join::reach::pruned_plan::pruned;
use crate::exec::range_join::reach::window_reach::Reach;

/// How often it is checked that files have not changed, besides at the end: there may be many slices and files.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A build side that is read in slices.
#[derive(Debug)]
pub(crate) struct SlicedBuild {
    input: BuildInput,
    keeper: Option<Arc<BuildSideKeeper>>,
    pub(super) slicing: Slicing,
    partitions: usize,
    counts: ReachCounts,
    /// All rows.
    whole: SharedWork<PreparedBuild>,
    /// Whether all rows are read. These take the memory of slices.
    is_whole: AtomicBool,
    /// When files were last asked whether they have changed.
    checked: Mutex<Option<Instant>>,
}

impl SlicedBuild {
    pub(crate) fn new(
        input: BuildInput,
        keeper: Option<Arc<BuildSideKeeper>>,
        slicing: Slicing,
        partitions: usize,
    ) -> Self {
        Self {
            counts: input.metrics.reach_counts(),
            input,
            keeper,
            slicing,
            partitions,
            whole: SharedWork::default(),
            is_whole: AtomicBool::default(),
            checked: Mutex::default(),
        }
    }

    /// Whether all rows are to be read for the rest of the probe side: slices have read too much, or another partition
    /// needs all rows.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Relaxed)
            || self.slicing.is_exhausted(self.counts.scanned.value())
    }

    /// Reads and builds what windows reach, in the memory of a slice.
    ///
    /// # Errors
    /// If that does not suffice. If a file has changed. Those of the operators.
    pub(super) async fn slice(&self, reach: Reach) -> Result<PreparedBuild> {
        let input = &self.input;
        let context = &input.context;
        let config = context.session_config().options();
        let plan = pruned(&input.plan, Arc::new(reach), self.counts.clone(), config)?;
        let plan = reset_plan_states(plan)?;
        let builder = input.builder(input.columns.clone(), self.partitions)?;
        let builder = builder.in_memory(context.memory_pool(), self.slicing.slice_bytes);
        let inputs = || {
            let partitions = 0..plan.output_partitioning().partition_count();
            let execute = |partition| plan.execute(partition, Arc::clone(context));
            partitions.map(execute).collect()
        };
        let shape = ProbeShape {
            partitions: 1,
            is_bounded: input.is_probe_bounded,
        };
        let prepared = BuildState::collect(builder, inputs, shape).await?;
        let is_due = {
            let mut checked = lock(&self.checked);
            let is_due = checked.is_none_or(|checked| checked.elapsed() > CHECK_EVERY);
            if is_due {
                *checked = Some(Instant::now());
            }
            is_due
        };
        if is_due {
            self.check_unchanged().await?;
        }
        input.metrics.record_slice();
        Ok(prepared)
    }

    /// Reads and builds all rows, for all partitions that need them.
    ///
    /// # Errors
    /// Those of the operators. If a file has changed.
    pub(super) async fn whole(self: &Arc<Self>) -> Result<Arc<PreparedBuild>> {
        self.is_whole.store(true, Ordering::Relaxed);
        let this = Arc::clone(self);
        let read = || async move {
            let plan = reset_plan_states(Arc::clone(&this.input.plan))?;
            let partitions = 0..plan.output_partitioning().partition_count();
            let keeper = this.keeper.clone();
            let prepared = this
                .input
                .prepare(&plan, partitions, this.partitions, 1, keeper, None)
                .await?;
            this.check_unchanged().await?;
            Ok(prepared)
        };
        self.whole.get(read).await
    }

    /// # Errors
    /// If a file has changed since the query was planned: then slices may have rows of several versions.
    pub(super) async fn check_unchanged(&self) -> Result<()> {
        if let Some(scanned) = ScanPlan::of(&self.input.plan) {
            scanned
                .version("of a range join", &[], &self.input.context)
                .await?;
        }
        Ok(())
    }
}
