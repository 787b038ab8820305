//! The permutation that sorts the rows of a build side, and columns permuted by it.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use arrow::buffer::NullBuffer;
use datafusion::common::Result;

use crate::common::errors::engine_error;
use crate::common::workers::{STEP, Workers};
use crate::sorted::group_ids::GroupIds;
use crate::sorted::id_table::{NO_GROUP, number};
use rmq_engine::cpu::{HugePageBuf, SharedSlots, SlotValue};

/// The position of a row that is left out.
const LEFT_OUT: u32 = NO_GROUP;

/// A map from rows, in input order, to positions, in sorted order, and back. Rows may be left out.
#[derive(Debug)]
pub(crate) struct RowPermutation {
    /// The position of each row; `None` for the identity.
    positions: Option<HugePageBuf<u32>>,
    /// Number of positions: of the rows that are not left out.
    len: usize,
    /// The row at each position, computed on demand.
    order: OnceLock<Arc<HugePageBuf<u32>>>,
}

/// Consecutive rows whose groups were numbered apart from those of other rows.
pub(crate) struct GroupedRows {
    pub(crate) ids: GroupIds,
    /// The group of each id.
    pub(crate) groups: Vec<u32>,
}

impl RowPermutation {
    fn new(positions: Option<HugePageBuf<u32>>, len: usize) -> Self {
        Self {
            positions,
            len,
            order: OnceLock::new(),
        }
    }

    /// The identity of `len` rows.
    pub(crate) fn identity(len: usize) -> Self {
        Self::new(None, len)
    }

    /// Keeps the order of the valid rows and leaves out the others.
    ///
    /// # Errors
    /// If the memory is not available.
    pub(crate) fn from_valid(nulls: &[NullBuffer]) -> Result<Self> {
        let rows = nulls.iter().map(NullBuffer::len).sum();
        let mut positions = HugePageBuf::zeroed(rows).map_err(engine_error)?;
        let mut len = 0;
        for (position, valid) in positions.iter_mut().zip(nulls.iter().flatten()) {
            *position = if valid { number(len) } else { LEFT_OUT };
            len += usize::from(valid);
        }
        Ok(Self::new(Some(positions), len))
    }

    /// Sorts rows by group, stably; rows without a group are left out. Also returns the first position of each group, and the end of the last.
    /// `parts` are all rows in order.
    ///
    /// # Errors
    /// If the memory is not available or the query is cancelled.
    pub(crate) fn by_group(
        parts: Vec<GroupedRows>,
        groups: usize,
        workers: Workers,
    ) -> Result<(Self, Vec<usize>)> {
        let counts = workers.map(parts.iter().collect(), |part: &GroupedRows| {
            Ok(part.ids.counts(part.groups.len()))
        })?;
        // Rows are in order if they are in each part, by ids that ascend as the groups do, and from part to part.
        let numbered = parts.iter().flat_map(|part| &part.groups);
        let ordered = counts.iter().all(|(_, ordered)| *ordered) && numbered.is_sorted();
        let mut starts = vec![0; groups + 1];
        let mut counts: Vec<Vec<u32>> = counts.into_iter().map(|(counts, _)| counts).collect();
        for (part, counts) in parts.iter().zip(&counts) {
            for (group, count) in part.groups.iter().zip(counts) {
                starts[*group as usize + 1] += *count as usize;
            }
        }
        for group in 0..groups {
            starts[group + 1] += starts[group];
        }
        if ordered {
            return Ok((Self::identity(starts[groups]), starts));
        }
        // The rows of a group are in the order of the parts: from counts to first positions.
        let mut next: Vec<u32> = starts.iter().map(|start| number(*start)).collect();
        for (part, counts) in parts.iter().zip(&mut counts) {
            for (group, count) in part.groups.iter().zip(counts) {
                let next = &mut next[*group as usize];
                let first = *next;
                *next += *count;
                *count = first;
            }
        }
        let rows = parts.iter().map(|part| part.ids.len()).sum();
        let mut positions = HugePageBuf::zeroed(rows).map_err(engine_error)?;
        let mut rest = &mut positions[..];
        let parts = parts.into_iter().zip(counts).map(|(part, next)| {
            let (here, after) = std::mem::take(&mut rest).split_at_mut(part.ids.len());
            rest = after;
            (part.ids, next, here)
        });
        workers.map(parts.collect(), |(ids, mut next, positions)| {
            ids.write_positions(&mut next, positions);
            Ok(())
        })?;
        Ok((Self::new(Some(positions), starts[groups]), starts))
    }

    /// Composes with a permutation of the positions, which is applied second.
    ///
    /// # Errors
    /// If the query is cancelled.
    pub(crate) fn then(self, second: HugePageBuf<u32>, workers: Workers) -> Result<Self> {
        let Some(mut positions) = self.positions else {
            return Ok(Self::new(Some(second), self.len));
        };
        let steps = positions.chunks_mut(4 * STEP).collect();
        workers.map(steps, |step: &mut [u32]| {
            for position in step {
                if let Some(next) = second.get(*position as usize) {
                    *position = *next;
                }
            }
            Ok(())
        })?;
        Ok(Self::new(Some(positions), self.len))
    }

