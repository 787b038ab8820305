//! The output stream of a partition that joins its rows with slices of the build side.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use futures::{StreamExt, TryStreamExt, stream};

use crate::exec::range_join::probe::build_state::PreparedBuild;
use crate::exec::range_join::probe::join_prepared::join_prepared;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::probe_input::{BatchStream, ReadInput, next_with_rows};
use crate::exec::range_join::probe::slices::read_rows::{ROWS_AHEAD, ReadRows};
use crate::exec::range_join::probe::slices::sliced_build::SlicedBuild;
use crate::exec::range_join::probe::slicing::{part_of, rows_within};
use crate::exec::range_join::spill::retaining_pool::is_out_of_memory;
use rmq_arrow::common::array_bytes::arrays_bytes;

/// Joins a partition of the probe side.
pub(crate) fn join_slices(
    partition: Arc<ProbePartition>,
    build: Arc<SlicedBuild>,
    input: ReadInput,
) -> BatchStream {
    let memory = input
        .memory
        .unwrap_or_else(|| MemoryConsumer::new("RangeJoinProbe").register(&partition.pool));
    let rows = ProbeRows {
        pending: input.batches,
        rest: input.rest,
        memory,
        most: usize::MAX,
        taken: 1.0,
        build_rows: ReadRows::new(Arc::clone(&build)),
    };
    let joined = stream::try_unfold(Some(rows), move |rows| {
        let (partition, build) = (Arc::clone(&partition), Arc::clone(&build));
        async move {
            let Some(mut rows) = rows else {
                return Ok(None);
            };
            let next = match rows.next(&build).await? {
                Next::End => {
                    build.check_unchanged().await?;
                    None
                }
                Next::Slice(chunk, slice) => {
                    let rest = stream::empty().boxed();
                    let joined = join_prepared(partition, &slice, chunk, rest).await?;
                    Some((joined, Some(rows)))
                }
                Next::Rest => {
                    rows.build_rows = ReadRows::new(Arc::clone(&build));
                    let whole = build.whole().await?;
                    let (batches, rest) = rows.into_rest().into_parts();
                    let joined = join_prepared(partition, &whole, batches, rest).await?;
                    Some((joined, None))
                }
            };
            Ok::<_, DataFusionError>(next)
        }
    });
    joined.try_flatten().boxed()
}

/// A slice is expected to take at least this part of what is estimated.
const LEAST_TAKEN: f64 = 0.2;

/// What is joined next.
enum Next {
    /// These rows, with the slice that they reach.
    Slice(Vec<RecordBatch>, PreparedBuild),
    /// All that are left, with the whole build side.
    Rest,
    End,
}

/// The rows of a partition that have not been joined.
struct ProbeRows {
    /// Those that have been read.
    pending: Vec<RecordBatch>,
    /// `None` after its end.
    rest: Option<BatchStream>,
    /// Registers the rows that have been read, and those that are being joined.
    memory: MemoryReservation,
    /// The most rows that the next slice serves.
    most: usize,
    /// What the last slice has taken of the memory that was expected.
    taken: f64,
    /// The rows of the build side that have been read for slices.
    build_rows: ReadRows,
}

impl ProbeRows {
    async fn next(&mut self, build: &SlicedBuild) -> Result<Next> {
        loop {
            self.read(build).await?;
            if self.pending.is_empty() {
                return Ok(Next::End);
            }
            if build.is_whole() {
                return Ok(Next::Rest);
            }
            let mut rows = self.rows().min(self.most);
            let (chunk, reach, part) = loop {
                let chunk = rows_within(&self.pending, 0..rows);
                let compares = self.build_rows.compares_equality_keys;
                let reach = build.slicing.reach(chunk.clone(), compares);
                let Some(reach) = reach.await else {
                    return Ok(Next::Rest);
                };
                let part = build.slicing.part_of_memory(&reach);
                match part.map(|part| part * self.taken) {
                    Some(part) if part <= 1.0 => break (chunk, reach, part),
                    // Fewer rows, as many as fit if they come at even distances.
                    Some(part) if rows > 1 => {
                        rows = part_of(rows, (0.9 / part).clamp(0.1, 0.9)).max(1);
                    }
                    _ => return Ok(Next::Rest),
                }
            };
            let pending = &self.pending;
            let is_read = self
                .build_rows
                .read(&reach, rows, |rows| rows_within(pending, 0..rows));
            let plan = if is_read.await? {
                self.build_rows.reached(reach)?
            } else {
                build.scan(reach)?
            };
            match build.slice(plan).await {
                Ok((slice, bytes)) => {
                    self.pending = rows_within(&self.pending, rows..usize::MAX);
                    let took = build.slicing.part_of_bytes(bytes);
                    if part > 0.0 {
                        self.taken = (self.taken * took / part).clamp(LEAST_TAKEN, 1.0);
                    }
                    self.most = part_of(rows, (0.9 / took).clamp(0.5, 2.0)).saturating_add(1);
                    return Ok(Next::Slice(chunk, slice));
                }
                Err(error) if is_out_of_memory(&error) && rows > 1 => {
                    (self.most, self.taken) = (rows / 2, 1.0);
                }
                Err(error) if is_out_of_memory(&error) => return Ok(Next::Rest),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads as many rows as the next slice may serve and those for which it may read, if memory suffices for them, and
    /// at least one batch.
    async fn read(&mut self, build: &SlicedBuild) -> Result<()> {
        let bytes_of = |batch: &RecordBatch| arrays_bytes(batch.columns());
        let mut bytes = self.pending.iter().map(bytes_of).sum();
        // The last rows have been joined.
        self.memory.shrink(self.memory.size().saturating_sub(bytes));
        let most = self.most.saturating_mul(ROWS_AHEAD);
        let most = most.min(build.slicing.ahead_rows);
        let mut rows = self.rows();
        while rows == 0 || rows < most && bytes < build.slicing.ahead_bytes {
            let Some(rest) = &mut self.rest else {
                break;
            };
            let Some(batch) = next_with_rows(rest).await? else {
                self.rest = None;
                break;
            };
            rows += batch.num_rows();
            bytes += bytes_of(&batch);
            let has_room = self.memory.try_grow(bytes_of(&batch)).is_ok();
            self.pending.push(batch);
            if !has_room {
                break;
            }
        }
        Ok(())
    }

    fn rows(&self) -> usize {
        self.pending.iter().map(RecordBatch::num_rows).sum()
    }

    fn into_rest(self) -> ReadInput {
        ReadInput {
            batches: self.pending,
            rest: self.rest,
            memory: Some(self.memory),
        }
    }
}
