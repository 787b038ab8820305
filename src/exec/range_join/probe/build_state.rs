//! The state of a build side once its rows are collected: where they are, and how they answer probe rows.
//!
//! ```text
//!                   ┌─▶ Deferred ──▶ Sorted           few probe rows need no sort; for more it is built as others are
//!   input ─ collect ┼─▶ Sorted                        in memory
//!                   ├─▶ Segments                      in memory, where most rows are kept and others were appended
//!                   ├─▶ OnDevices                     if these were selected and did not fail
//!                   └─▶ Spilled                       on disk, where memory does not suffice to collect or to sort
//! ```
//!
//! Of one that is larger than memory slices may be collected (`slices`), each by itself.

use std::sync::Arc;
use std::time::Instant;

use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;

use crate::exec::common::once_per_run::SharedWork;
use crate::exec::range_join::build_side::builder::BuildSideBuilder;
use crate::exec::range_join::build_side::collect_or_spill::{Collected, CollectedRows};
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::compare_or_build::DeferredBuild;
use crate::exec::range_join::probe::device_join::DeviceJoins;
use crate::exec::range_join::probe::key_errors::KeyErrors;
use crate::exec::range_join::probe::segments::SegmentedSide;
use crate::exec::range_join::probe::spilled::side::SpilledSide;
use crate::exec::range_join::spill::retaining_pool::is_out_of_memory;
use crate::exec::range_join::spill::run::BuildRuns;

/// A collected build side, which partitions of the probe side share.
#[derive(Debug)]
pub(crate) enum BuildState {
    /// In memory as it was collected. Compares all its rows with a few probe rows; for more it is
    /// [built](BuildState::built), once for all partitions.
    Deferred(Arc<DeferredBuild>, SharedWork<BuildState>),
    /// Sorted and indexed in memory: finds ranges of rows, aggregates them, and returns rows.
    Sorted(Arc<BuildSide>),
    /// Several of these, whose answers are merged.
    Segments(Arc<SegmentedSide>),
    /// Answers batches of probe rows with aggregates.
    OnDevices(Arc<DeviceJoins>),
    /// On disk: answers buffered probe rows with aggregates, or returns rows, run by run.
    Spilled(Arc<SpilledSide>),
}

/// A build side, and the rows that are not in it because their range key has failed.
#[derive(Debug)]
pub(crate) struct PreparedBuild {
    pub(crate) state: Arc<BuildState>,
    pub(crate) key_errors: Option<Arc<KeyErrors>>,
}

impl From<BuildState> for PreparedBuild {
    fn from(state: BuildState) -> Self {
        Self {
            state: Arc::new(state),
            key_errors: None,
        }
    }
}

/// What is known of the probe side before it is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbeShape {
    pub(crate) partitions: usize,
    /// Whether the probe side ends.
    pub(crate) is_bounded: bool,
}

impl BuildState {
    /// Collects the partitions of the build side, unless all that is needed is kept. Builds it, unless it is worth
    /// waiting for the size of the probe side.
    pub(crate) async fn collect(
        builder: BuildSideBuilder,
        inputs: impl FnOnce() -> Result<Vec<SendableRecordBatchStream>>,
        probe: ProbeShape,
    ) -> Result<PreparedBuild> {
        let builder = match builder.complete_side().await {
            Ok(Some(side)) => return Ok(Self::Sorted(builder.finish(side)).into()),
            Ok(None) => builder,
            // What the query builds itself can be spilled.
            Err(error) if is_out_of_memory(&error) => builder.with_keeper(None, None),
            Err(error) => return Err(error),
        };
        let inputs = inputs()?;
        let Collected { rows, runs, failed } = builder.collect(inputs).await?;
        if failed.is_empty() {
            return Ok(Self::of_rows(builder, rows, runs, probe).await?.into());
        }
        let key_errors = KeyErrors::try_new(failed, &builder.columns, &rows.types())?;
        // A later query that finds the rows would not find the errors.
        let builder = builder.with_keeper(None, None);
        let state = Self::of_rows(builder, rows, runs, probe).await?;
        Ok(PreparedBuild {
            state: Arc::new(state),
            key_errors: Some(Arc::new(key_errors)),
        })
    }

