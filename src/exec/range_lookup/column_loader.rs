//! Reads what missing indexes are built of: columns that fit in memory together with their indexes, from files of
//! `rmq.index_directory` where there are any, and of other columns the extremes of chunks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};

use crate::exec::range_lookup::file_rows::{FileRows, ParquetFiles};
use crate::exec::range_lookup::index_builder::{
    ColumnsRead, IndexBuilder, LoadedChunks, MissingIndex, MissingIndexes, PreparedIndex,
};
use crate::exec::range_lookup::loaded_columns::{ColumnMemory, LoadedColumns, load_columns};
use crate::exec::range_lookup::persisted_columns::{ColumnFile, Contents, PersistedValues};
use crate::exec::range_lookup::scan::{RelationScan, ScanVersion};
use crate::kept::reserved_index::IndexPart;
use rmq_arrow::common::dictionaries::has_few_keys;
use rmq_arrow::index::column_index::ColumnIndex;

/// Columns of at least this many rows are read by several tasks.
const ROWS_OF_TASKS: usize = 1 << 18;

/// What missing indexes are built of.
pub(super) struct Loaded {
    pub(super) in_memory: Vec<LoadedInMemory>,
    pub(super) in_files: Vec<LoadedChunks>,
}

/// Columns in memory, and the indexes that are built of them.
pub(super) struct LoadedInMemory {
    missing: Vec<MissingIndex>,
    columns: LoadedColumns,
    /// Of the columns that may be in files of `rmq.index_directory`.
    persisted: HashMap<String, PersistedValues>,
}

/// The files of a scan, if they are known.
#[derive(Clone, Copy)]
struct Files<'a> {
    scan: &'a RelationScan,
    version: Option<&'a ScanVersion>,
    /// Parquet files with known numbers of rows.
    rows: Option<&'a Arc<FileRows>>,
}

