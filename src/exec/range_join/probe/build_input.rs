//! What a build side is read from and built with, and what is kept of it.

use std::ops::Range;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::builder::BuildSideBuilder;
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::build_side::kept_on_devices::DeviceSegment;
use crate::exec::range_join::build_side::kept_segments::KeptSegments;
use crate::exec::range_join::build_side::kept_side::{KeptSegment, Segment};
use crate::exec::range_join::devices::JoinDevices;
use crate::exec::range_join::engine_choice::{KeptOn, RangeJoinEngine};
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::probe::build_state::{BuildState, PreparedBuild};
use crate::exec::range_join::probe::device_join::DeviceJoins;
use crate::exec::range_join::probe::probe_ahead::ProbeAhead;
use crate::exec::range_join::probe::segments::SegmentedSide;
use crate::exec::range_join::probe::spilled::merge::MergePlan;
use crate::exec::range_join::row_join::RowJoin;
use crate::exec::range_join::spill::retaining_pool::is_out_of_memory;
use datafusion_rmq_logical::common::options::RmqOptions;
use rmq_arrow::index::devices::Target;

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
    /// The probe side, if it is read ahead to learn what its windows reach.
    pub(crate) ahead: Option<ProbeAhead>,
}

/// What is kept of a build side.
pub(super) enum KeptBuild {
    /// All that the join needs.
    State(BuildState),
    /// Rows that the CPU has sorted, to which values may have to be added.
    Rows(Arc<Segment>),
}

/// What is built of segments, and how their answers are merged.
#[derive(Clone)]
struct Merged {
    columns: BuildColumns,
    plan: Option<Arc<MergePlan>>,
}

/// Rows that are kept, on the CPU or on devices.
enum KeptRows<S> {
    Whole(Arc<S>),
    /// Those to which rows may have been appended.
    Segments(Box<KeptSegments<S>>, Merged),
}

impl<S: KeptSegment> KeptRows<S> {
    /// The number of rows, about.
    fn rows(&self) -> usize {
        match self {
            Self::Whole(segment) => segment.total_rows(),
            Self::Segments(kept, _) => kept.rows,
        }
    }
}

/// Where rows are kept.
struct KeptPlaces {
    on_cpu: Option<KeptRows<Segment>>,
    on_devices: Option<(KeptRows<DeviceSegment>, Target)>,
}

impl BuildInput {
    pub(super) fn execute(&self, partition: usize) -> Result<SendableRecordBatchStream> {
        self.plan.execute(partition, Arc::clone(&self.context))
    }

