//! Indexes of columns with the memory that is reserved for them, and their parts.
//!
//! Rows that are added to a column become a part of its index. A part is indexed again, together with those after it,
//! once it is at most twice as large as these, so that an index of n rows has O(log n) parts, and each row is indexed
//! O(log n) times.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::ArrayRef;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::index::column_index::ColumnIndex;
use crate::index::on_disk::OnDisk;
use crate::index::version::{Span, Version};

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
        let spans: Vec<Span> = self.parts.iter().map(|part| part.span).collect();
        let pieces = spans.iter().map(|span| span.pieces).sum();
        if version.extends(older) != Some(pieces) {
            return vec![];
        }
        let stay = spans_that_stay(&spans, version.span(pieces).size);
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

/// The number of parts that are not indexed again together with what is added after them, of this size.
fn spans_that_stay(parts: &[Span], added: u64) -> usize {
    let (mut stay, mut again) = (parts.len(), added);
    while let Some(last) = parts[..stay].last()
        && last.size <= again.saturating_mul(2)
    {
        again = again.saturating_add(last.size);
        stay -= 1;
    }
    stay
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds rows to an index, as often as given, and returns the sizes of its parts and the rows that were indexed.
    fn grow(first: u64, added: u64, times: usize) -> (Vec<u64>, u64) {
        let span = |size| Span { pieces: 1, size };
        let (mut parts, mut indexed) = (vec![span(first)], 0);
        for _ in 0..times {
            let again = parts.split_off(spans_that_stay(&parts, added));
            let size = added + again.iter().map(|part| part.size).sum::<u64>();
            indexed += size;
            parts.push(span(size));
        }
        let sizes: Vec<u64> = parts.iter().map(|part| part.size).collect();
        assert_eq!(sizes.iter().sum::<u64>(), first + added * times as u64);
        (sizes, indexed)
    }

    #[test]
    fn an_index_that_grows_has_few_parts_and_indexes_rows_few_times() {
        // An insert of 10^4 rows has on average fewer than 10^5 rows indexed.
        let (parts, indexed) = grow(100_000_000, 10_000, 1_000);
        assert_eq!(parts[0], 100_000_000);
        assert!(parts.len() <= 12, "{parts:?}");
        println!("{indexed} rows in {} parts", parts.len());
        assert!(indexed <= 100_000_000, "{indexed} rows were indexed");
        // All rows are indexed together from time to time.
        let (parts, indexed) = grow(1, 1, 100_000);
        assert!(parts.len() <= 18, "{parts:?}");
        assert!(indexed <= 100_000 * 18, "{indexed} rows were indexed");
        for pair in parts.windows(2) {
            assert!(pair[0] > 2 * pair[1], "{parts:?}");
        }
        // Nothing is added to nothing.
        assert_eq!(grow(0, 0, 5).0, [0]);
    }
}
