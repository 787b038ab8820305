//! The state of a build side once its rows are collected: where they are, and how they answer probe rows.
//!
//! ```text
//!   input ─ collect ┬─▶ InMemory                      sorted: all rows, or those that few windows reach
//!                   ├─▶ OnDevices                     if these were selected and did not fail
//!                   └─▶ Spilled                       on disk, where memory does not suffice to collect or to sort
//! ```
//!
//! Where most rows are kept and others were appended, each of both is in memory by itself, or on devices. A build side
//! that is larger than memory may be [sliced](super::slices) instead: each slice is collected by itself.

use std::sync::Arc;
use std::time::Instant;

use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;

use crate::exec::range_join::build_side::builder::BuildSideBuilder;
use crate::exec::range_join::build_side::collect_or_spill::{Collected, CollectedRows};
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::device_join::DeviceJoins;
use crate::exec::range_join::probe::key_errors::KeyErrors;
use crate::exec::range_join::probe::probe_ahead::ProbeAhead;
use crate::exec::range_join::probe::probe_input::ReadBefore;
use crate::exec::range_join::probe::segments::SegmentedSide;
use crate::exec::range_join::probe::spilled::side::SpilledSide;
use crate::exec::range_join::spill::retaining_pool::is_out_of_memory;
use crate::exec::range_join::spill::run::BuildRuns;

/// A collected build side, which partitions of the probe side share.
#[derive(Debug, Clone)]
pub(crate) enum BuildState {
    /// Sorted and indexed in memory: finds ranges of rows, aggregates them, and returns rows.
    InMemory(Arc<SegmentedSide>),
    /// Answers batches of probe rows with aggregates.
    OnDevices(Arc<DeviceJoins>),
    /// On disk: answers buffered probe rows with aggregates, or returns rows, run by run.
    Spilled(Arc<SpilledSide>),
}

/// A build side, and what joins with it need beside it.
#[derive(Debug)]
pub(crate) struct PreparedBuild {
    pub(crate) state: BuildState,
    /// The rows that are not in it because their range key has failed.
    pub(crate) key_errors: Option<Arc<KeyErrors>>,
    /// The probe side, if its keys have told which rows are in it: its files must not change until they are joined.
    pub(crate) read_before: Option<ReadBefore>,
}

impl From<BuildState> for PreparedBuild {
    fn from(state: BuildState) -> Self {
        Self {
            state,
            key_errors: None,
            read_before: None,
        }
    }
}

impl BuildState {
    /// Collects the partitions of the build side, unless all that is needed is kept, and builds it for this many
    /// partitions of the probe side: all of it, or what the windows of a probe side that is read `ahead` reach.
    pub(crate) async fn collect(
        builder: BuildSideBuilder,
        inputs: impl FnOnce() -> Result<Vec<SendableRecordBatchStream>>,
        probe_partitions: usize,
        ahead: Option<&ProbeAhead>,
    ) -> Result<PreparedBuild> {
        if let Some(side) = builder.complete_side().await? {
            return Ok(Self::in_memory(builder.finish(side)).into());
        }
        let inputs = inputs()?;
        let Collected { rows, runs, failed } = builder.collect(inputs).await?;
        let (builder, key_errors) = if failed.is_empty() {
            (builder, None)
        } else {
            let key_errors = KeyErrors::try_new(failed, &builder.columns, &rows.types())?;
            // A later query that finds the rows would not find the errors.
            (builder.with_keeper(None, None), Some(Arc::new(key_errors)))
        };
        let state = match (runs, ahead) {
            (Some(runs), _) => Self::in_runs(runs, &builder, probe_partitions)?,
            (None, Some(ahead)) => {
                let (builder, rows) = ahead.reached(builder, rows).await?;
                Self::build(&builder, rows, probe_partitions).await?
            }
            (None, None) => Self::build(&builder, rows, probe_partitions).await?,
        };
        Ok(PreparedBuild {
            key_errors,
            ..state.into()
        })
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
            return Ok(Self::OnDevices(Arc::new(DeviceJoins::of_one(join))));
        }
        let Ok(rows) = Arc::try_unwrap(rows) else {
            return internal_err!("the rows of a failed build are still in use");
        };
        let rows = match builder.copy_to_spill(&rows) {
            Ok(copy) => match builder.sort_and_index(rows).await {
                Err(error) if is_out_of_memory(&error) => copy.ok_or(error)?,
                side => {
                    drop(copy);
                    return Ok(Self::in_memory(builder.finish(side?)));
                }
            },
            Err(error) if is_out_of_memory(&error) => rows,
            Err(error) => return Err(error),
        };
        let runs = builder.spill(rows).await?;
        Self::in_runs(runs, builder, probe_partitions)
    }

    fn in_memory(side: Arc<BuildSide>) -> Self {
        Self::InMemory(Arc::new(SegmentedSide::of_one(side)))
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
            Self::InMemory(side) => side.is_empty(),
            Self::OnDevices(join) => join.rows() == 0,
            Self::Spilled(_) => false,
        }
    }
}
