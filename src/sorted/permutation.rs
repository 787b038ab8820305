//! The permutation that sorts the rows of a build side, and columns permuted by it.

use std::sync::{Arc, OnceLock};

use datafusion::common::Result;

use crate::common::errors::engine_error;
use crate::sorted::bucket_sort::{STEP, SortContext};
use crate::sorted::group_ids::GroupIds;
use crate::sorted::id_map::{NO_GROUP, number};
use bytemuck::Pod;
use rmq_engine::cpu::HugePageBuf;

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
    order: OnceLock<Arc<Vec<u32>>>,
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
    pub(crate) fn from_valid(valid: impl ExactSizeIterator<Item = bool>) -> Result<Self> {
        let mut positions = HugePageBuf::zeroed(valid.len()).map_err(engine_error)?;
        let mut len = 0;
        for (position, valid) in positions.iter_mut().zip(valid) {
            *position = if valid { number(len) } else { LEFT_OUT };
            len += usize::from(valid);
        }
        Ok(Self::new(Some(positions), len))
    }

    /// Sorts rows by group, stably; rows without a group are left out. Also returns the first position of each group, and the end of
    /// the last. The memory that this takes is reserved in the context's reservation.
    ///
    /// # Errors
    /// If the memory is not available, and the context's.
    pub(crate) fn by_group(
        ids: GroupIds,
        groups: usize,
        context: SortContext,
    ) -> Result<(Self, Vec<usize>)> {
        let (counts, ordered) = ids.counts(groups);
        let mut starts = counts;
        let mut sum = 0;
        for start in &mut starts {
            sum += std::mem::replace(start, sum);
        }
        starts.push(sum);
        if ordered {
            return Ok((Self::identity(sum), starts));
        }
        let mut positions = ids.into_plain(context.memory)?;
        let mut next: Vec<u32> = starts.iter().map(|start| number(*start)).collect();
        for step in positions.chunks_mut(STEP) {
            (context.check)()?;
            for id in step {
                if *id != NO_GROUP {
                    let position = &mut next[*id as usize];
                    *id = *position;
                    *position += 1;
                }
            }
        }
        Ok((Self::new(Some(positions), sum), starts))
    }

    /// Composes with a permutation of the positions, which is applied second.
    pub(crate) fn then(self, second: HugePageBuf<u32>) -> Self {
        let Some(mut positions) = self.positions else {
            return Self::new(Some(second), self.len);
        };
        for position in positions.iter_mut() {
            if let Some(next) = second.get(*position as usize) {
                *position = *next;
            }
        }
        Self::new(Some(positions), self.len)
    }

    /// The permutation with these rows at the positions; other rows of `rows` are left out.
    ///
    /// # Errors
    /// If the memory is not available.
    pub(crate) fn from_order(order: Vec<u32>, rows: usize) -> Result<Self> {
        let mut positions = HugePageBuf::zeroed(rows).map_err(engine_error)?;
        positions.fill(LEFT_OUT);
        for (position, row) in order.iter().enumerate() {
            positions[*row as usize] = number(position);
        }
        let permutation = Self::new(Some(positions), order.len());
        Ok(Self {
            order: OnceLock::from(Arc::new(order)),
            ..permutation
        })
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
        let order = self.order.get().map_or(0, |o| size_of_val(o.as_slice()));
        self.positions.as_ref().map_or(0, HugePageBuf::bytes) + order
    }

    /// Bytes that remain allocated when this is dropped, because others share the order.
    pub(crate) fn shared_order_bytes(&self) -> usize {
        let shared = self.order.get().filter(|o| Arc::strong_count(o) > 1);
        shared.map_or(0, |order| size_of_val(order.as_slice()))
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
    pub(crate) fn order(&self) -> Option<&Arc<Vec<u32>>> {
        let positions = self.positions.as_ref()?;
        Some(self.order.get_or_init(|| {
            let mut order = vec![0; self.len];
            for (row, position) in positions.iter().enumerate() {
                if let Some(slot) = order.get_mut(*position as usize) {
                    *slot = number(row);
                }
            }
            Arc::new(order)
        }))
    }

    /// Scatters the values of the rows from `first` on to their positions.
    pub(crate) fn put<T: Copy>(&self, first: usize, values: &[T], into: &mut [T]) {
        match &self.positions {
            None => into[first..first + values.len()].copy_from_slice(values),
            Some(positions) => {
                let positions = &positions[first..first + values.len()];
                for (value, position) in values.iter().zip(positions) {
                    // No position is as large as `LEFT_OUT`.
                    if let Some(slot) = into.get_mut(*position as usize) {
                        *slot = *value;
                    }
                }
            }
        }
    }

    /// Scatters the values of all rows, which are in `chunks`, to their positions.
    ///
    /// # Errors
    /// If the memory is not available, and that of `check`, which is called at each step.
    pub(crate) fn arrange<'a, T: Pod + 'a>(
        &self,
        chunks: impl IntoIterator<Item = &'a [T]>,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<HugePageBuf<T>> {
        let mut permuted = HugePageBuf::zeroed(self.len).map_err(engine_error)?;
        let mut first = 0;
        for chunk in chunks {
            for step in chunk.chunks(STEP) {
                check()?;
                self.put(first, step, &mut permuted);
                first += step.len();
            }
        }
        Ok(permuted)
    }
}
