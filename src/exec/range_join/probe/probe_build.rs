//! The build side of one partition of the probe side, before it is read.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlanProperties;
use futures::{FutureExt, StreamExt};

use crate::common::options::RmqOptions;
use crate::exec::common::once_per_run::SharedWork;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::build_side::kept_on_devices::DeviceSegment;
use crate::exec::range_join::build_side::kept_segments::KeptSegments;
use crate::exec::range_join::build_side::kept_side::{KeptSegment, Segment};
use crate::exec::range_join::devices::JoinDevices;
use crate::exec::range_join::engine_choice::KeptOn;
use crate::exec::range_join::probe::build_input::BuildInput;
use crate::exec::range_join::probe::build_state::{BuildState, PreparedBuild};
use crate::exec::range_join::probe::device_join::DeviceJoins;
use crate::exec::range_join::probe::probe_ahead::{BuildReads, ProbeAhead};
use crate::exec::range_join::probe::probe_input::ProbeInputs;
use crate::exec::range_join::probe::segments::{Merging, SegmentedSide};
use crate::exec::range_join::probe::slices::sliced_build::SlicedBuild;
use crate::exec::range_join::spill::retaining_pool::is_out_of_memory;

/// What the partitions of one run of a join share.
#[derive(Debug, Default)]
pub(crate) struct JoinRun {
    build: SharedWork<Prepared>,
    pub(crate) inputs: Arc<ProbeInputs>,
}

/// The build side of one partition of the probe side, before it is read.
#[derive(Debug)]
pub(crate) enum ProbeBuild {
    /// That of all partitions.
    Shared {
        input: BuildInput,
        /// The probe side, if it is read ahead to learn what its windows reach.
        ahead: Option<ProbeAhead>,
        run: Arc<JoinRun>,
        probe_partitions: usize,
    },
    /// One partition of the input, of `partitions` that are built at the same time.
    Partition {
        input: BuildInput,
        partition: usize,
        partitions: usize,
    },
}

/// A build side that probe rows can be joined with.
#[derive(Debug)]
pub(crate) enum Prepared {
    Whole(PreparedBuild),
    /// It is read slice by slice.
    Sliced(Arc<SlicedBuild>),
}

impl From<BuildState> for Prepared {
    fn from(state: BuildState) -> Self {
        Self::Whole(state.into())
    }
}

/// What is kept of a build side.
enum Found {
    /// All that the join needs.
    State(BuildState),
    /// Rows that the CPU has sorted, to which values may have to be added.
    Rows(Arc<Segment>),
}

/// What is built of segments, and how their answers are merged.
type Merged = (BuildColumns, Option<Arc<Merging>>);

/// Rows that devices have.
enum OnDevices<'a> {
    Whole(Arc<DeviceSegment>),
    /// Those to which rows may have been appended.
    Segments(Box<KeptSegments<DeviceSegment>>, &'a Merged),
}

impl OnDevices<'_> {
    /// The number of rows, about.
    fn rows(&self) -> usize {
        match self {
            Self::Whole(segment) => segment.total_rows(),
            Self::Segments(kept, _) => kept.rows,
        }
    }
}

