//! Columns of Parquet files in files of our own, where the next process finds them (`rmq.index_directory`).
//!
//! ```text
//!   of a column that fits in memory   the values
//!   of a column that does not         the number of rows up to the end of each Parquet file │ the row of the extreme in
//!                                     each chunk │ the extremes
//! ```
//!
//! The values serve both directions, as indexes are built of them anew. The extremes of chunks in each direction have a
//! file of their own. Files are written after the query has its indexes, by threads that nothing waits for.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;

use crate::exec::common::blocking::blocking;
use crate::exec::common::plan_identity::add_expression;
use crate::exec::common::plan_key::ScanPlan;
use crate::exec::range_lookup::loaded_columns::ColumnMemory;
use crate::exec::range_lookup::scan::{PlannedScan, RelationScan, ScanVersion};
use crate::kept::identity::Identity;
use crate::kept::index_file::IndexFile;
use crate::kept::on_disk::OnDisk;
use crate::kept::reserved_index::{IndexMemory, ReservedIndex};
use rmq_arrow::common::workers::Workers;
use rmq_arrow::index::chunk_extremes::{CHUNK_ROWS, ChunkExtremes};
use rmq_engine::Extreme;

/// A file of a column, which may exist or not.
#[derive(Debug, Clone)]
pub(super) struct ColumnFile {
    file: IndexFile,
    directory: String,
    /// The type of what it has.
    data_type: DataType,
}

/// Whether the values of a column are in a file, which other processes find.
#[derive(Debug, Default)]
pub(super) struct PersistedValues {
    /// What the indexes of the column tell of it.
    pub(super) disk: Arc<OnDisk>,
    /// Whether they were read from it.
    pub(super) is_loaded: bool,
    /// The file that is to be written.
    pub(super) unwritten: Option<ColumnFile>,
}

/// What a file has of a column.
#[derive(Debug, Clone, Copy)]
pub(super) enum Contents {
    /// The extremes of its chunks.
    Chunks(Extreme),
    Values,
}

impl PersistedValues {
    /// They were read from the file.
    pub(super) fn set_loaded(&mut self) {
        self.disk.set_loaded();
        self.is_loaded = true;
    }
}

impl ColumnFile {
    /// The file of a column in this version, and of values of this type. `None` if another process can't tell that its
    /// column has the same values, and without a directory.
    pub(super) fn of(
        directory: &str,
        scan: &RelationScan,
        version: &ScanVersion,
        (column, data_type): (&str, &DataType),
        contents: Contents,
    ) -> Option<Self> {
        let RelationScan::Plan(PlannedScan { plan, .. }) = scan else {
            return None;
        };
        if directory.is_empty() {
            return None;
        }
        let scanned = ScanPlan::of_any_files(plan).filter(|scanned| scanned.is_in_order)?;
        let number = plan.schema().index_of(column).ok()?;
        let expr: PhysicalExprRef = Arc::new(Column::new(column, number));
        let (mut identity, mut of_version) = (Identity::default(), Identity::default());
        // Not what a build side begins with.
        match contents {
            Contents::Chunks(extreme) => {
                // Of equal values, the row is that of the leftmost.
                identity.add(b"extremes of chunks, leftmost");
                identity.add_number(CHUNK_ROWS as u64);
                identity.add_debug(&extreme);
            }
            Contents::Values => identity.add(b"values of a column"),
        }
        identity.add_debug(data_type);
        scanned.key.add_to(&mut identity, &mut of_version)?;
        add_expression(&scanned.over_scan(&expr)?, &mut identity)?;
        let version = version.of_column(column);
        version.add_to(&mut identity, &mut of_version)?;
        Some(Self {
            file: IndexFile::new(Path::new(directory), identity, of_version),
            directory: directory.to_string(),
            data_type: data_type.clone(),
        })
    }

    /// Reads the extremes of a column in Parquet files with these numbers of rows; `None` if there are none, or not as
    /// they were written. `reserve` is asked for memory to read them.
    ///
    /// # Errors
    /// If the query is cancelled.
    pub(super) async fn read_chunks(
        &self,
        file_ends: &Arc<[usize]>,
        budget: usize,
        reserve: impl FnOnce(usize) -> Result<IndexMemory> + Send + 'static,
    ) -> Result<Option<(ChunkExtremes, Vec<ArrayRef>)>> {
        let (this, file_ends) = (self.clone(), Arc::clone(file_ends));
        blocking(move |waiting| {
            let Some(file) = this.file.open() else {
                return Ok(None);
            };
            // Where there is no memory for it, the column is read in small blocks.
            let Ok(_memory) = reserve(file.bytes()) else {
                return Ok(None);
            };
            let check = || waiting.check();
            file.read(Workers::new(1, &check), |arrays| {
                ChunkExtremes::from_arrays(&arrays, file_ends, &this.data_type, budget)
            })
        })
        .await
    }

