//! The range keys in each row group of the files that a build side scans.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileGroup, FileSource, ParquetFileReaderFactory, ParquetSource,
};
use datafusion::parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use datafusion::parquet::arrow::parquet_to_arrow_schema;
use datafusion::parquet::file::metadata::PageIndexPolicy;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{CastExpr, Column};
use datafusion::physical_plan::ExecutionPlan;
use futures::{StreamExt, TryStreamExt, stream};

use crate::exec::common::parquet_metadata::{CONCURRENT_FOOTERS, parquet_metadata};
use crate::exec::common::plan_key::ScanPlan;
use crate::exec::range_join::reach::whole_keys::numbers;

/// The least and the greatest range key in each row group, as far as these are known; none if the build side is no scan
/// of one table in Parquet files, or the key no column of it.
///
/// # Errors
/// Those of the files.
pub(crate) async fn row_group_keys(
    build: &Arc<dyn ExecutionPlan>,
    key: &PhysicalExprRef,
) -> Result<Vec<(i128, i128)>> {
    let key_type = key.data_type(&build.schema())?;
    let known = ScanPlan::of(build)
        .and_then(|scanned| Some((scanned.only_files()?, scanned.over_scan(key)?)));
    let Some((scan, key)) = known else {
        return Ok(vec![]);
    };
    // As a wider integer it is the same number.
    let key = key.downcast_ref::<CastExpr>().map_or(&key, CastExpr::expr);
    let source = scan.file_source().downcast_ref::<ParquetSource>();
    let readers = source.and_then(ParquetSource::parquet_file_reader_factory);
    let (Some(column), Some(source), Some(readers)) =
        (key.downcast_ref::<Column>(), source, readers)
    else {
        return Ok(vec![]);
    };
    let fields = source.table_schema().table_schema().fields();
    let Some(field) = fields.get(column.index()) else {
        return Ok(vec![]);
    };
    let mut seen = HashSet::new();
    let files = scan.file_groups.iter().flat_map(FileGroup::iter);
    // A large file has parts in several groups.
    let files = files.filter(|file| seen.insert(file.path()));
    let keys = files.map(|file| keys_of_file(readers, file, field.name(), &key_type));
    let keys: Vec<_> = keys.collect();
    let keys: Vec<Vec<_>> = stream::iter(keys)
        .buffered(CONCURRENT_FOOTERS)
        .try_collect()
        .await?;
    Ok(keys.concat())
}

async fn keys_of_file(
    readers: &Arc<dyn ParquetFileReaderFactory>,
    file: &PartitionedFile,
    column: &str,
    key_type: &DataType,
) -> Result<Vec<(i128, i128)>> {
    let footer = parquet_metadata(readers.as_ref(), file, PageIndexPolicy::Skip).await?;
    let about = footer.file_metadata();
    let schema = parquet_to_arrow_schema(about.schema_descr(), about.key_value_metadata())?;
    let statistics = StatisticsConverter::try_new(column, &schema, about.schema_descr())?;
    let least = statistics.row_group_mins(footer.row_groups())?;
    let greatest = statistics.row_group_maxes(footer.row_groups())?;
    let (least, greatest) = (cast(&least, key_type)?, cast(&greatest, key_type)?);
    let (least, greatest) = (numbers(&least)?, numbers(&greatest)?);
    let ends = least.iter().zip(greatest.iter());
    let ends = ends.filter_map(|(least, greatest)| least.zip(greatest));
    Ok(ends.filter(|(least, greatest)| least <= greatest).collect())
}
