//! Tables in memory, as Parquet files have them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::error::{DataFusionError, Result};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};

/// Registers the Parquet files of a folder as tables in memory, of contiguous partitions.
pub async fn read_tables(ctx: &SessionContext, folder: &Path, partitions: usize) -> Result<()> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|file| file.extension().is_some_and(|end| end == "parquet"));
    files.sort();
    // One partition, so that rows keep their order.
    let reader = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    for file in files {
        let name = file.file_stem().and_then(|name| name.to_str());
        let (Some(name), Some(path)) = (name, file.to_str()) else {
            continue;
        };
        let frame = reader.read_parquet(path, ParquetReadOptions::default());
        let batches = frame.await?.collect().await?;
        let schema = batches.first().map(RecordBatch::schema);
        let schema = schema.ok_or_else(|| DataFusionError::Plan(format!("{name} has no row")))?;
        let share = batches.len().div_ceil(partitions);
        let partitions = batches.chunks(share).map(<[_]>::to_vec).collect();
        let table = MemTable::try_new(schema, partitions)?;
        ctx.register_table(name, Arc::new(table))?;
    }
    Ok(())
}