    /// Writes these extremes, which `index` is built of, on a thread of its own. A failure is logged.
    pub(super) fn spawn_write_chunks(
        self,
        label: &str,
        index: Arc<ReservedIndex>,
        extremes: Vec<ArrayRef>,
    ) {
        let disk = Arc::clone(&index.disk);
        let what = format!("the index of {label}");
        disk.spawn(what, self.directory, move || {
            let Some(chunks) = index.index.chunks() else {
                return Ok(());
            };
            let arrays = chunks.to_arrays(&extremes, &self.data_type)?;
            self.file.write(chunks.rows() as u64, &arrays)
        });
    }

    /// Reads the values of a column, on this many threads, into `memory`; `None` if there are none, or not as they were
    /// written, or too many for the memory. `rows` is the number of rows, if it is known.
    ///
    /// # Errors
    /// If the query is cancelled.
    pub(super) async fn read_values(
        &self,
        rows: Option<usize>,
        memory: &Arc<ColumnMemory>,
        threads: usize,
    ) -> Result<Option<ArrayRef>> {
        let (this, memory) = (self.clone(), Arc::clone(memory));
        blocking(move |waiting| {
            let Some(file) = this.file.open() else {
                return Ok(None);
            };
            if memory.add_bytes(file.bytes()).is_err() {
                return Ok(None);
            }
            let check = || waiting.check();
            let workers = Workers::new(threads, &check);
            let values = file.read(workers, |arrays| this.values(arrays, rows, file.rows()))?;
            if values.is_none() {
                memory.remove_bytes(file.bytes());
            }
            Ok(values)
        })
        .await
    }

    /// The values of these arrays, of a file of so many rows.
    fn values(
        &self,
        arrays: Vec<ArrayRef>,
        expected: Option<usize>,
        rows: u64,
    ) -> Result<ArrayRef> {
        let Ok([values]) = <[ArrayRef; 1]>::try_from(arrays) else {
            return exec_err!("it has not one array");
        };
        let len = values.len();
        if values.data_type() != &self.data_type || len as u64 != rows {
            return exec_err!("it has other values");
        }
        match expected {
            Some(expected) if len != expected => {
                exec_err!("it has {len} rows, where the table has {expected}")
            }
            _ => Ok(values),
        }
    }

    /// Writes these values, whose memory is registered in `memory`, on a thread of its own. A failure is logged.
    pub(super) fn spawn_write_values(
        self,
        label: &str,
        disk: &Arc<OnDisk>,
        values: ArrayRef,
        memory: Arc<ColumnMemory>,
    ) {
        let what = format!("the column {label}");
        disk.spawn(what, self.directory, move || {
            let written = self.file.write(values.len() as u64, &[values]);
            drop(memory);
            written
        });
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int32Array, Int64Array};
    use datafusion::execution::TaskContext;

    use super::*;
    use datafusion_rmq_logical::common::options::ByteSize;

    /// Files whose checksums are right, with something else than the values of the column.
    #[tokio::test]
    async fn other_values_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let file = ColumnFile {
            file: IndexFile::new(directory.path(), Identity::default(), Identity::default()),
            directory: String::new(),
            data_type: DataType::Int64,
        };
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..9));
        let others: ArrayRef = Arc::new(Int32Array::from_iter_values(0..9));
        let limit = 1 << 20;
        for (rows, arrays, expected, limit, is_read) in [
            (9, vec![&numbers], Some(9), limit, true),
            (9, vec![&numbers], None, limit, true),
            (9, vec![&numbers], Some(8), limit, false),
            (8, vec![&numbers], None, limit, false),
            (9, vec![&others], Some(9), limit, false),
            (9, vec![&numbers, &numbers], Some(9), limit, false),
            (0, vec![], Some(0), limit, false),
            (9, vec![&numbers], Some(9), 70, false),
        ] {
            let arrays: Vec<ArrayRef> = arrays.into_iter().map(Arc::clone).collect();
            file.file.write(rows, &arrays).unwrap();
            let context = TaskContext::default();
            let memory = Arc::new(ColumnMemory::new("t", ByteSize(limit), &context));
            let read = file.read_values(expected, &memory, 2).await.unwrap();
            let case = format!("{rows} rows, {arrays:?}, {expected:?}, {limit}");
            assert_eq!(read.is_some(), is_read, "{case}");
            // What is not used takes no memory.
            assert_eq!(memory.add_bytes(limit).is_err(), is_read, "{case}");
        }
    }
}
