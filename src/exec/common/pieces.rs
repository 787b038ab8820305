//! A plan over some of the pieces of its scan: batches of a table in memory, or files.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::common::file_versions::planned_files;
use crate::exec::common::ordered_rows::OrderedRowsExec;

/// The same plan over those pieces of its scan whose numbers `is_read` selects.
///
/// # Errors
/// DataFusion's, if an operator can't have another input.
pub(crate) fn over_pieces(
    plan: &Arc<dyn ExecutionPlan>,
    is_read: &dyn Fn(usize) -> bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    let replaced = Arc::clone(plan).transform_up(|operator| {
        if let Some(rows) = operator.downcast_ref::<OrderedRowsExec>() {
            let hidden = over_pieces(rows.hidden(), is_read)?;
            return Ok(Transformed::yes(Arc::new(rows.over(hidden)) as _));
        }
        let Some(scan) = operator.downcast_ref::<DataSourceExec>() else {
            return Ok(Transformed::no(operator));
        };
        let source = scan.data_source();
        if let Some(memory) = source.downcast_ref::<MemorySourceConfig>() {
            return Ok(Transformed::yes(over_batches(memory, is_read)?));
        }
        match source.downcast_ref::<FileScanConfig>() {
            Some(files) => Ok(Transformed::yes(over_files(files, is_read))),
            None => Ok(Transformed::no(operator)),
        }
    });
    replaced.data()
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

fn over_files(files: &FileScanConfig, is_read: &dyn Fn(usize) -> bool) -> Arc<dyn ExecutionPlan> {
    let numbers = planned_files(files).into_iter().zip(0..);
    let numbers: HashMap<_, usize> = numbers.map(|(meta, n)| (&meta.location, n)).collect();
    let groups = files.file_groups.iter().map(|group| {
        let read = group.iter().filter(|file| {
            let number = numbers.get(&file.object_meta.location);
            number.is_some_and(|number| is_read(*number))
        });
        FileGroup::new(read.cloned().collect())
    });
    let mut groups: Vec<FileGroup> = groups.collect();
    groups.retain(|group| !group.is_empty());
    let scan = FileScanConfigBuilder::from(files.clone()).with_file_groups(groups);
    DataSourceExec::from_data_source(scan.build())
}
