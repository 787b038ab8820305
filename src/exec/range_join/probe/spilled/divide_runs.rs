//! Divides the rows of a build side on disk by hashes of the equality keys, so that each part can be sorted and indexed
//! as a whole, as a grace hash join does.
//!
//! A buffer of probe rows reads the runs whose range keys its bounds touch. In time order these are few. In no order
//! they are all, and the work would grow with the product of both sides. So a partition whose buffer is full, and
//! touches most of at least three runs, has the build side divided, once for all partitions.
//!
//! All rows are read once and written once; those of a part that is still too large once more, by the next digits of
//! the hashes. The digits are the path to a part (`Routing`), and probe rows, which are divided after that, go to their
//! part at once. A part whose rows have one hash stays one run, which is built piece by piece: only these answers need
//! a merge. Rows keep their order. Files are open for all parts, so these are at most 256, and 512 over all partitions.
//!
//! Joins that mark build rows must mark those of the same runs in all partitions, so the first partition decides; in
//! others each decides at each buffer. Endless probe sides are never divided, nor are those whose keys have other types
//! than the build side's. Accumulators that read all rows of a window, and nearest rows, can't be merged: a build side
//! with them is spilled only if it can be divided, always is, and each part must be built as a whole.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use futures::TryStreamExt;

use crate::exec::common::blocking::blocking;
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::probe::spilled::run_set::RunSet;
use crate::exec::range_join::spill::key_extent::{KeyExtent, KeyOrder};
use crate::exec::range_join::spill::partition_writer::{BatchRow, PartitionWriter};
use crate::exec::range_join::spill::reader::{SpillFiles, SpilledRows};
use crate::exec::range_join::spill::routing::{Routing, hash_keys, next_digit, valid_keys};
use crate::exec::range_join::spill::row_position::RowPosition;
use crate::exec::range_join::spill::run::BuildRun;

/// A part whose hashes have no more digits is not divided again.
const MAX_DIVISOR: u64 = 1 << 48;

/// What dividing needs.
pub(crate) struct DivideRuns {
    pub(crate) files: Arc<SpillFiles>,
    pub(crate) columns: BuildColumns,
    pub(crate) key_order: Arc<KeyOrder>,
    pub(crate) memory: MemoryReservation,
    /// The memory for building a run.
    pub(crate) run_bytes: usize,
    /// The most runs that are made.
    pub(crate) max_runs: usize,
}

/// Rows that are to be divided.
struct Undivided {
    files: Vec<SpilledRows>,
    /// The product of the bases of the digits that these rows have in common.
    divisor: u64,
}

/// Rows with a digit in common.
#[derive(Default)]
struct HashPart {
    keys: Option<KeyExtent>,
    /// The hash of the last row.
    hash: Option<u64>,
    has_other_hashes: bool,
}

impl DivideRuns {
    /// Divides the rows of these runs, which have this size. Returns the new runs, and where rows are.
    pub(crate) async fn run(
        self,
        runs: &RunSet,
        size: DataSize,
    ) -> Result<(Vec<BuildRun>, Routing)> {
        // Of runs whose rows have positions, these come first that are first in the input.
        let mut in_order: Vec<&BuildRun> = runs.runs().iter().collect();
        in_order.sort_by_key(|run| run.first_row);
        let all = Undivided {
            files: in_order.iter().map(|run| run.rows.clone()).collect(),
            divisor: 1,
        };
        let mut made = vec![];
        // Runs that are made, and parts that are to be divided.
        let mut parts = 1;
        let base = self.base(size, self.max_runs);
        let mut routing = self.divide(all, base, &mut made, &mut parts).await?;
        route_rest(&mut routing, made.len());
        Ok((made, routing))
    }

    /// In how many parts rows of this size are divided, at most `most`.
    fn base(&self, size: DataSize, most: usize) -> usize {
        // Parts are not of one size.
        let needed = (size.build_bytes() / 4 * 5).div_ceil(self.run_bytes);
        needed.clamp(2, most.max(2))
    }

