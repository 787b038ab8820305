//! Reads the keys of a probe side that is too large to be read ahead, to learn which rows it seeks.
//!
//! The plan of the probe side is executed once more than for the join, and only the combinations of its equality keys
//! are kept, with the bounds from which rows are sought farthest:
//!
//! ```text
//!   probe side   ├─ a ─ b ─ a ─ a ─ c ─ b ─ ... ─┤    read for its keys:   a, b, c, and how far their bounds are apart
//!   build side          [     slices    ]             read for these keys
//!   probe side   ├─ a ─ b ─ a ─ a ─ c ─ b ─ ... ─┤    read for the join
//! ```
//!
//! So it must return the same rows twice: it is a scan of files that have not changed in between.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;
use futures::future::try_join_all;

use crate::exec::common::blocking::joined;
use crate::exec::common::plan_key::{ScanPlan, check_unchanged};
use crate::exec::range_join::reach::seekers::{Seekers, Seeking};
use crate::exec::range_join::reach::statistics_reach::extremes_of_all;
use crate::exec::range_join::reach::whole_keys::number;

/// With more than one probe row for so many build rows, all of a build side is read: to make out a window takes as long
/// as to read and sort two rows.
pub(crate) const MIN_ROWS_PER_READ_WINDOW: usize = 2;

/// Whether the keys of a probe side can be read before its rows are.
pub(crate) fn can_be_read(seeking: &Seeking, probe: &Arc<dyn ExecutionPlan>) -> bool {
    !seeking.is_by_row() && ScanPlan::of(probe).is_some_and(|scanned| scanned.reads_files())
}

/// Whether to read the keys of the probe rows, and then `share` of the build rows, is less than to read all of these.
#[expect(clippy::cast_precision_loss, reason = "estimates")]
pub(crate) fn are_worth_reading(probe_rows: usize, build_rows: usize, share: f64) -> bool {
    (probe_rows * MIN_ROWS_PER_READ_WINDOW) as f64 <= (1.0 - share) * build_rows as f64
}

/// How far the bounds from which rows are sought are apart, by the statistics of the probe side's files, and about how
/// many rows these have.
pub(crate) async fn span(
    seeking: &Seeking,
    probe: &Arc<dyn ExecutionPlan>,
) -> Option<(i128, usize)> {
    let (_, bound) = &seeking.spec.bounds[seeking.sought.bound];
    let (least, greatest, rows) = extremes_of_all(bound, probe).await?;
    Some((number(&greatest)?.saturating_sub(number(&least)?), rows))
}

/// What all rows of a probe side seek; `None` if their keys, or those of a partition, take more than `most_bytes`.
///
/// # Errors
/// If memory does not suffice. Those of the probe side, its bounds and keys. If a file has changed since the query was
/// planned.
pub(crate) async fn read_keys(
    seeking: Arc<Seeking>,
    probe: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    most_bytes: usize,
) -> Result<Option<Seekers>> {
    let plan = reset_plan_states(Arc::clone(probe))?;
    let none = || Seekers::try_new(Arc::clone(&seeking), &probe.schema(), context.memory_pool());
    let partitions = 0..plan.output_partitioning().partition_count();
    let tasks = partitions.map(|partition| {
        let mut rows = plan.execute(partition, Arc::clone(context))?;
        let (seeking, mut found) = (Arc::clone(&seeking), none()?);
        Ok(SpawnedTask::spawn(async move {
            while let Some(batch) = rows.next().await.transpose()? {
                found.add(&seeking.rows(&batch)?)?;
                if found.bytes() > most_bytes {
                    return Ok(None);
                }
            }
            Ok(Some(found))
        }))
    });
    let tasks = tasks.collect::<Result<Vec<_>>>()?;
    let tasks = tasks.into_iter();
    let tasks = tasks.map(|task| joined(task, "a scan of a probe side's keys"));
    let found: Option<Vec<Seekers>> = try_join_all(tasks).await?.into_iter().collect();
    check_unchanged(probe, context).await?;
    let Some(found) = found else {
        return Ok(None);
    };
    let mut all = none()?;
    for found in &found {
        all.merge(found)?;
    }
    Ok((all.bytes() <= most_bytes).then_some(all))
}