    /// The permutation with these rows at the positions; other rows of `rows` are left out.
    ///
    /// # Errors
    /// If the memory is not available.
    pub(crate) fn from_order(order: &[u32], rows: usize) -> Result<Self> {
        let mut positions = HugePageBuf::zeroed(rows).map_err(engine_error)?;
        positions.fill(LEFT_OUT);
        for (position, row) in order.iter().enumerate() {
            positions[*row as usize] = number(position);
        }
        Ok(Self::new(Some(positions), order.len()))
    }

    /// Number of positions: of the rows that are not left out.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether this is the identity.
    pub(crate) fn is_identity(&self) -> bool {
        self.positions.is_none()
    }

    /// Bytes of the maps that exist.
    pub(crate) fn bytes(&self) -> usize {
        let order = self.order.get().map_or(0, |order| order.bytes());
        self.positions.as_ref().map_or(0, HugePageBuf::bytes) + order
    }

    /// Bytes that remain allocated when this is dropped, because others share the order.
    pub(crate) fn shared_order_bytes(&self) -> usize {
        let shared = self.order.get().filter(|o| Arc::strong_count(o) > 1);
        shared.map_or(0, |order| order.bytes())
    }

    /// The positions of `rows` rows from `first` on; `None` for a row that is left out.
    pub(crate) fn of_rows(&self, first: usize, rows: usize) -> impl Iterator<Item = Option<usize>> {
        (first..first + rows).map(|row| match &self.positions {
            None => Some(row),
            Some(positions) => (positions[row] != LEFT_OUT).then_some(positions[row] as usize),
        })
    }

    /// Bytes that the first call of [`Self::order`] allocates; 0 after it.
    pub(crate) fn order_bytes(&self) -> usize {
        match (&self.positions, self.order.get()) {
            (Some(_), None) => self.len * size_of::<u32>(),
            _ => 0,
        }
    }

    /// The row at each position; `None` for the identity.
    ///
    /// # Errors
    /// If the memory is not available or the query is cancelled.
    pub(crate) fn order(&self, workers: Workers) -> Result<Option<&Arc<HugePageBuf<u32>>>> {
        let Some(positions) = &self.positions else {
            return Ok(None);
        };
        if self.order.get().is_none() {
            let mut order = HugePageBuf::zeroed(self.len).map_err(engine_error)?;
            let slots = SharedSlots::new(&mut order);
            let steps = positions.chunks(4 * STEP).enumerate().collect();
            workers.map(steps, |(step, positions): (usize, &[u32])| {
                for (row, position) in (step * 4 * STEP..).zip(positions) {
                    slots.store(*position as usize, number(row));
                }
                Ok(())
            })?;
            self.order.get_or_init(|| Arc::new(order));
        }
        Ok(self.order.get())
    }

    /// Permutes a column: returns the values of all rows, which are in `chunks`, at their positions.
    ///
    /// # Errors
    /// If the memory is not available or the query is cancelled.
    pub(crate) fn permute<T: SlotValue + Send + Sync>(
        &self,
        chunks: &[&[T]],
        workers: Workers,
    ) -> Result<HugePageBuf<T>> {
        let mut permuted = HugePageBuf::zeroed(self.len).map_err(engine_error)?;
        let Some(positions) = &self.positions else {
            let mut rest = &mut permuted[..];
            let copies = steps(chunks.iter().map(|chunk| chunk.len()));
            let copies = copies.into_iter().map(|(chunk, rows, _)| {
                let (here, after) = std::mem::take(&mut rest).split_at_mut(rows.len());
                rest = after;
                (&chunks[chunk][rows], here)
            });
            workers.map(copies.collect(), |(values, here): (&[T], &mut [T])| {
                here.copy_from_slice(values);
                Ok(())
            })?;
            return Ok(permuted);
        };
        let slots = SharedSlots::new(&mut permuted);
        let moves = steps(chunks.iter().map(|chunk| chunk.len()));
        workers.map(moves, |(chunk, rows, first)| {
            let positions = &positions[first..first + rows.len()];
            slots.scatter(&chunks[chunk][rows], positions);
            Ok(())
        })?;
        Ok(permuted)
    }
}

/// Divides chunks of these lengths into steps that threads take: the chunk, rows within it, and the first of them in all.
pub(crate) fn steps(chunks: impl IntoIterator<Item = usize>) -> Vec<(usize, Range<usize>, usize)> {
    let mut first = 0;
    let mut steps = vec![];
    for (chunk, len) in chunks.into_iter().enumerate() {
        for start in (0..len).step_by(4 * STEP) {
            steps.push((chunk, start..len.min(start + 4 * STEP), first + start));
        }
        first += len;
    }
    steps
}
