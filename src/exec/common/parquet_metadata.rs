//! The metadata of Parquet files.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::ParquetFileReaderFactory;
use datafusion::parquet::arrow::arrow_reader::ArrowReaderOptions;
use datafusion::parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;

/// How many files' footers are read concurrently.
pub(crate) const CONCURRENT_FOOTERS: usize = 32;

/// The metadata of a file. The readers of a scan cache it.
///
/// # Errors
/// Those of the file, as for an encrypted one.
pub(crate) async fn parquet_metadata(
    readers: &dyn ParquetFileReaderFactory,
    file: &PartitionedFile,
    page_index: PageIndexPolicy,
) -> Result<Arc<ParquetMetaData>> {
    let metrics = ExecutionPlanMetricsSet::new();
    let mut reader = readers.create_reader(0, file.clone(), None, &metrics)?;
    let options = ArrowReaderOptions::new().with_page_index_policy(page_index);
    Ok(reader.get_metadata(Some(&options)).await?)
}
