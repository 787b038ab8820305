//! Prepares the build side for the partitions of the probe side: now, or after these have turned out to have many rows.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;

use crate::exec::range_join::build::builder::BuildSideBuilder;
use crate::exec::range_join::build::collect::Collected;
use crate::exec::range_join::probe::deferred_build::DeferredBuild;
use crate::exec::range_join::probe::searchable::SearchableBuild;

/// A collected build side.
#[derive(Debug)]
pub(crate) enum PreparedBuild {
    /// Sorted and indexed, or spilled.
    Searchable(Arc<SearchableBuild>),
    /// In memory and not sorted: small probe sides are joined by a nested loop.
    Deferred(Arc<DeferredBuild>),
}

/// What is known of the probe side before it is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbeShape {
    pub(crate) partitions: usize,
    /// Whether the probe side ends.
    pub(crate) is_bounded: bool,
}

impl PreparedBuild {
    /// Collects the partitions of the build side. Sorts and indexes it, unless it is worth waiting for the size of the
    /// probe side.
    pub(crate) async fn collect(
        builder: BuildSideBuilder,
        inputs: Vec<SendableRecordBatchStream>,
        probe: ProbeShape,
    ) -> Result<Self> {
        let built = match builder.collect(inputs).await? {
            Collected::Spilled(runs) => builder.in_spill_runs(runs),
            Collected::InMemory(rows) => {
                let defers = probe.is_bounded
                    && DeferredBuild::is_worthwhile(&builder.columns, &rows.batches)?
                    && builder.select_devices(rows.num_rows()).await?.is_none();
                if defers {
                    let deferred = DeferredBuild::new(builder, rows, probe.partitions);
                    return Ok(Self::Deferred(Arc::new(deferred)));
                }
                builder.build(rows).await?
            }
        };
        let side = SearchableBuild::try_new(built, &builder, probe.partitions)?;
        Ok(Self::Searchable(Arc::new(side)))
    }
}
