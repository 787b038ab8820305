//! Reads the rows that are nearest to bounds, slice by slice.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;
use futures::future::try_join_all;

use crate::exec::common::blocking::{blocking, joined};
use crate::exec::common::plan_key::check_unchanged;
use crate::exec::common::statistics::expected_scanned_rows;
use crate::exec::range_join::metrics::ReachCounts;
use crate::exec::range_join::reach::nearest_rows::SoughtRows;
use crate::exec::range_join::reach::pruned_plan::pruned;
use rmq_arrow::common::array_bytes::arrays_bytes;

/// Rows that have been read, those of a slice in the order of the build side, and the memory that they take.
pub(crate) struct ReadSlices {
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    pub(crate) memory: Arc<MemoryReservation>,
}

/// Reads slices of a build side until all rows that are sought have been found; `None` if memory does not suffice, or
/// rows without a key may be among them.
///
/// # Errors
/// Those of the build side and its keys. If a file has changed while it was read.
pub(crate) async fn read_slices(
    mut sought: SoughtRows,
    build: &Arc<dyn ExecutionPlan>,
    counts: ReachCounts,
    context: &Arc<TaskContext>,
) -> Result<Option<ReadSlices>> {
    let (schema, config) = (build.schema(), context.session_config().options());
    let rows = expected_scanned_rows(build);
    let memory = MemoryConsumer::new("RangeJoinNearest").register(context.memory_pool());
    let memory = Arc::new(memory);
    // The slices of each partition, the last one first if that has the least keys.
    let mut slices: Vec<Vec<Vec<RecordBatch>>> = vec![];
    while let Some(reach) = sought.next_slice(&schema)? {
        let plan = pruned(build, Arc::new(reach), counts.clone(), config)?;
        let Some(partitions) = read_partitions(&plan, context, &memory).await? else {
            return Ok(None);
        };
        let read: Vec<_> = partitions.iter().flatten().cloned().collect();
        sought = blocking(move |waiting| {
            for batch in &read {
                waiting.check()?;
                sought.found(batch)?;
            }
            Ok(sought)
        })
        .await?;
        slices.push(partitions);
        // A scan that prunes little reads the same rows for each slice.
        if rows.is_none_or(|rows| counts.scanned.value() > rows / 2) {
            sought.read_rest_next();
        }
    }
    if sought.may_be_without_key() {
        return Ok(None);
    }
    // Slices may otherwise have rows of several versions of a file.
    if slices.len() > 1 {
        check_unchanged(build, context).await?;
    }
    if sought.is_below() {
        slices.reverse();
    }
    // Slice by slice, so that groups whose rows come in order still do.
    let mut all = slices.concat();
    all.retain(|batches| !batches.is_empty());
    if all.is_empty() {
        all.push(vec![]);
    }
    let plan = MemorySourceConfig::try_new_exec(&all, schema, None)?;
    Ok(Some(ReadSlices { plan, memory }))
}

/// Reads all partitions of a plan at the same time; `None` if memory does not suffice.
///
/// # Errors
/// Those of the plan.
pub(crate) async fn read_partitions(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    memory: &Arc<MemoryReservation>,
) -> Result<Option<Vec<Vec<RecordBatch>>>> {
    let partitions = 0..plan.output_partitioning().partition_count();
    let tasks = partitions.map(|partition| {
        let mut rows = plan.execute(partition, Arc::clone(context))?;
        let memory = Arc::clone(memory);
        Ok(SpawnedTask::spawn(async move {
            let mut batches = vec![];
            while let Some(batch) = rows.next().await.transpose()? {
                if memory.try_grow(arrays_bytes(batch.columns())).is_err() {
                    return Ok(None);
                }
                batches.push(batch);
            }
            Ok(Some(batches))
        }))
    });
    let tasks = tasks.collect::<Result<Vec<_>>>()?;
    let tasks = tasks.into_iter();
    let tasks = tasks.map(|task| joined(task, "a scan of what is reached"));
    Ok(try_join_all(tasks).await?.into_iter().collect())
}
