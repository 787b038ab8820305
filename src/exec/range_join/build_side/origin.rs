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

use crate::common::options::RmqOptions;
use crate::exec::common::plan_key::ScanPlan;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::device_columns::DeviceNeeds;
use crate::exec::range_join::build_side::kept::{in_order, missing_in, over_scan};
use crate::exec::range_join::build_side::kept_on_devices::{DeviceSegment, may_find};
use crate::exec::range_join::build_side::kept_segments::WantedRows;
use crate::exec::range_join::build_side::kept_side::{
    KeptSegment, KeptSide, RowsKey, Segment, Value,
};
use crate::exec::range_join::engine_choice::KeptOn;
use crate::exec::range_join::metrics::ROWS_SCANNED;
use crate::index::catalog::IndexCatalog;

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
        let batch_rows = config.execution.batch_size.into();
        let keeps = RmqOptions::of(config).keep_indexes;
        if keeps && is_kept(catalog, plan, columns, merges_segments, on, batch_rows) == Some(true) {
            Self::Kept
        } else {
            Self::Built
        }
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

/// Whether rows of a plan are kept; `None` if the plan can't be compared with others.
fn is_kept(
    catalog: &IndexCatalog,
    plan: &Arc<dyn ExecutionPlan>,
    columns: &BuildColumns,
    merges_segments: bool,
    on: KeptOn,
    batch_rows: usize,
) -> Option<bool> {
    let plan = in_order(plan)?;
    let scanned = ScanPlan::of(&plan)?;
    let mut keys = over_scan(columns, &scanned)?;
    let values = keys.split_off(columns.num_equality_keys + 1).into_iter();
    let values = values.map(|expr| Value::new(expr, &scanned, |_| true));
    let values: Vec<_> = values.collect();
    let version = scanned.planned_version(&keys)?;
    let key = RowsKey {
        plan: scanned.key.clone(),
        keys,
        batch_rows,
    };
    let needs_order = columns.row_order_matters();
    let segments = WantedRows::of(&scanned, &key, &version, needs_order, true);
    let segments = segments.filter(|_| merges_segments);
    let schema = columns.schema(&plan.schema()).ok()?;
    let types = schema
        .fields()
        .iter()
        .map(|field| field.data_type().clone());
    let needs = DeviceNeeds::of_columns(columns, &types.collect::<Vec<_>>());
    Some(catalog.has(|rows, known| {
        let is_same = || known.matches_planned(&version);
        if let Some(kept) = KeptSide::<DeviceSegment>::of(rows.as_ref()) {
            let may_find = |segment: &Arc<DeviceSegment>| {
                may_find(kept, segment, scanned.is_in_order, (&values, &needs))
            };
            let segments = segments.as_ref().filter(|_| !columns.prevailing);
            let is_found = is_whole(kept, &key, columns, may_find) && is_same()
                || segments.is_some_and(|rows| rows.divide(kept, known).is_some());
            return on.devices && is_found;
        }
        // Devices join no empty side.
        if !on.cpu && rows.rows() > 0 {
            return false;
        }
        KeptSide::<Segment>::of(rows.as_ref()).is_some_and(|kept| {
            let may_find = |segment: &Arc<Segment>| {
                scanned.is_in_order && kept.is_in_order
                    || missing_in(&segment.prepared(&values), columns).is_empty()
            };
            let segments = segments.as_ref();
            is_whole(kept, &key, columns, may_find) && is_same()
                || segments.is_some_and(|rows| rows.divide(kept, known).is_some())
        })
    }))
}

/// Whether a side has these rows in one segment that may serve a join of these columns.
fn is_whole<S: KeptSegment>(
    kept: &KeptSide<S>,
    key: &RowsKey,
    columns: &BuildColumns,
    may_find: impl FnOnce(&Arc<S>) -> bool,
) -> bool {
    *kept.key == *key
        && kept.may_serve(columns)
        && !kept.has_failed()
        && kept.only_segment().is_some_and(may_find)
}
