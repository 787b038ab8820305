//! Indexes of columns with the memory that is reserved for them, and their parts. Rows that are added to a column
//! become a part of its index (`growth`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::ArrayRef;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::kept::growth::parts_that_stay;
use crate::kept::on_disk::OnDisk;
use crate::kept::version::{Span, Version};
use rmq_arrow::index::column_index::ColumnIndex;

/// An index and the memory reserved for it, which is released when the last user drops it.
#[derive(Debug)]
pub(crate) struct ReservedIndex {
    /// The index of all rows.
    pub(crate) index: Arc<ColumnIndex>,
    /// The parts that it consists of.
    parts: Vec<IndexPart>,
    pub(crate) disk: Arc<OnDisk>,
}

/// Consecutive rows of a column that are indexed together, and the memory of this index. An extended index shares the
/// parts that stay with the one that it extends.
#[derive(Debug, Clone)]
pub(crate) struct IndexPart {
    index: Arc<ColumnIndex>,
    memory: Arc<IndexMemory>,
    on_device: Option<Arc<DeviceBytes>>,
    /// The arrays or files of the table's version that the rows are of.
    pub(crate) span: Span,
}

impl IndexPart {
    /// Ties an index to its reservations, whose estimated sizes are corrected to the index's actual sizes. `span` is
    /// that of its rows in the table's version, if this is known.
    fn new(
        index: ColumnIndex,
        mut memory: IndexMemory,
        mut on_device: Option<DeviceBytes>,
        span: Span,
    ) -> Self {
        memory.resize(index.memory_bytes());
        if let Some(on_device) = &mut on_device {
            on_device.resize(index.device_bytes());
        }
        Self {
            index: Arc::new(index),
            memory: Arc::new(memory),
            on_device: on_device.map(Arc::new),
            span,
        }
    }

    /// The arrays of the rows, if devices have the index.
    pub(crate) fn arrays(&self) -> &[ArrayRef] {
        self.index.arrays()
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.index.rows()
    }
}

impl ReservedIndex {
    /// Ties the index of a whole column to its reservations, as [`IndexPart::new`] does.
    pub(crate) fn new(
        index: ColumnIndex,
        memory: IndexMemory,
        on_device: Option<DeviceBytes>,
        span: Span,
    ) -> Self {
        let part = IndexPart::new(index, memory, on_device, span);
        Self {
            index: Arc::clone(&part.index),
            parts: vec![part],
            disk: Arc::default(),
        }
    }

    /// Adds the index of the rows after these parts on the same engine, with its reservations, as [`IndexPart::new`]
    /// does.
    ///
    /// # Errors
    /// An execution error for indexes of different keys.
    pub(crate) fn extended(
        mut parts: Vec<IndexPart>,
        index: ColumnIndex,
        memory: IndexMemory,
        on_device: Option<DeviceBytes>,
        span: Span,
    ) -> Result<Self> {
        if parts.is_empty() {
            return Ok(Self::new(index, memory, on_device, span));
        }
        parts.push(IndexPart::new(index, memory, on_device, span));
        let indexes: Vec<_> = parts.iter().map(|part| &*part.index).collect();
        let index = Arc::new(ColumnIndex::of_parts(&indexes)?);
        Ok(Self {
            index,
            parts,
            disk: Arc::default(),
        })
    }

    /// The parts that stay in an index of `version`, where this one is of the version `older`: none if `version` does
    /// not begin with it, or if all rows should be indexed together.
    pub(crate) fn parts_that_stay(&self, older: &Version, version: &Version) -> Vec<IndexPart> {
        if !self.index.can_be_extended() {
            return vec![];
        }
        let pieces = self.parts.iter().map(|part| part.span.pieces).sum();
        if version.extends(older) != Some(pieces) {
            return vec![];
        }
        let sizes: Vec<u64> = self.parts.iter().map(|part| part.span.size).collect();
        let stay = parts_that_stay(&sizes, version.span(pieces).size, 0);
        self.parts[..stay].to_vec()
    }

    /// Whether no query uses the index, or a part of it in a longer one that is being built.
    pub(crate) fn is_idle(index: &Arc<Self>) -> bool {
        let mut parts = index.parts.iter();
        Arc::strong_count(index) == 1 && parts.all(|part| Arc::strong_count(&part.memory) == 1)
    }

    /// Bytes of host memory.
    pub(crate) fn bytes(&self) -> usize {
        let parts = self.parts.iter();
        parts.map(|part| part.memory.reservation.size()).sum()
    }

    /// Bytes of each device that stores the index.
    pub(crate) fn device_bytes(&self) -> usize {
        let parts = self.parts.iter();
        let bytes = parts.map(|part| part.on_device.as_ref().map_or(0, |d| d.bytes));
        bytes.sum()
    }
}

/// A reservation of device memory, counted against `rmq.device_memory_limit`: this many bytes of each device.
#[derive(Debug)]
pub(crate) struct DeviceBytes {
    pub(super) bytes: usize,
    pub(super) total: Arc<AtomicUsize>,
}

impl DeviceBytes {
    fn resize(&mut self, bytes: usize) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for DeviceBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A reservation of host memory, in the session's memory pool and counted against `rmq.index_memory_limit`.
#[derive(Debug)]
pub(crate) struct IndexMemory {
    pub(super) reservation: MemoryReservation,
    pub(super) total: Arc<AtomicUsize>,
}

impl IndexMemory {
    fn resize(&mut self, bytes: usize) {
        let before = self.reservation.size();
        self.reservation.resize(bytes);
        if bytes >= before {
            self.total.fetch_add(bytes - before, Ordering::Relaxed);
        } else {
            self.total.fetch_sub(before - bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for IndexMemory {
    fn drop(&mut self) {
        self.total
            .fetch_sub(self.reservation.size(), Ordering::Relaxed);
    }
}
