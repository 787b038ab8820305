//! The values in each row group of the files that a plan scans, by their statistics.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::pruning::PrunableStatistics;
use datafusion::common::stats::Precision;
use datafusion::common::{DataFusionError, Result, ScalarValue, Statistics};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileSource, ParquetFileReaderFactory, ParquetSource,
};
use datafusion::parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use datafusion::parquet::arrow::parquet_to_arrow_schema;
use datafusion::parquet::file::metadata::{PageIndexPolicy, RowGroupMetaData};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{CastExpr, Column};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;
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
    let known = key.downcast_ref::<Column>().zip(parquet_source(scan));
    let Some((column, (source, readers))) = known else {
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

fn parquet_source(
    scan: &FileScanConfig,
) -> Option<(&ParquetSource, &Arc<dyn ParquetFileReaderFactory>)> {
    let source = scan.file_source().downcast_ref::<ParquetSource>()?;
    Some((source, source.parquet_file_reader_factory()?))
}

/// The extremes of columns of a table in each row group that a scan of its files reads, as far as they are known,
/// except row groups without a row that passes its filter, or in which one of the columns is NULL in all rows; `None`
/// if the scan is not of Parquet files.
///
/// # Errors
/// Those of the files.
pub(crate) async fn row_group_statistics(
    scanned: &ScanPlan<'_>,
    columns: &[Column],
) -> Result<Option<Vec<Statistics>>> {
    let known = scanned.only_files();
    let known = known.and_then(|scan| Some((scan, parquet_source(scan)?)));
    let Some((scan, (source, readers))) = known else {
        return Ok(None);
    };
    let schema = source.table_schema().table_schema();
    let filter = source.filter();
    let filtered = filter.as_ref().map(collect_columns).unwrap_or_default();
    let all = columns.iter().cloned().chain(filtered);
    let all: HashSet<usize> = all.map(|column| column.index()).collect();
    let files = scan.file_groups.iter().flat_map(FileGroup::iter);
    let row_groups = files.map(|file| statistics_of_file(readers, file, schema, &all));
    let row_groups: Vec<_> = row_groups.collect();
    let row_groups: Vec<Vec<_>> = stream::iter(row_groups)
        .buffered(CONCURRENT_FOOTERS)
        .try_collect()
        .await?;
    let row_groups: Vec<_> = row_groups.into_iter().flatten().map(Arc::new).collect();
    let filter = filter.and_then(|filter| {
        let builder = PruningPredicateBuilder::new().with_file_schema(Arc::clone(schema));
        builder.build(filter)
    });
    let kept = filter.and_then(|filter| {
        let known = PrunableStatistics::new(row_groups.clone(), Arc::clone(schema));
        filter.prune(&known).ok()
    });
    let kept = kept.unwrap_or_else(|| vec![true; row_groups.len()]);
    let row_groups = row_groups.into_iter().zip(kept);
    let row_groups = row_groups.filter_map(|(row_group, is_kept)| {
        let mut columns = columns.iter().map(Column::index);
        let has_values =
            |column: usize| row_group.column_statistics[column].null_count != row_group.num_rows;
        (is_kept && columns.all(has_values)).then(|| Arc::unwrap_or_clone(row_group))
    });
    Ok(Some(row_groups.collect()))
}

async fn statistics_of_file(
    readers: &Arc<dyn ParquetFileReaderFactory>,
    file: &PartitionedFile,
    table: &Schema,
    columns: &HashSet<usize>,
) -> Result<Vec<Statistics>> {
    let footer = parquet_metadata(readers.as_ref(), file, PageIndexPolicy::Skip).await?;
    let about = footer.file_metadata();
    let schema = parquet_to_arrow_schema(about.schema_descr(), about.key_value_metadata())?;
    let row_groups = footer.row_groups().iter();
    let row_groups: Vec<_> = row_groups.filter(|group| is_in_part(group, file)).collect();
    let of_rows = row_groups.iter().map(|row_group| Statistics {
        num_rows: usize::try_from(row_group.num_rows()).map_or(Precision::Absent, Precision::Exact),
        ..Statistics::new_unknown(table)
    });
    let mut known: Vec<_> = of_rows.collect();
    for column in columns {
        let field = table.field(*column);
        let in_file = schema.column_with_name(field.name());
        let is_ordered =
            |(_, from): (usize, &Field)| keeps_order(from.data_type(), field.data_type());
        if !in_file.is_some_and(is_ordered) {
            continue;
        }
        let of_column = StatisticsConverter::try_new(field.name(), &schema, about.schema_descr())?
            .with_missing_null_counts_as_zero(false);
        let row_groups = || row_groups.iter().copied();
        let least = cast(&of_column.row_group_mins(row_groups())?, field.data_type())?;
        let greatest = cast(&of_column.row_group_maxes(row_groups())?, field.data_type())?;
        let nulls = of_column.row_group_null_counts(row_groups())?;
        for (number, known) in known.iter_mut().enumerate() {
            let value = |values: &ArrayRef| {
                let value = ScalarValue::try_from_array(values, number)?;
                let is_known = !value.is_null();
                Ok::<_, DataFusionError>(if is_known {
                    Precision::Exact(value)
                } else {
                    Precision::Absent
                })
            };
            let known = &mut known.column_statistics[*column];
            (known.min_value, known.max_value) = (value(&least)?, value(&greatest)?);
            let nulls = nulls.is_valid(number).then(|| nulls.value(number));
            let nulls = nulls.and_then(|nulls| usize::try_from(nulls).ok());
            known.null_count = nulls.map_or(Precision::Absent, Precision::Exact);
        }
    }
    Ok(known)
}

/// Whether a scan of a part of a file reads a row group: it begins in the part.
fn is_in_part(row_group: &RowGroupMetaData, part: &PartitionedFile) -> bool {
    let first = row_group.column(0);
    let begin = first.dictionary_page_offset();
    let begin = begin.unwrap_or_else(|| first.data_page_offset());
    let range = part.range.as_ref();
    range.is_none_or(|range| range.contains(begin))
}

/// Whether files order the values of a type as range joins do.
pub(super) fn is_ordered_in_files(data_type: &DataType) -> bool {
    data_type.is_numeric() && *data_type != DataType::Float16
        || data_type.is_string()
        || matches!(
            data_type,
            DataType::Date32
                | DataType::Date64
                | DataType::Time32(_)
                | DataType::Time64(_)
                | DataType::Timestamp(..)
        )
}

/// Whether values of a type are added to, and compared, in the one order that statistics have. Hours of some days are
/// shown twice in time zones, where days and months are added.
pub(super) fn is_ordered(data_type: &DataType) -> bool {
    is_whole(data_type) || is_time(data_type)
}

fn is_whole(data_type: &DataType) -> bool {
    data_type.is_integer() || data_type.is_decimal()
}

fn is_time(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..)
    )
}

/// Whether a cast leaves the order of values as it is, or makes neighbours equal.
pub(super) fn keeps_order(from: &DataType, to: &DataType) -> bool {
    let zone = |data_type: &DataType| match data_type {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    };
    is_whole(from) && is_whole(to) || is_time(from) && is_time(to) && zone(from) == zone(to)
}