    /// Divides rows in `base` parts, and these again where they are too large.
    async fn divide(
        &self,
        rows: Undivided,
        base: usize,
        made: &mut Vec<BuildRun>,
        parts: &mut usize,
    ) -> Result<Routing> {
        let divisor = rows.divisor.saturating_mul(base as u64);
        *parts += base - 1;
        let divided = self.write(rows, base).await?;
        let mut routing = Vec::with_capacity(base);
        for (part, written) in divided {
            let Some((rows, size)) = written else {
                *parts -= 1;
                routing.push(Routing::Partition(NO_RUN));
                continue;
            };
            let left = self.max_runs.saturating_sub(*parts) + 1;
            let is_large = size.build_bytes() > self.run_bytes;
            if is_large && part.has_other_hashes && left >= 2 && divisor < MAX_DIVISOR {
                let base = self.base(size, left);
                let files = vec![rows];
                let rows = Undivided { files, divisor };
                routing.push(Box::pin(self.divide(rows, base, made, parts)).await?);
                continue;
            }
            routing.push(Routing::Partition(made.len()));
            made.push(BuildRun {
                rows,
                first_row: RowPosition::default(),
                keys: part.keys,
            });
        }
        Ok(Routing::Divided(routing))
    }

    /// Writes rows to a file for each value of their next digit.
    async fn write(
        &self,
        rows: Undivided,
        base: usize,
    ) -> Result<Vec<(HashPart, Option<(SpilledRows, DataSize)>)>> {
        let mut writer = Writer {
            files: PartitionWriter::new(Arc::clone(&self.files), base),
            parts: (0..base).map(|_| HashPart::default()).collect(),
            columns: self.columns.clone(),
            key_order: Arc::clone(&self.key_order),
            divisor: rows.divisor,
        };
        let (mut batches, mut bytes) = (vec![], 0);
        for file in rows.files {
            let mut stream = file.read(true)?;
            while let Some(batch) = stream.try_next().await? {
                let batch_bytes = DataSize::of_batch(&batch).bytes;
                // The rows are in memory twice while they are written.
                let is_full = bytes + batch_bytes > self.run_bytes / 4;
                if !batches.is_empty()
                    && (is_full || self.memory.try_grow(2 * batch_bytes).is_err())
                {
                    writer = writer.write(std::mem::take(&mut batches)).await?;
                    self.memory.free();
                    bytes = 0;
                }
                bytes += batch_bytes;
                let missing = (2 * bytes).saturating_sub(self.memory.size());
                // A single batch is in memory already.
                self.memory.try_grow(missing).ok();
                batches.push(batch);
            }
        }
        let writer = writer.write(batches).await?;
        self.memory.free();
        Ok(writer
            .parts
            .into_iter()
            .zip(writer.files.finish()?)
            .collect())
    }
}

/// The run of a part without rows, until the number of runs is known.
const NO_RUN: usize = usize::MAX;

/// Replaces the number of parts without rows by one that no run has.
fn route_rest(routing: &mut Routing, runs: usize) {
    match routing {
        Routing::Partition(run) => *run = (*run).min(runs),
        Routing::Divided(parts) => parts.iter_mut().for_each(|part| route_rest(part, runs)),
    }
}

/// Rows that are being divided.
struct Writer {
    files: PartitionWriter,
    parts: Vec<HashPart>,
    columns: BuildColumns,
    key_order: Arc<KeyOrder>,
    divisor: u64,
}

impl Writer {
    /// Writes these rows.
    async fn write(mut self, batches: Vec<RecordBatch>) -> Result<Self> {
        blocking(move |waiting| {
            let mut rows: Vec<Vec<BatchRow>> = vec![vec![]; self.parts.len()];
            for (i, batch) in batches.iter().enumerate() {
                waiting.check()?;
                self.add(batch, i, &mut rows)?;
            }
            let (columns, parts) = (&self.columns, &mut self.parts);
            let add_keys = |part: usize, batch: &RecordBatch| {
                let keys = self.key_order.extent(columns.range_key(batch.columns()))?;
                parts[part].keys = KeyExtent::union(parts[part].keys.take(), keys);
                Ok(())
            };
            let check = || waiting.check();
            self.files.append_rows(&batches, &rows, &check, add_keys)?;
            Ok(self)
        })
        .await
    }

    /// Adds the rows of a batch to those of their parts.
    fn add(&mut self, batch: &RecordBatch, index: usize, rows: &mut [Vec<BatchRow>]) -> Result<()> {
        let keys = self.columns.equality_keys(batch.columns());
        // Rows that match nothing are returned only by whether they have matched.
        let valid = valid_keys(keys).filter(|_| !self.columns.marks_rows);
        for (row, hash) in hash_keys(keys, batch.num_rows())?.into_iter().enumerate() {
            if valid.as_ref().is_some_and(|valid| valid.is_null(row)) {
                continue;
            }
            let part = next_digit(&mut (hash / self.divisor), rows.len());
            let HashPart {
                hash: last,
                has_other_hashes,
                ..
            } = &mut self.parts[part];
            *has_other_hashes |= last.replace(hash).is_some_and(|last| last != hash);
            rows[part].push((index, row));
        }
        Ok(())
    }
}
