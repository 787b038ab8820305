//! Reads rows of Parquet files by their positions in the table.

use std::collections::BTreeSet;
use std::future::ready;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_err, internal_datafusion_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetRowSelection;
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetFileReaderFactory,
    ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::parquet::arrow::arrow_reader::RowSelection;
use datafusion::parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::ExecutionPlan;
use futures::{StreamExt, TryStreamExt};

use crate::exec::common::blocking::joined;
use crate::exec::common::file_versions::file_versions;
use crate::exec::common::parquet_metadata::{CONCURRENT_FOOTERS, parquet_metadata};
use crate::exec::range_lookup::loaded_columns::{ColumnMemory, LoadedColumns};
use crate::exec::range_lookup::required::{IndexId, RequiredIndexes};
use crate::exec::range_lookup::scan::{RelationScan, ScanVersion};
use crate::kept::catalog::IndexCatalog;
use crate::kept::version::FileVersion;
use rmq_arrow::common::ordered_type::key_bytes;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::index::chunk_extremes::{BLOCK_ROWS, Block};
use rmq_arrow::index::key_index::{Answer, KeyIndex};
use rmq_arrow::index::sort_keys::Chunks;
use rmq_engine::Extreme;

/// The Parquet files of a table, in the order of their rows.
#[derive(Debug)]
pub(crate) struct ParquetFiles {
    scan: FileScanConfig,
    readers: Arc<dyn ParquetFileReaderFactory>,
    files: Vec<PartitionedFile>,
    versions: Vec<FileVersion>,
    schema: SchemaRef,
    /// The table, in errors.
    table: String,
    catalog: Arc<IndexCatalog>,
}

/// Parquet files whose numbers of rows are known, so that rows are read by their positions.
#[derive(Debug)]
pub(crate) struct FileRows {
    files: ParquetFiles,
    /// The number of rows up to the end of each file.
    pub(crate) ends: Arc<[usize]>,
}

/// A column whose extremes are asked for.
#[derive(Debug, Clone)]
pub(crate) struct AskedColumn {
    /// Its number in the scan.
    pub(crate) column: usize,
    pub(crate) data_type: DataType,
    pub(crate) extreme: Extreme,
}

impl ParquetFiles {
    /// The files of this scan of a relation, in this version. `None` for a scan of anything else, or of parts of files.
    pub(crate) fn of(
        required: &RequiredIndexes,
        scan: &RelationScan,
        version: &ScanVersion,
    ) -> Option<Self> {
        let (RelationScan::Plan(scan), Some(versions)) = (scan, version.listed_files()) else {
            return None;
        };
        let plan = &scan.plan;
        let source = plan.downcast_ref::<DataSourceExec>()?;
        let scan = source.data_source().downcast_ref::<FileScanConfig>()?;
        let parquet: &ParquetSource = scan.file_source().downcast_ref()?;
        let readers = parquet.parquet_file_reader_factory()?;
        let files = scan.file_groups.iter().flat_map(FileGroup::iter);
        let files: Vec<PartitionedFile> = files.cloned().collect();
        let mut all = files.iter();
        let are_whole = all.all(|file| file.range.is_none() && file.extensions.is_empty());
        let is_whole = are_whole
            && files.len() == versions.len()
            && parquet.filter().is_none()
            && source.fetch().is_none();
        is_whole.then(|| Self {
            scan: scan.clone(),
            readers: Arc::clone(readers),
            files,
            versions: versions.to_vec(),
            schema: plan.schema(),
            table: required.label.clone(),
            catalog: Arc::clone(&required.catalog),
        })
    }

    /// The same with the number of rows up to the end of each file.
    pub(crate) fn with_ends(self, ends: Arc<[usize]>) -> FileRows {
        FileRows { files: self, ends }
    }