impl IndexBuilder<'_> {
    /// Reads what the missing indexes are built of: columns that fit in memory, together with their indexes, and of
    /// others the extremes of chunks.
    pub(super) async fn load(
        &self,
        missing: BTreeMap<usize, MissingIndexes>,
        scan: &RelationScan,
        version: Option<&ScanVersion>,
    ) -> Result<Loaded> {
        let mut all = missing.values().flat_map(|missing| &missing.indexes);
        let any_in_files = all.any(|m| self.may_be_in_files(&m.index_use, &m.data_type));
        let files = version.and_then(|version| ParquetFiles::of(self.required, scan, version));
        let files = match files {
            // Files whose footers can't be read, such as encrypted ones, are scanned as others are.
            Some(files) => files.count_rows().await.ok().map(Arc::new),
            None => None,
        };
        let whole = Files {
            scan,
            version,
            rows: files.as_ref(),
        };
        let (mut in_memory, mut in_files) = (vec![], vec![]);
        for missing in missing.into_values() {
            let mut indexes = missing.indexes;
            let columns = indexes.iter().map(|missing| {
                let of_parts: usize = missing.parts.iter().map(IndexPart::rows).sum();
                let rows = files.as_ref().map_or(0, |files| files.rows());
                let rows = rows.saturating_sub(of_parts);
                (missing.id.column.as_str(), &missing.data_type, rows)
            });
            if any_in_files && files.is_some() && !self.budget().may_fit(columns) {
                in_files.extend(self.take_in_files(&mut indexes));
            }
            while !indexes.is_empty() {
                let loaded = match &missing.scan {
                    Some(tail) => self.load_tail(&indexes, tail).await,
                    None => self.load_whole(&indexes, whole).await,
                };
                let does_fit = match &loaded {
                    _ if !any_in_files || files.is_none() => true,
                    Ok((columns, _)) => self.budget().fits(index_bytes(&indexes, columns)?),
                    Err(error) => !matches!(error, DataFusionError::ResourcesExhausted(_)),
                };
                let taken = if does_fit {
                    vec![]
                } else {
                    self.take_in_files(&mut indexes)
                };
                if taken.is_empty() {
                    let (columns, persisted) = loaded?;
                    in_memory.push(LoadedInMemory {
                        missing: std::mem::take(&mut indexes),
                        columns,
                        persisted,
                    });
                }
                // The others may fit without these.
                in_files.extend(taken);
            }
        }
        let in_files = match (files, version) {
            (Some(files), Some(version)) if !in_files.is_empty() => {
                self.load_chunks(in_files, &files, scan, version).await?
            }
            _ => vec![],
        };
        Ok(Loaded {
            in_memory,
            in_files,
        })
    }

    /// Reads the rows after the parts of these indexes.
    async fn load_tail(
        &self,
        indexes: &[MissingIndex],
        tail: &RelationScan,
    ) -> Result<(LoadedColumns, HashMap<String, PersistedValues>)> {
        let (columns, memory) = (names(indexes), self.column_memory());
        let label = &self.required.label;
        let loaded = load_columns(label, tail, &columns, &memory, self.context).await?;
        Ok((loaded, HashMap::new()))
    }

    /// Reads the whole columns of these indexes: those that another process has written, and others from the table.
    async fn load_whole(
        &self,
        indexes: &[MissingIndex],
        files: Files<'_>,
    ) -> Result<(LoadedColumns, HashMap<String, PersistedValues>)> {
        let (mut columns, memory) = (names(indexes), self.column_memory());
        let (mut persisted, mut read) = (HashMap::new(), vec![]);
        for missing in indexes {
            let column = missing.id.column.as_str();
            if persisted.contains_key(column) {
                continue;
            }
            let Some(file) = self.values_file(missing, files) else {
                continue;
            };
            let rows = files.rows.map(|files| files.rows());
            let values = file.read_values(rows, &memory, self.options.threads());
            let mut values_file = PersistedValues::default();
            if let Some(values) = values.await? {
                values_file.set_loaded();
                columns.remove(column);
                read.push((column, values));
            } else if let Some(disk) = self
                .cached(&missing.id, files.version, &missing.data_type)
                .writing()
            {
                values_file.disk = disk;
            } else {
                values_file.unwritten = Some(file);
            }
            persisted.insert(column.to_string(), values_file);
        }
        let mut loaded = match files.rows {
            _ if columns.is_empty() => LoadedColumns::new(HashMap::new(), &memory),
            Some(rows) if rows.rows() >= ROWS_OF_TASKS => {
                let tasks = self.partitions;
                rows.load(&columns, &memory, tasks, self.context).await?
            }
            _ => {
                let label = &self.required.label;
                load_columns(label, files.scan, &columns, &memory, self.context).await?
            }
        };
        for (column, values) in read {
            loaded.insert(column, values);
        }
        Ok((loaded, persisted))
    }

    /// The file of the values of a column, if other processes can find it.
    fn values_file(&self, missing: &MissingIndex, files: Files<'_>) -> Option<ColumnFile> {
        let (column, data_type) = (missing.id.column.as_str(), &missing.data_type);
        // The values of several batches may not fit into one array.
        let version = files.version.filter(|_| !has_few_keys(data_type))?;
        let column = (column, data_type);
        ColumnFile::of(
            self.directory(),
            files.scan,
            version,
            column,
            Contents::Values,
        )
    }

    fn column_memory(&self) -> Arc<ColumnMemory> {
        let (label, limit) = (&self.required.label, self.options.index_memory_limit);
        Arc::new(ColumnMemory::new(label, limit, self.context))
    }

    /// The directory in which columns are written for other processes, empty if they are not.
    pub(super) fn directory(&self) -> &str {
        let options = Some(&self.options).filter(|options| options.keep_indexes);
        options.map_or("", |options| &options.index_directory)
    }

    /// Builds the indexes of columns in memory, and has values written that are not in files yet.
    pub(super) async fn build_in_memory(
        &self,
        loaded: LoadedInMemory,
        read: &ColumnsRead,
    ) -> Result<Vec<PreparedIndex>> {
        let LoadedInMemory {
            missing,
            mut columns,
            mut persisted,
        } = loaded;
        let mut unwritten = BTreeMap::new();
        for missing in &missing {
            let column = &missing.id.column;
            let values = persisted.get_mut(column);
            // Of files that have changed since, or may have, nothing is written.
            if let Some(values) = values.filter(|_| read.version.is_some())
                && let Some(file) = values.unwritten.take()
            {
                // As one array they are written, and indexes of both directions borrow it.
                let catalog = &self.required.catalog;
                let array = columns.put_together(column, &missing.data_type, catalog);
                let array = array.await?;
                unwritten.extend(array.map(|array| (column.clone(), (file, array))));
            }
        }
        let (none, mut prepared) = (PersistedValues::default(), vec![]);
        for missing in missing {
            let column = &missing.id.column;
            let (chunks, values) = (columns.chunks(column)?, persisted.get(column));
            let values = values.unwrap_or(&none);
            prepared.push(self.build_missing(missing, chunks, values, read).await?);
        }
        for (column, (file, (values, memory))) in unwritten {
            if let Some(persisted) = persisted.get(&column) {
                let label = self.required.column_label(&column);
                file.spawn_write_values(&label, &persisted.disk, values, memory);
            }
        }
        Ok(prepared)
    }
}

/// The columns of these indexes.
fn names(indexes: &[MissingIndex]) -> BTreeSet<&str> {
    indexes.iter().map(|m| m.id.column.as_str()).collect()
}

/// Estimates the bytes of the CPU's indexes of these columns.
fn index_bytes(missing: &[MissingIndex], columns: &LoadedColumns) -> Result<usize> {
    let indexes = missing.iter().map(|missing| {
        let chunks = columns.chunks(&missing.id.column)?;
        let kind = missing.id.kind;
        Ok(ColumnIndex::estimate_on_cpu(
            &chunks,
            &missing.data_type,
            kind,
        ))
    });
    indexes.sum()
}
