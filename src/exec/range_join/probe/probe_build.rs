//! The build side of one partition of the probe side, before it is read.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlanProperties;
use futures::{FutureExt, StreamExt};

use crate::exec::common::once_per_run::SharedWork;
use crate::exec::common::ordered_rows::divided;
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::probe::build_input::{BuildInput, KeptBuild};
use crate::exec::range_join::probe::build_state::PreparedBuild;
use crate::exec::range_join::probe::probe_ahead::BuildReads;
use crate::exec::range_join::probe::probe_input::ProbeInputs;
use crate::exec::range_join::probe::slices::sliced_build::SlicedBuild;
use crate::exec::range_join::spill::retaining_pool::is_out_of_memory;

/// A build side that has been read, or of which slices are.
pub(crate) enum RunBuild {
    Prepared(PreparedBuild),
    /// In files, of which a slice is collected for some probe rows, then another for the next.
    Sliced(Arc<SlicedBuild>),
}

/// What the partitions of one run of a join share.
#[derive(Debug, Default)]
pub(crate) struct JoinRun {
    build: SharedWork<RunBuild>,
    pub(crate) inputs: Arc<ProbeInputs>,
}

/// The build side of one partition of the probe side, before it is read.
#[derive(Debug)]
pub(crate) enum ProbeBuild {
    /// That of all partitions.
    Shared {
        input: BuildInput,
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
    pub(crate) async fn prepare(self) -> Result<Arc<RunBuild>> {
        match self {
            Self::Shared {
                input,
                run,
                probe_partitions,
            } => {
                let prepare = || find_or_prepare(input, probe_partitions);
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
                built.map(|built| Arc::new(RunBuild::Prepared(built)))
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

/// Finds the build side of all partitions of the input, or reads and builds it.
async fn find_or_prepare(mut input: BuildInput, probe_partitions: usize) -> Result<RunBuild> {
    let row_join = input.row_join.as_ref();
    let threshold = row_join.and_then(|join| join.threshold());
    let keeper = BuildSideKeeper::of(&input.plan, &input.columns, threshold, &input.context).await;
    let keeper = keeper.map(Arc::new);
    let mut kept = None;
    if let Some(keeper) = &keeper {
        input.plan = Arc::clone(keeper.plan());
        kept = match input.find(keeper).await {
            Ok(Some(KeptBuild::State(state))) => return Ok(RunBuild::Prepared(state.into())),
            Ok(Some(KeptBuild::Rows(segment))) => Some(segment),
            Ok(None) => None,
            // What the query builds itself can be spilled.
            Err(error) if is_out_of_memory(&error) => None,
            Err(error) => return Err(error),
        };
    }
    let reads = match (&input.ahead, &kept) {
        (Some(ahead), None) => {
            let read = input.columns.schema(&input.plan.schema())?;
            ahead
                .reads(&input.plan, &read, keeper.as_deref(), &input.metrics)
                .await?
        }
        _ => BuildReads::All,
    };
    let pruned = match reads {
        BuildReads::Reached(pruned) => pruned,
        BuildReads::Slices(slicing) => {
            let slices = SlicedBuild::new(input, keeper, slicing, probe_partitions);
            return Ok(RunBuild::Sliced(Arc::new(slices.await)));
        }
        BuildReads::All => {
            let config = input.context.session_config().options();
            let plan = divided(&input.plan, config, |_| true)?;
            let partitions = 0..plan.output_partitioning().partition_count();
            return input
                .prepare(&plan, partitions, probe_partitions, 1, keeper, kept)
                .await
                .map(RunBuild::Prepared);
        }
    };
    // Collecting registers rows that have been read again.
    drop(pruned.memory);
    let partitions = 0..pruned.plan.output_partitioning().partition_count();
    let prepared = input
        .prepare(&pruned.plan, partitions, probe_partitions, 1, None, None)
        .await?;
    let prepared = PreparedBuild {
        read_before: pruned.read_before,
        ..prepared
    };
    if let Some(keeper) = &keeper {
        keeper.add_read(pruned.counts.scanned.value());
    }
    Ok(RunBuild::Prepared(prepared))
}
