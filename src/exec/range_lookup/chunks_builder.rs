//! Indexes of columns whose rows stay in Parquet files: of the extremes of their chunks.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::Result;

use crate::exec::common::engine_choice::Decision;
use crate::exec::range_lookup::file_column::FileColumn;
use crate::exec::range_lookup::file_rows::FileRows;
use crate::exec::range_lookup::index_builder::{
    Built, ColumnsRead, IndexBuilder, LoadedChunks, MissingIndex, Origin, PreparedIndex,
};
use crate::exec::range_lookup::persisted_columns::{ColumnFile, Contents};
use crate::exec::range_lookup::required::{IndexId, IndexUse};
use crate::exec::range_lookup::scan::{RelationScan, ScanVersion};
use crate::kept::reserved_index::ReservedIndex;
use datafusion_rmq_logical::common::options::EngineChoice;
use rmq_arrow::common::ordered_type::{is_ranked, value_type};
use rmq_arrow::index::chunk_extremes::{Block, ChunkExtremes};
use rmq_arrow::index::column_index::ColumnIndex;
use rmq_arrow::index::devices::Target;
use rmq_arrow::index::key_index::KeyIndex;
use rmq_arrow::index::sort_keys::Chunks;

impl IndexBuilder<'_> {
    /// Reads the extremes of the chunks of columns: those that another process has written, and of others all rows.
    pub(super) async fn load_chunks(
        &self,
        missing: Vec<MissingIndex>,
        rows: &Arc<FileRows>,
        scan: &RelationScan,
        version: &ScanVersion,
    ) -> Result<Vec<LoadedChunks>> {
        let budget = self.budget().bytes();
        let (mut loaded, mut unread) = (vec![], vec![]);
        for missing in missing {
            let id = &missing.id;
            let column = (id.column.as_str(), &value_type(&missing.data_type));
            let contents = Contents::Chunks(id.extreme()?);
            let file = ColumnFile::of(self.directory(), scan, version, column, contents);
            let chunks = match &file {
                Some(file) => {
                    let reserve = self.reserve(id);
                    file.read_chunks(&rows.ends, budget, reserve).await?
                }
                None => None,
            };
            match chunks {
                Some(chunks) => loaded.push((missing, chunks, file, true)),
                None => unread.push((missing, file)),
            }
        }
        if !unread.is_empty() {
            let asked = unread.iter();
            let asked = asked.map(|(missing, _)| rows.asked(&missing.id, &missing.data_type));
            let (asked, blocks) = (asked.collect::<Result<_>>()?, Block::of_column(rows.rows()));
            let answers = rows.answer(asked, blocks, self.partitions, self.context);
            for ((missing, file), answers) in unread.into_iter().zip(answers.await?) {
                let chunks = ChunkExtremes::new(answers, Arc::clone(&rows.ends), budget)?;
                loaded.push((missing, chunks, file, false));
            }
        }
        let loaded = loaded.into_iter();
        let loaded = loaded.map(
            |(missing, (chunks, extremes), file, is_persisted)| LoadedChunks {
                missing,
                rows: Arc::clone(rows),
                chunks,
                extremes,
                file,
                is_persisted,
            },
        );
        Ok(loaded.collect())
    }

    /// Whether ranges of a column can be answered where its rows stay in files.
    pub(super) fn may_be_in_files(&self, index_use: &IndexUse, data_type: &DataType) -> bool {
        let is_forced = self.options.engine == EngineChoice::Cuda;
        !index_use.needs_rows && !is_forced && !is_ranked(data_type)
    }

    /// Takes out the indexes of columns whose rows may stay in files.
    pub(super) fn take_in_files(&self, missing: &mut Vec<MissingIndex>) -> Vec<MissingIndex> {
        let may = |m: &mut MissingIndex| self.may_be_in_files(&m.index_use, &m.data_type);
        let taken = missing.extract_if(.., may);
        // All rows are read. The parts of an older index would keep their memory meanwhile.
        let taken = taken.map(|missing| MissingIndex {
            parts: vec![],
            ..missing
        });
        taken.collect()
    }

    /// Builds the index of the extremes of a column's chunks.
    pub(super) fn build_of_chunks(
        &self,
        loaded: LoadedChunks,
        read: &ColumnsRead,
    ) -> Result<PreparedIndex> {
        let LoadedChunks {
            missing: MissingIndex { id, data_type, .. },
            rows,
            chunks,
            extremes,
            file,
            is_persisted,
        } = loaded;
        let label = self.required.column_label(&id.column);
        let budget = chunks.budget;
        log::info!(
            "{label} is not held in memory: with its index it takes more than is free of the {budget} bytes that \
             rmq.index_memory_limit and the memory pool allow"
        );
        let value_type = value_type(&data_type);
        let extremes = Chunks {
            arrays: extremes,
            owned_elsewhere: false,
        };
        let bytes = chunks.bytes() + KeyIndex::estimate_on_cpu(&extremes, &value_type);
        let memory = self.reserve(&id)(bytes)?;
        let index = ColumnIndex::of_chunks(chunks, &extremes, &value_type, id.extreme()?)?;
        let span = read.span(&id.column, &[]);
        let index = Arc::new(ReservedIndex::new(index, memory, None, span));
        self.cache(&id, &Target::Cpu, &index, read);
        let origin = if is_persisted {
            index.disk.set_loaded();
            Origin::Loaded(read.load_time)
        } else {
            // Of files that have changed since, or may have, nothing is written.
            if let Some(file) = file.filter(|_| read.version.is_some()) {
                file.spawn_write_chunks(&label, Arc::clone(&index), extremes.arrays);
            }
            Origin::Built(Built {
                load_time: read.load_time,
                rows: rows.rows(),
            })
        };
        self.in_files(id, index, &data_type, rows, origin)
    }

    /// An index of the chunks of a column whose rows are in these files.
    pub(super) fn in_files(
        &self,
        id: IndexId,
        index: Arc<ReservedIndex>,
        data_type: &DataType,
        rows: Arc<FileRows>,
        origin: Origin,
    ) -> Result<PreparedIndex> {
        let decision = Decision::of_chunks(rows.rows());
        self.required.record(&id, decision.clone());
        let column = FileColumn {
            asked: rows.asked(&id, data_type)?,
            rows,
            tasks: self.partitions,
        };
        Ok(PreparedIndex {
            files: Some(Arc::new(column)),
            ..PreparedIndex::new(id, index, &decision, origin)
        })
    }
}