    /// The same with the numbers of rows, which are in the footers.
    ///
    /// # Errors
    /// Those of the files, as for encrypted ones.
    pub(crate) async fn count_rows(self) -> Result<FileRows> {
        let policy = PageIndexPolicy::Skip;
        let footers = self.files.iter().map(|file| self.metadata(file, policy));
        let footers: Vec<_> = footers.collect();
        let counted = futures::stream::iter(footers)
            .buffered(CONCURRENT_FOOTERS)
            .map(|footer| {
                let rows = footer?.file_metadata().num_rows();
                usize::try_from(rows)
                    .map_err(|_| internal_datafusion_err!("a file has {rows} rows"))
            });
        let rows: Vec<usize> = counted.try_collect().await?;
        let ends = rows.iter().scan(0, |end, rows| {
            *end += rows;
            Some(*end)
        });
        let ends = ends.collect();
        Ok(self.with_ends(ends))
    }

    /// The metadata of a file.
    async fn metadata(
        &self,
        file: &PartitionedFile,
        page_index: PageIndexPolicy,
    ) -> Result<Arc<ParquetMetaData>> {
        parquet_metadata(self.readers.as_ref(), file, page_index).await
    }
}

impl FileRows {
    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The column of this index.
    ///
    /// # Errors
    /// Arrow's, if the scan does not have it.
    pub(crate) fn asked(&self, id: &IndexId, data_type: &DataType) -> Result<AskedColumn> {
        Ok(AskedColumn {
            column: self.files.schema.index_of(&id.column)?,
            data_type: data_type.clone(),
            extreme: id.extreme()?,
        })
    }