impl BuildInput {
    /// Finds the build side of all partitions of the input, or reads and builds it.
    async fn find_or_prepare(
        mut self,
        ahead: Option<ProbeAhead>,
        probe_partitions: usize,
    ) -> Result<Prepared> {
        let row_join = self.row_join.as_ref();
        let threshold = row_join.and_then(|join| join.threshold());
        let keeper = BuildSideKeeper::of(&self.plan, &self.columns, threshold, &self.context).await;
        let keeper = keeper.map(Arc::new);
        let mut kept = None;
        if let Some(keeper) = &keeper {
            self.plan = Arc::clone(keeper.plan());
            kept = match self.find(keeper).await {
                Ok(Some(Found::State(state))) => return Ok(state.into()),
                Ok(Some(Found::Rows(segment))) => Some(segment),
                Ok(None) => None,
                // What the query builds itself can be spilled.
                Err(error) if is_out_of_memory(&error) => None,
                Err(error) => return Err(error),
            };
        }
        let reads = match (ahead, &kept) {
            (Some(ahead), None) => {
                let read = self.columns.schema(&self.plan.schema())?;
                ahead
                    .reads(&self.plan, &read, keeper.as_deref(), &self.metrics)
                    .await?
            }
            _ => BuildReads::All,
        };
        let pruned = match reads {
            BuildReads::Reached(pruned) => pruned,
            BuildReads::Slices(slicing) => {
                let slices = SlicedBuild::new(self, keeper, slicing, probe_partitions);
                return Ok(Prepared::Sliced(Arc::new(slices)));
            }
            BuildReads::All => {
                let partitions = 0..self.plan.output_partitioning().partition_count();
                let prepared = self
                    .prepare(&self.plan, partitions, probe_partitions, 1, keeper, kept)
                    .await?;
                return Ok(Prepared::Whole(prepared));
            }
        };
        let partitions = 0..pruned.plan.output_partitioning().partition_count();
        let prepared = self
            .prepare(&pruned.plan, partitions, probe_partitions, 1, None, None)
            .await?;
        if let Some(keeper) = &keeper {
            keeper.add_read(pruned.counts.scanned.value());
        }
        Ok(Prepared::Whole(prepared))
    }

    /// Finds what is kept of the build side where it is to be joined.
    async fn find(&self, keeper: &Arc<BuildSideKeeper>) -> Result<Option<Found>> {
        let on_cpu = keeper.find();
        let may_use_devices = self.may_use_devices(keeper);
        let whole = may_use_devices.then(|| keeper.find_on_devices()).flatten();
        // Devices answer for windows and prevailing rows together, which can't be merged.
        let seeks_on_devices = may_use_devices && whole.is_none() && !self.columns.prevailing;
        let merged = if on_cpu.is_none() || seeks_on_devices {
            self.merged()?
        } else {
            None
        };
        let merged = merged.as_ref();
        let cpu_segments = merged
            .filter(|_| on_cpu.is_none())
            .and_then(|(columns, _)| KeptSegments::find(keeper, columns));
        let segments = || {
            let merged = merged.filter(|_| seeks_on_devices)?;
            let kept = KeptSegments::find(keeper, &merged.0)?;
            let target = kept.target.clone();
            Some((OnDevices::Segments(Box::new(kept), merged), target))
        };
        let whole = whole.map(|(segment, target)| (OnDevices::Whole(segment), target));
        let on_devices = whole.or_else(segments);
        let rows = on_cpu.as_ref().map(|segment| segment.sorted().total_rows);
        let rows = rows
            .or_else(|| Some(cpu_segments.as_ref()?.rows))
            .or_else(|| Some(on_devices.as_ref()?.0.rows()));
        let Some(rows) = rows else {
            return self.load(keeper).await;
        };
        let kept_on = KeptOn {
            cpu: on_cpu.is_some() || cpu_segments.is_some(),
            devices: on_devices.is_some(),
        };
        if let Some(devices) = self.select_devices(rows, kept_on).await? {
            let target = devices.target();
            let Some((kept, _)) = on_devices.filter(|(_, on)| *on == target) else {
                return Ok(None);
            };
            let is_forced = devices.forced;
            if let Some(joins) = self.join_on_devices(keeper, kept, devices).await? {
                self.metrics.record_kept();
                let state = BuildState::OnDevices(Arc::new(joins));
                return Ok(Some(Found::State(state)));
            }
            // The CPU joins if devices have failed to add to what they have, and it has the rows, too.
            if is_forced || !kept_on.cpu {
                return Ok(None);
            }
            self.engine.record_cpu("nothing could be added on devices");
        }
        if let Some(segment) = on_cpu {
            self.metrics.record_kept();
            return Ok(Some(Found::Rows(segment)));
        }
        let Some((kept, (columns, merging))) = cpu_segments.zip(merged) else {
            return self.load(keeper).await;
        };
        let builder = self.builder(columns.clone(), 1)?;
        let (parts, searches) = (kept.parts.len(), kept.searches.clone());
        let Some(segments) = builder.build_segments(kept).await? else {
            return Ok(None);
        };
        self.metrics.record_kept();
        self.metrics.record_segments(parts);
        let side = SegmentedSide {
            segments,
            merging: merging.clone(),
            searches,
        };
        Ok(Some(Found::State(BuildState::Segments(Arc::new(side)))))
    }

