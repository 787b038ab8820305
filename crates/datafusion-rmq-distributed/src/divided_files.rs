//! Scans of files divided among tasks, so that each has files that follow one another, as those of time series often do
//! by their names: then the windows of a task reach little of the searched side of a range join.
//!
//! `datafusion-distributed` 4.0 deals out parts of files to tasks in turn. Here each task gets parts that follow one
//! another. It divides a scan in a stated order into as many groups of files as it can without changing that order, and
//! fails where these are no multiple of the tasks. Here a file of such a scan is not divided, and files of two groups
//! do not get into one. Groups of files that are declared as partitions by a key stay whole, the same ones in the same
//! task for all scans of a stage.
//!
//! A scan of one task stays as it is. `datafusion-distributed` would put a placeholder in its place, also where the
//! client executes it, and `RowPositionsExec` needs the scan itself.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::datasource::physical_plan::{FileGroup, FileGroupPartitioner, FileScanConfig};
use datafusion::datasource::source::DataSourceExec;
use datafusion_distributed::{
    DistributedLeafExec, ScaleUpLeafNodeEvent, ScaleUpLeafNodeEventResponse, ScaleUpLeafNodeHandler,
};

/// Gives each task files that follow one another.
pub(crate) struct DivideFiles;

impl ScaleUpLeafNodeHandler for DivideFiles {
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
        let tasks = event.task_count;
        let is_partitioned = files.output_partitioning.is_some();
        let groups = if is_partitioned {
            whole_groups(&files.file_groups, tasks)
        } else if files.output_ordering.is_empty() {
            parts_of_files(&files.file_groups, tasks)?
        } else {
            ordered_files(&files.file_groups, tasks)
        };
        let scans = groups.into_iter().map(|groups| {
            let mut files = files.clone();
            files.file_groups = groups;
            DataSourceExec::from_data_source(files) as _
        });
        let leaf = DistributedLeafExec::try_new(Arc::clone(event.plan), scans);
        Some(leaf.map(|leaf| ScaleUpLeafNodeEventResponse::new(Arc::new(leaf))))
    }
}

/// The groups of each task: all tasks have as many.
type OfTasks = Vec<Vec<FileGroup>>;

/// Each group in one task.
fn whole_groups(groups: &[FileGroup], tasks: usize) -> OfTasks {
    let of_task = |task| {
        let groups = groups.iter().enumerate();
        let groups = groups.map(|(number, group)| {
            let is_own = number % tasks == task;
            let files = group.iter().filter(|_| is_own).cloned();
            FileGroup::new(files.collect())
        });
        groups.collect()
    };
    (0..tasks).map(of_task).collect()
}

/// Parts of files of about the same size; `None` if the files can't be divided.
fn parts_of_files(groups: &[FileGroup], tasks: usize) -> Option<OfTasks> {
    let partitions = groups.len();
    let mut parts = FileGroupPartitioner::new()
        .with_target_partitions(partitions * tasks)
        .with_repartition_file_min_size(0)
        .repartition_file_groups(groups)?;
    parts.resize(partitions * tasks, FileGroup::new(vec![]));
    let of_tasks = parts.chunks(partitions);
    Some(of_tasks.map(<[FileGroup]>::to_vec).collect())
}

/// Whole files, of which those in one group were so before, in that order.
fn ordered_files(groups: &[FileGroup], tasks: usize) -> OfTasks {
    let files = groups.iter().enumerate();
    let files = files.flat_map(|(number, group)| group.iter().map(move |file| (number, file)));
    let files: Vec<_> = files.collect();
    let of_task = |task| {
        let [begin, end] = [task, task + 1].map(|i| i * files.len() / tasks);
        let files = &files[begin..end];
        let runs: Vec<_> = files.chunk_by(|(a, _), (b, _)| a == b).collect();
        // Then the pieces of all runs are no more than the groups: each run has less than one piece over its share.
        let in_piece = files.len().div_ceil(groups.len() + 1 - runs.len()).max(1);
        let pieces = runs.into_iter().flat_map(|run| run.chunks(in_piece));
        let pieces = pieces.map(|files| files.iter().map(|(_, file)| (*file).clone()).collect());
        let mut pieces: Vec<_> = pieces.map(FileGroup::new).collect();
        pieces.resize(groups.len(), FileGroup::new(vec![]));
        pieces
    };
    (0..tasks).map(of_task).collect()
}
