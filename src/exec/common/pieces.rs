//! A plan over some of the pieces of its scan: batches of a table in memory, files, or parts that a table states.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, internal_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::object_store::path::Path;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;

use crate::exec::common::file_versions::planned_files;
use crate::exec::common::ordered_rows::OrderedRowsExec;
use crate::exec::common::versioned_scan::VersionedScanExec;

/// The same plan over those pieces of its scan whose numbers `is_read` selects.
///
/// # Errors
/// An internal error if a table can't scan some of its parts. DataFusion's, if an operator can't have another input.
pub(crate) fn over_pieces(
    plan: &Arc<dyn ExecutionPlan>,
    is_read: &dyn Fn(usize) -> bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    let replaced = Arc::clone(plan).transform_up(|operator| {
        if let Some(rows) = operator.downcast_ref::<OrderedRowsExec>() {
            let hidden = over_pieces(rows.hidden(), is_read)?;
            return Ok(Transformed::yes(Arc::new(rows.over(hidden)) as _));
        }
        if let Some(scan) = operator.downcast_ref::<VersionedScanExec>() {
            let Some(scan) = scan.over_parts(is_read) else {
                return internal_err!("a table can't scan some of its parts");
            };
            return Ok(Transformed::yes(Arc::new(scan) as _));
        }
        let Some(scan) = operator.downcast_ref::<DataSourceExec>() else {
            return Ok(Transformed::no(operator));
        };
        let source = scan.data_source();
        if let Some(memory) = source.downcast_ref::<MemorySourceConfig>() {
            return Ok(Transformed::yes(over_batches(memory, is_read)?));
        }
        match source.downcast_ref::<FileScanConfig>() {
            Some(files) => {
                let numbers = planned_files(files).into_iter().zip(0..);
                let numbers: HashMap<_, usize> = numbers.map(|(m, n)| (&m.location, n)).collect();
                let is_read = |file: &PartitionedFile| {
                    let number = numbers.get(&file.object_meta.location);
                    number.is_some_and(|n| is_read(*n))
                };
                Ok(Transformed::yes(over_files(files, &is_read)))
            }
            None => Ok(Transformed::no(operator)),
        }
    });
    replaced.data()
}

/// The same plan over those files whose paths `is_read` selects, for a [`VersionedTable`](crate::VersionedTable) whose
/// parts are files. Its operators have to return the rows of each file whatever other files there are. `None` if
/// anything but files is scanned.
#[must_use]
pub fn scan_of_files(
    scan: &Arc<dyn ExecutionPlan>,
    is_read: &dyn Fn(&Path) -> bool,
) -> Option<Arc<dyn ExecutionPlan>> {
    let replaced = Arc::clone(scan).transform_up(|operator| {
        if !operator.children().is_empty() || operator.is::<EmptyExec>() {
            return Ok(Transformed::no(operator));
        }
        let source = operator.downcast_ref::<DataSourceExec>();
        let files = source.and_then(|source| source.data_source().downcast_ref());
        match files.filter(|_| operator.fetch().is_none()) {
            Some(files) => {
                let is_read = |file: &PartitionedFile| is_read(&file.object_meta.location);
                Ok(Transformed::yes(over_files(files, &is_read)))
            }
            None => internal_err!("not a scan of all rows of files"),
        }
    });
    replaced.data().ok()
}

fn over_batches(
    memory: &MemorySourceConfig,
    is_read: &dyn Fn(usize) -> bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    let mut numbers = 0..;
    let partitions = memory.partitions().iter().map(|batches| {
        let read = batches
            .iter()
            .filter(|_| numbers.next().is_some_and(is_read));
        read.cloned().collect()
    });
    let partitions: Vec<Vec<RecordBatch>> = partitions.collect();
    let (schema, columns) = (memory.original_schema(), memory.projection().clone());
    Ok(MemorySourceConfig::try_new_exec(
        &partitions,
        schema,
        columns,
    )?)
}

/// The same scan over those of its files that `is_read` selects, without partitions that have none of them.
pub(crate) fn over_files(
    files: &FileScanConfig,
    is_read: &dyn Fn(&PartitionedFile) -> bool,
) -> Arc<dyn ExecutionPlan> {
    let groups = files.file_groups.iter().map(|group| {
        let read = group.iter().filter(|file| is_read(file));
        FileGroup::new(read.cloned().collect())
    });
    let mut groups: Vec<FileGroup> = groups.collect();
    groups.retain(|group| !group.is_empty());
    if groups.is_empty() {
        // A plan has a partition.
        groups.push(FileGroup::default());
    }
    let scan = FileScanConfigBuilder::from(files.clone()).with_file_groups(groups);
    DataSourceExec::from_data_source(scan.build())
}