    /// Finds what is kept of the build side where it is to be joined.
    pub(super) async fn find(&self, keeper: &Arc<BuildSideKeeper>) -> Result<Option<KeptBuild>> {
        let KeptPlaces { on_cpu, on_devices } = self.find_rows(keeper)?;
        let kept_on = KeptOn {
            cpu: on_cpu.is_some(),
            devices: on_devices.is_some(),
        };
        let rows = on_cpu.as_ref().map(KeptRows::rows);
        let rows = rows.or_else(|| Some(on_devices.as_ref()?.0.rows()));
        let Some(rows) = rows else {
            return self.load(keeper).await;
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
                return Ok(Some(KeptBuild::State(state)));
            }
            // The CPU joins if devices have failed to add to what they have, and it has the rows, too.
            if is_forced || !kept_on.cpu {
                return Ok(None);
            }
            self.engine.record_cpu("nothing could be added on devices");
        }
        match on_cpu {
            Some(KeptRows::Whole(segment)) => {
                self.metrics.record_kept();
                Ok(Some(KeptBuild::Rows(segment)))
            }
            Some(KeptRows::Segments(kept, merged)) => self.join_segments(*kept, merged).await,
            None => self.load(keeper).await,
        }
    }

    /// Finds the rows that are kept, as a whole or else in segments, on the CPU and on devices if these may join.
    fn find_rows(&self, keeper: &BuildSideKeeper) -> Result<KeptPlaces> {
        let on_cpu = keeper.find().map(KeptRows::Whole);
        let may_use_devices = self.may_use_devices(keeper);
        let on_devices = may_use_devices.then(|| keeper.find_on_devices()).flatten();
        let on_devices = on_devices.map(|(segment, target)| (KeptRows::Whole(segment), target));
        let mut kept = KeptPlaces { on_cpu, on_devices };
        let seeks_on_cpu = kept.on_cpu.is_none();
        // Devices answer for windows and prevailing rows together, which can't be merged.
        let seeks_on_devices =
            may_use_devices && kept.on_devices.is_none() && !self.columns.prevailing;
        if !seeks_on_cpu && !seeks_on_devices {
            return Ok(kept);
        }
        let Some(merged) = self.merged()? else {
            return Ok(kept);
        };
        if seeks_on_cpu {
            let segments = KeptSegments::find(keeper, &merged.columns).map(Box::new);
            kept.on_cpu = segments.map(|found| KeptRows::Segments(found, merged.clone()));
        }
        if seeks_on_devices {
            let segments = KeptSegments::find(keeper, &merged.columns).map(Box::new);
            kept.on_devices = segments.map(|found| {
                let target = found.target.clone();
                (KeptRows::Segments(found, merged), target)
            });
        }
        Ok(kept)
    }

    /// Joins with segments that the CPU has; `None` if all rows have to be built anew.
    async fn join_segments(
        &self,
        kept: KeptSegments<Segment>,
        merged: Merged,
    ) -> Result<Option<KeptBuild>> {
        let builder = self.builder(merged.columns, 1)?;
        let (parts, searches) = (kept.parts.len(), kept.searches.clone());
        let Some(segments) = builder.build_segments(kept).await? else {
            return Ok(None);
        };
        self.metrics.record_kept();
        self.metrics.record_segments(parts);
        let side = SegmentedSide {
            segments,
            merge_plan: merged.plan,
            searches,
        };
        let state = BuildState::InMemory(Arc::new(side));
        Ok(Some(KeptBuild::State(state)))
    }

    /// Joins with what devices have; `None` if all rows have to be built anew.
    async fn join_on_devices(
        &self,
        keeper: &BuildSideKeeper,
        kept: KeptRows<DeviceSegment>,
        devices: JoinDevices,
    ) -> Result<Option<DeviceJoins>> {
        match kept {
            KeptRows::Whole(segment) => {
                let builder = self.builder(self.columns.clone(), 1)?;
                let inputs = || self.execute_all();
                let join = builder.join_kept_on_devices(keeper, &segment, inputs, devices);
                Ok(join.await?.map(DeviceJoins::of_one))
            }
            KeptRows::Segments(kept, merged) => {
                let builder = self.builder(merged.columns, 1)?;
                let (parts, searches) = (kept.parts.len(), kept.searches.clone());
                let segments = builder.join_segments_on_devices(*kept, &devices).await?;
                Ok(segments.map(|segments| {
                    self.metrics.record_segments(parts);
                    DeviceJoins {
                        segments,
                        merge_plan: merged.plan,
                        searches,
                    }
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
        let (columns, plan) = SegmentedSide::plan(&self.columns, &self.plan.schema())?;
        Ok(Some(Merged { columns, plan }))
    }

    /// All partitions of the input.
    fn execute_all(&self) -> Result<Vec<SendableRecordBatchStream>> {
        let partitions = 0..self.plan.output_partitioning().partition_count();
        partitions
            .map(|partition| self.execute(partition))
            .collect()
    }

    /// The build side that another process has written, if it is to be had and the CPU joins.
    async fn load(&self, keeper: &Arc<BuildSideKeeper>) -> Result<Option<KeptBuild>> {
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
        Ok(loaded.map(KeptBuild::Rows))
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

    async fn select_devices(&self, rows: usize, kept_on: KeptOn) -> Result<Option<JoinDevices>> {
        let options = RmqOptions::of(self.context.session_config().options());
        self.engine.select_devices(rows, kept_on, &options).await
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
        let (mut plan, ahead) = (Arc::clone(plan), self.ahead.as_ref());
        let inputs = |plan: &Arc<dyn ExecutionPlan>| {
            let partitions = partitions.clone();
            let inputs =
                partitions.map(|partition| plan.execute(partition, Arc::clone(&self.context)));
            inputs.collect::<Result<Vec<_>>>()
        };
        let builder = || self.builder(self.columns.clone(), builds);
        if let Some(kept) = kept {
            // Beside rows that are kept nothing is spilled: where memory is short, they give way.
            let adding = builder()?.in_memory(self.context.memory_pool(), usize::MAX);
            let adding = adding.with_keeper(keeper.clone(), Some(kept));
            let built = BuildState::collect(adding, || inputs(&plan), probe_partitions, ahead);
            match built.await {
                Err(error) if is_out_of_memory(&error) => plan = reset_plan_states(plan)?,
                built => return built,
            }
        }
        let builder = builder()?.with_keeper(keeper, None);
        BuildState::collect(builder, || inputs(&plan), probe_partitions, ahead).await
    }
}
