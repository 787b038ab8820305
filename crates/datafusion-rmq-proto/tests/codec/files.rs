//! Tables in files, and the rows of queries.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::util::pretty::pretty_format_batches_with_schema;
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::ListingOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};
use datafusion::prelude::SessionContext;
use tempfile::TempDir;

/// The files of a table that several tasks read.
const FILES: usize = 5;

/// Replaces the tables in memory of a session by several files each.
pub async fn move_to_files(ctx: &SessionContext) -> Result<()> {
    move_to(FILES, ctx).await
}

/// Replaces the tables in memory of a session by this number of files each.
pub async fn move_to(files: usize, ctx: &SessionContext) -> Result<()> {
    static FOLDER: LazyLock<TempDir> = LazyLock::new(|| TempDir::new().expect("a folder"));
    let schema = ctx.catalog("datafusion").and_then(|c| c.schema("public"));
    let Some(schema) = schema else {
        return Ok(());
    };
    for name in schema.table_names() {
        let Some(provider) = schema.table(&name).await? else {
            continue;
        };
        let Some(table) = provider.downcast_ref::<MemTable>() else {
            continue;
        };
        let folder = tempfile::tempdir_in(FOLDER.path())?.keep();
        if write(table, files, &folder).await.is_err() {
            // Parquet lacks the type of a column.
            continue;
        }
        let options = ListingOptions::new(Arc::new(ParquetFormat::default()));
        let options = options.with_file_extension(".parquet");
        schema.deregister_table(&name)?;
        let (path, columns) = (format!("{}/", folder.display()), table.schema());
        let quoted = datafusion::common::TableReference::bare(name);
        ctx.register_listing_table(quoted, path, options, Some(columns), None)
            .await?;
    }
    Ok(())
}

/// Writes a table in the order of its rows.
async fn write(table: &MemTable, files: usize, folder: &Path) -> Result<()> {
    let mut batches = vec![];
    for partition in &table.batches {
        batches.extend(partition.read().await.iter().cloned());
    }
    let rows = concat_batches(&table.schema(), &batches)?;
    for file in 0..files {
        let [begin, end] = [file, file + 1].map(|i| i * rows.num_rows() / files);
        let path = folder.join(format!("{file}.parquet"));
        // Statistics leave NaN out, and DataFusion 55 reads a column whose least and greatest value are equal as that
        // value.
        let plain = WriterProperties::builder().set_statistics_enabled(EnabledStatistics::None);
        let file = std::fs::File::create(path)?;
        let mut writer = ArrowWriter::try_new(file, table.schema(), Some(plain.build()))?;
        writer.write(&rows.slice(begin, end - begin))?;
        writer.close()?;
    }
    Ok(())
}

/// The rows of a query, as sorted lines.
pub async fn lines(ctx: &SessionContext, sql: &str) -> Result<Vec<String>> {
    let frame = datafusion_rmq::sql(ctx, sql).await?;
    let schema = Arc::clone(frame.schema().inner());
    let batches = frame.collect().await?;
    // Also without a batch.
    let text = pretty_format_batches_with_schema(schema, &batches);
    let text = text.map_err(DataFusionError::from)?.to_string();
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    lines.sort();
    Ok(lines)
}

/// Executes a statement.
pub async fn run(ctx: &SessionContext, sql: &str) {
    lines(ctx, sql)
        .await
        .unwrap_or_else(|e| panic!("{sql}: {e}"));
}