    /// The files that have some of these rows, with the rows of each. `rows` are ascending.
    fn files_of(&self, rows: &[Range<usize>]) -> Vec<(usize, RowSelection)> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let files = starts.zip(self.ends.iter()).enumerate();
        let files = files.filter_map(|(number, (start, end))| {
            let first = rows.partition_point(|rows| rows.end <= start);
            let within = rows[first..].iter().take_while(|rows| rows.start < *end);
            let within = within.map(|rows| rows.start.max(start)..rows.end.min(*end));
            let within = within.filter(|rows| !rows.is_empty());
            let within: Vec<_> = within
                .map(|rows| rows.start - start..rows.end - start)
                .collect();
            (!within.is_empty()).then(|| {
                let rows = RowSelection::from_consecutive_ranges(within.into_iter(), end - start);
                (number, rows)
            })
        });
        files.collect()
    }

    /// The scan of these columns and files.
    fn scan(&self, columns: &[usize], files: &[(usize, RowSelection)]) -> Result<FileScanConfig> {
        let all = &self.files;
        let projection = ProjectionExprs::from_indices(columns, &all.schema);
        let source = all.scan.file_source();
        let source = source.try_pushdown_projection(&projection)?;
        let source =
            source.ok_or_else(|| internal_datafusion_err!("a Parquet scan takes a projection"))?;
        let selected = files.iter().map(|(number, rows)| {
            let rows = ParquetRowSelection::new(rows.clone());
            all.files[*number].clone().with_extension(rows)
        });
        Ok(FileScanConfigBuilder::from(all.scan.clone())
            .with_source(source)
            .with_file_groups(vec![FileGroup::new(selected.collect())])
            .build())
    }

    /// Reads whole columns on at most `tasks` tasks, each of which reads consecutive rows.
    ///
    /// # Errors
    /// Those of the files, and of `memory`.
    pub(crate) async fn load(
        self: &Arc<Self>,
        columns: &BTreeSet<&str>,
        memory: &Arc<ColumnMemory>,
        tasks: usize,
        context: &Arc<TaskContext>,
    ) -> Result<LoadedColumns> {
        let schema = &self.files.schema;
        let numbers = columns.iter().map(|name| Ok(schema.index_of(name)?));
        let numbers: Arc<[usize]> = numbers.collect::<Result<_>>()?;
        let share = self
            .rows()
            .div_ceil(tasks.max(1))
            .max(1)
            .next_multiple_of(BLOCK_ROWS);
        let starts = (0..self.rows()).step_by(share);
        let parts = starts.map(|start| start..self.rows().min(start + share));
        let mut running = vec![];
        for part in parts {
            let files = self.files_of(std::slice::from_ref(&part));
            self.find_pages(&files).await?;
            let batches = DataSourceExec::from_data_source(self.scan(&numbers, &files)?);
            let batches = batches.execute(0, Arc::clone(context))?;
            let memory = Arc::clone(memory);
            running.push(SpawnedTask::spawn(async move {
                let registered = batches.and_then(|batch| {
                    let added = batch
                        .columns()
                        .iter()
                        .try_for_each(|array| memory.add(array));
                    ready(added.map(|()| batch))
                });
                registered.try_collect::<Vec<RecordBatch>>().await
            }));
        }
        let mut loaded: Vec<Vec<ArrayRef>> = columns.iter().map(|_| vec![]).collect();
        for task in running {
            for batch in joined(task, "reading").await? {
                for (arrays, array) in loaded.iter_mut().zip(batch.columns()) {
                    arrays.push(Arc::clone(array));
                }
            }
        }
        let names = columns.iter().map(|name| (*name).to_string());
        Ok(LoadedColumns::new(names.zip(loaded).collect(), memory))
    }

    /// Reads blocks of rows of columns, on at most `tasks` tasks, and answers their ranges: for each column the answers
    /// of the blocks. Holds few blocks at a time.
    ///
    /// # Errors
    /// Those of the files, also if they have changed; "Resources exhausted" if the session's memory pool is too small
    /// for one block.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        columns: Vec<AskedColumn>,
        blocks: Vec<Block>,
        tasks: usize,
        context: &Arc<TaskContext>,
    ) -> Result<Vec<Vec<Answer>>> {
        if blocks.is_empty() {
            return Ok(columns.iter().map(|_| vec![]).collect());
        }
        let (this, context) = (Arc::clone(self), Arc::clone(context));
        // A task of its own, which ends and frees its memory even if nothing polls this future for a while: others may
        // wait for that.
        let answers = SpawnedTask::spawn(async move {
            this.answer_blocks(columns, blocks, tasks, &context).await
        });
        joined(answers, "reading").await
    }

    async fn answer_blocks(
        self: Arc<Self>,
        columns: Vec<AskedColumn>,
        blocks: Vec<Block>,
        tasks: usize,
        context: &Arc<TaskContext>,
    ) -> Result<Vec<Vec<Answer>>> {
        let mut answers: Vec<Vec<Answer>> = columns.iter().map(|_| vec![]).collect();
        let read = merged(blocks.iter().flat_map(|block| &block.rows));
        let files = self.files_of(&read);
        self.find_pages(&files).await?;
        let catalog = &self.files.catalog;
        // Freed after the memory, also where this ends in an error.
        let mut reading = catalog.reading.read().await;
        let memory = MemoryConsumer::new(format!("rmq rows of {}", self.files.table))
            .register(context.memory_pool());
        let bytes = columns.iter().map(|column| block_bytes(&column.data_type));
        let bytes = bytes.sum();
        let mut tasks = tasks.clamp(1, blocks.len());
        while tasks > 1 && memory.try_grow(tasks * bytes).is_err() {
            tasks -= 1;
        }
        if memory.size() == 0 && catalog.grow(&memory, bytes).is_err() {
            // The other partitions of the query, and other queries, read as well.
            drop(reading);
            let alone = catalog.reading.write().await;
            catalog.grow(&memory, bytes)?;
            reading = alone.downgrade();
        }

        let columns: Arc<[AskedColumn]> = columns.into();
        let in_task = blocks.len().div_ceil(tasks);
        let mut left = blocks.into_iter();
        let mut running = vec![];
        loop {
            let blocks: Vec<Block> = left.by_ref().take(in_task).collect();
            if blocks.is_empty() {
                break;
            }
            let (this, columns) = (Arc::clone(&self), Arc::clone(&columns));
            let context = Arc::clone(context);
            running.push(SpawnedTask::spawn(async move {
                this.answer_in_order(&columns, blocks, context).await
            }));
        }
        for task in running {
            for (answers, answered) in answers.iter_mut().zip(joined(task, "reading").await?) {
                answers.extend(answered);
            }
        }
        drop(memory);
        drop(reading);
        self.check_unchanged(&files, context).await?;
        Ok(answers)
    }

    /// Reads the indexes of the pages of files that are read in part, which the scan finds in the cache: without them
    /// it would read the column of whole row groups.
    async fn find_pages(&self, files: &[(usize, RowSelection)]) -> Result<()> {
        let partial = files
            .iter()
            .filter(|(_, rows)| rows.skipped_row_count() > 0);
        let policy = PageIndexPolicy::Optional;
        let files = partial.map(|(number, _)| {
            let file = &self.files.files[*number];
            self.files.metadata(file, policy)
        });
        let files: Vec<_> = files.collect();
        let read = futures::stream::iter(files).buffered(CONCURRENT_FOOTERS);
        read.try_for_each(|_| ready(Ok(()))).await
    }

    /// Reads blocks one after another.
    async fn answer_in_order(
        &self,
        columns: &[AskedColumn],
        blocks: Vec<Block>,
        context: Arc<TaskContext>,
    ) -> Result<Vec<Vec<Answer>>> {
        let mut projected: Vec<usize> = columns.iter().map(|column| column.column).collect();
        projected.sort_unstable();
        projected.dedup();
        let rows = merged(blocks.iter().flat_map(|block| &block.rows));
        let scan = self.scan(&projected, &self.files_of(&rows))?;
        let mut batches = DataSourceExec::from_data_source(scan).execute(0, context)?;
        let mut answers: Vec<Vec<Answer>> = columns.iter().map(|_| vec![]).collect();
        let mut rest: Option<RecordBatch> = None;
        for block in blocks {
            let mut missing = block.len();
            let mut read: Vec<RecordBatch> = vec![];
            while missing > 0 {
                let next = match rest.take() {
                    Some(rest) => Some(rest),
                    None => batches.next().await.transpose()?,
                };
                let Some(batch) = next else {
                    return exec_err!(
                        "the files of table '{}' have fewer rows than their footers say",
                        self.files.table
                    );
                };
                let taken = missing.min(batch.num_rows());
                read.push(batch.slice(0, taken));
                if taken < batch.num_rows() {
                    rest = Some(batch.slice(taken, batch.num_rows() - taken));
                }
                missing -= taken;
            }
            let ranges: Ranges = block.ranges.into_iter().collect();
            let ranges = [ranges];
            for (column, answers) in columns.iter().zip(&mut answers) {
                // All columns asked of are projected.
                let at = projected.partition_point(|projected| *projected < column.column);
                let arrays = read.iter().map(|batch| Arc::clone(batch.column(at)));
                let chunks = Chunks {
                    arrays: arrays.collect::<Vec<ArrayRef>>(),
                    owned_elsewhere: false,
                };
                let index = KeyIndex::on_cpu(&chunks, &column.data_type, column.extreme, 1)?;
                answers.push(index.answer(&ranges, true, true)?);
            }
        }
        Ok(answers)
    }

    /// Checks that files have the version that their rows are expected to have.
    ///
    /// # Errors
    /// An execution error if they have not.
    async fn check_unchanged(
        &self,
        files: &[(usize, RowSelection)],
        context: &TaskContext,
    ) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let all = &self.files;
        let whose = format!("of table '{}'", all.table);
        let read = files.iter().map(|(number, _)| all.files[*number].clone());
        let scan = FileScanConfigBuilder::from(all.scan.clone())
            .with_file_groups(vec![FileGroup::new(read.collect())])
            .build();
        let now = file_versions(&whose, &scan, context).await?;
        let expected = files.iter().map(|(number, _)| &all.versions[*number]);
        if !now.iter().eq(expected) {
            return exec_err!(
                "a file {whose} changed while a query over it was running; run the query again"
            );
        }
        Ok(())
    }
}

/// Estimates the bytes of a block of a column: as it is read, put together, and indexed.
fn block_bytes(data_type: &DataType) -> usize {
    BLOCK_ROWS * key_bytes(data_type) + KeyIndex::estimate_unread(BLOCK_ROWS, data_type)
}

/// Ranges of rows, without empty ones, and those that follow each other as one.
fn merged<'a>(rows: impl Iterator<Item = &'a Range<usize>>) -> Vec<Range<usize>> {
    let mut merged: Vec<Range<usize>> = vec![];
    for rows in rows.filter(|rows| !rows.is_empty()) {
        match merged.last_mut() {
            Some(last) if last.end == rows.start => last.end = rows.end,
            _ => merged.push(rows.clone()),
        }
    }
    merged
}