    /// Joins with what devices have; `None` if all rows have to be built anew.
    async fn join_on_devices(
        &self,
        keeper: &BuildSideKeeper,
        kept: OnDevices<'_>,
        devices: JoinDevices,
    ) -> Result<Option<DeviceJoins>> {
        match kept {
            OnDevices::Whole(segment) => {
                let builder = self.builder(self.columns.clone(), 1)?;
                let inputs = || self.execute_all();
                let join = builder.join_kept_on_devices(keeper, &segment, inputs, devices);
                Ok(join.await?.map(DeviceJoins::one))
            }
            OnDevices::Segments(kept, (columns, merging)) => {
                let builder = self.builder(columns.clone(), 1)?;
                let (segments, searches) = (kept.parts.len(), kept.searches.clone());
                let joins = builder.join_segments_on_devices(*kept, &devices).await?;
                Ok(joins.map(|joins| {
                    self.metrics.record_segments(segments);
                    DeviceJoins::merged(joins, merging.clone(), searches)
                }))
            }
        }
    }

    /// Whether devices may have the rows and run the join.
    fn may_use_devices(&self, keeper: &BuildSideKeeper) -> bool {
        let options = RmqOptions::of(self.context.session_config().options());
        let may_join = self.engine.candidates(options.engine).devices;
        may_join && keeper.has_devices()
    }

    /// What is built of segments, and how their answers are merged; `None` if the join can't merge them.
    fn merged(&self) -> Result<Option<Merged>> {
        let row_join = self.row_join.as_deref();
        if !SegmentedSide::may_answer(&self.columns, row_join, self.is_probe_bounded) {
            return Ok(None);
        }
        SegmentedSide::plan(&self.columns, &self.plan.schema()).map(Some)
    }

    /// All partitions of the input.
    fn execute_all(&self) -> Result<Vec<SendableRecordBatchStream>> {
        let partitions = 0..self.plan.output_partitioning().partition_count();
        partitions
            .map(|partition| self.execute(partition))
            .collect()
    }

    /// The build side that another process has written, if it is to be had and the CPU joins.
    async fn load(&self, keeper: &Arc<BuildSideKeeper>) -> Result<Option<Found>> {
        let Some(persisted) = keeper.find_persisted().await? else {
            return Ok(None);
        };
        let kept_on = KeptOn::default();
        let devices = self.select_devices(persisted.rows(), kept_on).await?;
        if devices.is_some() {
            return Ok(None);
        }
        let builder = self.builder(self.columns.clone(), 1)?;
        let loaded = builder.load(keeper, persisted).await?;
        if loaded.is_some() {
            self.metrics.record_loaded();
        }
        Ok(loaded.map(Found::Rows))
    }

    async fn select_devices(&self, rows: usize, kept_on: KeptOn) -> Result<Option<JoinDevices>> {
        let options = RmqOptions::of(self.context.session_config().options());
        self.engine.select_devices(rows, kept_on, &options).await
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
    pub(crate) async fn prepare(self) -> Result<Arc<Prepared>> {
        match self {
            Self::Shared {
                input,
                ahead,
                run,
                probe_partitions,
            } => {
                let prepare = || input.find_or_prepare(ahead, probe_partitions);
                run.build.get(prepare).await
            }
            Self::Partition {
                input,
                partition,
                partitions,
            } => {
                let read = partition..partition + 1;
                let built = input.prepare(&input.plan, read, 1, partitions, None, None);
                let built = built.await;
                Ok(Arc::new(Prepared::Whole(built?)))
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
