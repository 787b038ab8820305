//! Scans of files in a stated order, as time series often are, or in stated partitions, divided among tasks.
//!
//! `datafusion-distributed` 4.0 divides such a scan into as many groups of files as it can without changing their
//! order, and fails where these are no multiple of the tasks. Here a file is not divided. Groups of files that are
//! declared as partitions by a key stay whole, the same ones in the same task for all scans of a stage.
//!
//! A scan of one task stays as it is. `datafusion-distributed` would put a placeholder in its place, also where the
//! client executes it, and `RowPositionsExec` needs the scan itself.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use datafusion::datasource::source::DataSourceExec;
use datafusion_distributed::{
    DistributedLeafExec, ScaleUpLeafNodeEvent, ScaleUpLeafNodeEventResponse, ScaleUpLeafNodeHandler,
};

/// Gives each task some files of each group, in their order.
pub(crate) struct DivideSortedFiles;

impl ScaleUpLeafNodeHandler for DivideSortedFiles {
    fn handle(
        &self,
        event: ScaleUpLeafNodeEvent<'_>,
    ) -> Option<Result<ScaleUpLeafNodeEventResponse>> {
        let source = event.plan.downcast_ref::<DataSourceExec>()?;
        let files = source.data_source().downcast_ref::<FileScanConfig>()?;
        if event.task_count == 1 {
            let scan = Arc::clone(event.plan);
            return Some(Ok(ScaleUpLeafNodeEventResponse::new(scan)));
        }
        let is_partitioned = files.output_partitioning.is_some();
        if files.output_ordering.is_empty() && !is_partitioned {
            return None;
        }
        let tasks = event.task_count;
        let scans = (0..tasks).map(|task| {
            let mut files = files.clone();
            for (number, group) in files.file_groups.iter_mut().enumerate() {
                let of_task: Vec<_> = if !is_partitioned {
                    group.iter().skip(task).step_by(tasks).cloned().collect()
                } else if number % tasks == task {
                    group.iter().cloned().collect()
                } else {
                    vec![]
                };
                *group = FileGroup::new(of_task);
            }
            DataSourceExec::from_data_source(files) as _
        });
        let leaf = DistributedLeafExec::try_new(Arc::clone(event.plan), scans);
        Some(leaf.map(|leaf| ScaleUpLeafNodeEventResponse::new(Arc::new(leaf))))
    }
}
