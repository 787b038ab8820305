//! Where the build side of a range join comes from, as EXPLAIN shows it: `index=kept`, `index=pruned` or
//! `index=built`.
//!
//! Before the join runs, the catalog tells whether the rows are kept of what the plan scans; files are taken to be as
//! they were when the query was planned. Afterwards the metrics tell what it has done.

use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricsSet;

use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::kept_lookup::KeptLookup;
use crate::exec::range_join::build_side::kept_on_devices::DeviceSegment;
use crate::exec::range_join::build_side::kept_side::{KeptSegment, KeptSide, Segment};
use crate::exec::range_join::engine_choice::KeptOn;
use crate::exec::range_join::metrics::ROWS_SCANNED;
use crate::kept::catalog::IndexCatalog;
use crate::kept::entries::Kept;
use crate::kept::version::Version;
use datafusion_rmq_logical::common::options::RmqOptions;

/// Where a build side comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BuildOrigin {
    /// An earlier query has sorted and indexed the rows, or those to which the others have been appended.
    Kept,
    /// Another process has written them to files.
    Loaded,
    /// The query sorts and indexes what windows reach of them, if that is worth it.
    Pruned,
    /// The query sorts and indexes them.
    Built,
}

impl BuildOrigin {
    /// Where the rows of a plan will come from. `merges_segments` if the join can merge what it finds in several; `on`
    /// are the engines that may run it.
    pub(crate) fn planned(
        catalog: &IndexCatalog,
        plan: &Arc<dyn ExecutionPlan>,
        columns: &BuildColumns,
        merges_segments: bool,
        on: KeptOn,
        config: &ConfigOptions,
    ) -> Self {
        let keeps = RmqOptions::of(config).keep_indexes;
        let batch_rows = config.execution.batch_size.into();
        let lookup = || KeptLookup::planned(plan, columns, batch_rows);
        let Some(lookup) = keeps.then(lookup).flatten() else {
            return Self::Built;
        };
        let is_kept = catalog.has(|kept, version| {
            // Devices join no empty side, and don't merge prevailing rows.
            let on_cpu = on.cpu || kept.rows() == 0;
            let merges_on_devices = merges_segments && !columns.prevailing;
            on.devices && is_found::<DeviceSegment>(&lookup, kept, version, merges_on_devices)
                || on_cpu && is_found::<Segment>(&lookup, kept, version, merges_segments)
        });
        if is_kept { Self::Kept } else { Self::Built }
    }

    /// What a join has done; `None` if it has not run.
    pub(crate) fn executed(metrics: &MetricsSet) -> Option<Self> {
        metrics.iter().next()?;
        let has = |name| metrics.sum_by_name(name).is_some_and(|n| n.as_usize() > 0);
        Some(if has("index_kept") {
            Self::Kept
        } else if has("index_loaded") {
            Self::Loaded
        } else if metrics.sum_by_name(ROWS_SCANNED).is_some() {
            Self::Pruned
        } else {
            Self::Built
        })
    }
}

impl fmt::Display for BuildOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kept => "kept",
            Self::Loaded => "loaded",
            Self::Pruned => "pruned",
            Self::Built => "built",
        })
    }
}

/// Whether a join finds its rows in this: in one segment, or, if it `merges` several, as those before others.
fn is_found<S: KeptSegment>(
    lookup: &KeptLookup,
    kept: &Arc<dyn Kept>,
    version: &Version,
    merges: bool,
) -> bool {
    KeptSide::<S>::of(kept.as_ref()).is_some_and(|kept| {
        lookup.whole(kept, version, true).is_some()
            || merges && lookup.divide(kept, version).is_some()
    })
}
