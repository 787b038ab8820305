//! The extremes of a column's chunks in a file, where the next process finds them (`rmq.index_directory`).
//!
//! ```text
//!   the number of rows up to the end of each Parquet file │ the row of the extreme in each chunk │ the extremes
//! ```
//!
//! One file has the chunks of one column in one direction. It is written after the query has its index, by a thread of
//! its own that nothing waits for.

use std::path::Path;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;

use crate::common::identity::Identity;
use crate::common::workers::Workers;
use crate::exec::common::blocking::blocking;
use crate::exec::common::plan_identity::add_expression;
use crate::exec::common::plan_key::ScanPlan;
use crate::exec::range_lookup::required::IndexId;
use crate::exec::range_lookup::scan::{RelationScan, ScanVersion};
use crate::index::chunk_extremes::{CHUNK_ROWS, ChunkExtremes};
use crate::index::index_file::IndexFile;
use crate::index::reserved_index::{IndexMemory, ReservedIndex};

/// The file of the extremes of a column's chunks, which may exist or not.
#[derive(Debug, Clone)]
pub(super) struct ChunksFile {
    file: IndexFile,
    directory: String,
    data_type: DataType,
}

impl ChunksFile {
    /// The file of an index of a column of this type, in this version. `None` if another process can't tell that its
    /// column has the same values, and without a directory.
    pub(super) fn of(
        directory: &str,
        scan: &RelationScan,
        version: &ScanVersion,
        id: &IndexId,
        data_type: DataType,
    ) -> Option<Self> {
        let RelationScan::Plan(plan) = scan else {
            return None;
        };
        if directory.is_empty() {
            return None;
        }
        let scanned = ScanPlan::of_any_files(plan)?;
        let number = plan.schema().index_of(&id.column).ok()?;
        let column: PhysicalExprRef = Arc::new(Column::new(&id.column, number));
        let (mut identity, mut of_version) = (Identity::default(), Identity::default());
        // Not what a build side begins with. Of equal values, the row is that of the leftmost.
        identity.add(b"extremes of chunks, leftmost");
        identity.add_number(CHUNK_ROWS as u64);
        identity.add_debug(&id.extreme);
        identity.add_debug(&data_type);
        scanned.key.add_to(&mut identity, &mut of_version)?;
        add_expression(&scanned.over_scan(&column)?, &mut identity)?;
        let version = version.of_column(&id.column);
        let (store, path) = version.add_to(&mut of_version)?;
        identity.add_debug(&(store, path.as_ref()));
        // Another version of DataFusion may read other values.
        of_version.add(datafusion::DATAFUSION_VERSION.as_bytes());
        Some(Self {
            file: IndexFile::new(Path::new(directory), identity, of_version),
            directory: directory.to_string(),
            data_type,
        })
    }

    /// Reads the extremes of a column in Parquet files with these numbers of rows; `None` if there are none, or not as
    /// they were written. `reserve` is asked for memory to read them.
    ///
    /// # Errors
    /// If the query is cancelled.
    pub(super) async fn read(
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
            let Some(arrays) = file.read(Workers::new(1, &check))? else {
                return Ok(None);
            };
            match ChunkExtremes::from_arrays(&arrays, file_ends, &this.data_type, budget) {
                Ok(chunks) => Ok(Some(chunks)),
                Err(error) => {
                    file.warn_ignored(&error);
                    Ok(None)
                }
            }
        })
        .await
    }

    /// Writes these extremes, which `index` is built of, on a thread of its own. A failure is logged.
    pub(super) fn spawn_write(
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
}