    /// The state of these rows, or of the runs of all.
    async fn of_rows(
        builder: BuildSideBuilder,
        rows: CollectedRows,
        runs: Option<BuildRuns>,
        probe: ProbeShape,
    ) -> Result<Self> {
        if let Some(runs) = runs {
            return Self::in_runs(runs, &builder, probe.partitions);
        }
        let defers = probe.is_bounded
            && !builder.adds_values()
            && DeferredBuild::is_worthwhile(&builder.columns, &rows.batches)?
            && builder.select_devices(rows.num_rows()).await?.is_none()
            && !builder.is_worth_keeping(rows.num_rows());
        if defers {
            let deferred = DeferredBuild::new(builder, rows, probe.partitions);
            return Ok(Self::Deferred(Arc::new(deferred), SharedWork::default()));
        }
        Self::build(&builder, rows, probe.partitions).await
    }

    /// The state in which any number of probe rows can be joined.
    pub(crate) async fn built(self: Arc<Self>) -> Result<Arc<Self>> {
        let Self::Deferred(deferred, work) = &*self else {
            return Ok(self);
        };
        let deferred = Arc::clone(deferred);
        let build = || async move {
            let rows = deferred.rows_to_build();
            let built = Self::build(&deferred.builder, rows, deferred.probe_partitions).await?;
            deferred.discard_rows();
            Ok(built)
        };
        work.get(build).await
    }

    /// Sorts and indexes collected rows, or spills them if memory does not suffice for that.
    async fn build(
        builder: &BuildSideBuilder,
        rows: CollectedRows,
        probe_partitions: usize,
    ) -> Result<Self> {
        let started = Instant::now();
        let built = Self::build_or_spill(builder, rows, probe_partitions).await;
        builder.metrics.record_build(started);
        built.map_err(|error| builder.explain_out_of_memory(error))
    }

    async fn build_or_spill(
        builder: &BuildSideBuilder,
        rows: CollectedRows,
        probe_partitions: usize,
    ) -> Result<Self> {
        let rows = Arc::new(rows);
        if let Some(join) = builder.build_on_devices(&rows).await? {
            return Ok(Self::OnDevices(Arc::new(DeviceJoins::one(join))));
        }
        let Ok(rows) = Arc::try_unwrap(rows) else {
            return internal_err!("the rows of a failed build are still in use");
        };
        let rows = match builder.copy_to_spill(&rows) {
            Ok(copy) => match builder.sort_and_index(rows).await {
                Err(error) if is_out_of_memory(&error) => copy.ok_or(error)?,
                side => {
                    drop(copy);
                    return Ok(Self::Sorted(builder.finish(side?)));
                }
            },
            // A nested loop may use part of the memory.
            Err(error) if is_out_of_memory(&error) => rows,
            Err(error) => return Err(error),
        };
        let runs = builder.spill(rows).await?;
        Self::in_runs(runs, builder, probe_partitions)
    }

    /// Rows that have been spilled, whose runs the CPU builds.
    fn in_runs(
        runs: BuildRuns,
        builder: &BuildSideBuilder,
        probe_partitions: usize,
    ) -> Result<Self> {
        builder.record_cpu("on disk");
        let side = SpilledSide::try_new(runs, builder, probe_partitions)?;
        Ok(Self::Spilled(Arc::new(side)))
    }

    /// Whether there is no row in memory that can match or be returned.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Sorted(side) => side.is_empty(),
            Self::Segments(side) => side.segments.iter().all(|side| side.is_empty()),
            Self::OnDevices(join) => join.rows() == 0,
            Self::Deferred(..) | Self::Spilled(_) => false,
        }
    }
}
