//! A build side of which slices are read, or all rows for the probe rows that these do not suit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::common::once_per_run::{SharedWork, lock};
use crate::exec::common::plan_key::check_unchanged;
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::metrics::ReachCounts;
use crate::exec::range_join::probe::build_input::BuildInput;
use crate::exec::range_join::probe::build_state::{BuildState, PreparedBuild};
use crate::exec::range_join::probe::slicing::Slicing;
use crate::exec::range_join::reach::key_set::KeySet;
use crate::exec::range_join::reach::nearest_slices::read_partitions;
use crate::exec::range_join::reach::pruned_plan::{pruned, without_other_files};
use crate::exec::range_join::reach::row_groups::row_group_keys;
use crate::exec::range_join::reach::window_reach::Reach;
use crate::exec::range_join::spill::retaining_pool::RetainingPool;

/// How often it is checked that files have not changed, besides at the end: there may be many slices and files.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A build side that is read in slices.
#[derive(Debug)]
pub(crate) struct SlicedBuild {
    input: BuildInput,
    keeper: Option<Arc<BuildSideKeeper>>,
    pub(crate) slicing: Slicing,
    partitions: usize,
    counts: ReachCounts,
    /// The least and the greatest range key in row groups of the files.
    row_groups: Vec<(i128, i128)>,
    /// All rows.
    whole: SharedWork<PreparedBuild>,
    /// Whether all rows are read. These take the memory of slices.
    is_whole: AtomicBool,
    /// When files were last asked whether they have changed.
    checked: Mutex<Option<Instant>>,
}

impl SlicedBuild {
    pub(crate) async fn new(
        input: BuildInput,
        keeper: Option<Arc<BuildSideKeeper>>,
        slicing: Slicing,
        partitions: usize,
    ) -> Self {
        let row_groups = row_group_keys(&input.plan, slicing.key()).await;
        Self {
            counts: input.metrics.reach_counts(),
            // Where they are not known, slices read as much as there is memory for.
            row_groups: row_groups.unwrap_or_default(),
            // The probe rows that were read ahead belong to their partitions.
            input: BuildInput {
                ahead: None,
                ..input
            },
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
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Relaxed)
            || self.slicing.is_exhausted(self.counts.scanned.value())
    }

    /// Builds what windows reach, the rows of a plan, in the memory of a slice. Returns also the most bytes that this
    /// took.
    ///
    /// # Errors
    /// If that does not suffice. If a file has changed. Those of the operators.
    pub(crate) async fn slice(
        &self,
        plan: Arc<dyn ExecutionPlan>,
    ) -> Result<(PreparedBuild, usize)> {
        let input = &self.input;
        let context = &input.context;
        let builder = input.builder(input.columns.clone(), self.partitions)?;
        let builder = builder.in_memory(context.memory_pool(), self.slicing.build_bytes());
        let memory = Arc::clone(&builder.memory);
        let inputs = || {
            let partitions = 0..plan.output_partitioning().partition_count();
            let execute = |partition| plan.execute(partition, Arc::clone(context));
            partitions.map(execute).collect()
        };
        let prepared = BuildState::collect(builder, inputs, 1, None).await?;
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
        Ok((prepared, memory.peak_bytes()))
    }

    /// A scan of what is reached.
    ///
    /// # Errors
    /// DataFusion's.
    pub(super) fn scan(&self, reach: Reach) -> Result<Arc<dyn ExecutionPlan>> {
        let config = self.input.context.session_config().options();
        let counts = self.counts.clone();
        let plan = without_other_files(&self.input.plan, &reach)?;
        pruned(&plan, Arc::new(reach), counts, config)
    }

    /// Reads what is reached, as far as `memory` suffices: `None` if it does not.
    ///
    /// # Errors
    /// Those of the operators.
    pub(super) async fn read(
        &self,
        reach: Reach,
        memory: &Arc<MemoryReservation>,
    ) -> Result<Option<Vec<RecordBatch>>> {
        let plan = self.scan(reach)?;
        let read = read_partitions(&plan, &self.input.context, memory).await?;
        Ok(read.map(|partitions| partitions.concat()))
    }

    /// An empty reservation of memory for rows that a partition reads.
    pub(super) fn read_memory(&self) -> Arc<MemoryReservation> {
        let pool = self.input.context.memory_pool();
        let pool = RetainingPool::new(pool, false, self.slicing.read_bytes);
        Arc::new(pool.reservation())
    }

    /// The keys of row groups that have none of these keys, and so are not read for them.
    pub(super) fn in_other_row_groups(&self, keys: &KeySet) -> KeySet {
        let groups = self.row_groups.iter();
        KeySet::of(
            groups
                .filter(|group| !keys.meets(**group))
                .copied()
                .collect(),
        )
    }

    pub(super) fn schema(&self) -> SchemaRef {
        self.input.plan.schema()
    }

    /// Reads and builds all rows, for all partitions that need them.
    ///
    /// # Errors
    /// Those of the operators. If a file has changed.
    pub(crate) async fn whole(self: &Arc<Self>) -> Result<Arc<PreparedBuild>> {
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
    pub(crate) async fn check_unchanged(&self) -> Result<()> {
        check_unchanged(&self.input.plan, &self.input.context).await
    }
}
