//! The memory for probe rows that are buffered before a spilled build side is scanned for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::execution::memory_pool::MemoryReservation;

/// How many bytes of probe rows and their aggregates the partitions may buffer.
#[derive(Debug)]
pub(crate) struct ProbeBufferLimit {
    /// Bytes that all partitions together may buffer.
    total: usize,
    /// Bytes that each partition may buffer, whatever the others have buffered.
    per_partition: usize,
    /// Bytes that all partitions have buffered.
    used: AtomicUsize,
}

impl ProbeBufferLimit {
    pub(crate) fn new(total: usize, partitions: usize) -> Self {
        Self {
            total,
            per_partition: total / partitions.max(1),
            used: AtomicUsize::new(0),
        }
    }

    /// Bytes that each partition may buffer, whatever the others have buffered.
    pub(crate) fn per_partition(&self) -> usize {
        self.per_partition
    }
}

/// Accounts for the probe rows that one partition has buffered, and for their aggregates.
#[derive(Debug)]
pub(crate) struct ProbeBuffer {
    limit: Arc<ProbeBufferLimit>,
    memory: MemoryReservation,
    bytes: AtomicUsize,
}

impl ProbeBuffer {
    /// An empty buffer, whose bytes `memory` registers.
    pub(crate) fn new(limit: Arc<ProbeBufferLimit>, memory: MemoryReservation) -> Self {
        Self {
            limit,
            memory,
            bytes: AtomicUsize::new(0),
        }
    }

    /// Adds as many rows of so many bytes as there is memory for, at most `most`, but at least `least`, without which
    /// nothing goes on: those are not registered if the pool has no more, as all other operators would fail for it.
    /// Returns their number.
    pub(crate) fn add_rows(&self, row_bytes: usize, least: usize, most: usize) -> usize {
        let mut rows = most;
        while self.memory.try_grow(rows * row_bytes).is_err() && rows > least {
            rows = (rows / 2).max(least);
        }
        self.count(rows * row_bytes);
        rows
    }

    /// Adds bytes that come with the rows.
    pub(crate) fn add(&self, bytes: usize) {
        // If the pool has no more, it has none for other rows either.
        self.memory.try_grow(bytes).ok();
        self.count(bytes);
    }

    fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.limit.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether the partition should buffer more rows before the build side is scanned.
    pub(crate) fn has_room(&self) -> bool {
        let limit = &self.limit;
        self.bytes.load(Ordering::Relaxed) < limit.per_partition
            || limit.used.load(Ordering::Relaxed) < limit.total
    }

    /// Registers the actual bytes in place of the estimate, as far as there is memory for them.
    pub(crate) fn register(&self, bytes: usize) {
        self.memory.try_resize(bytes).ok();
    }
}

impl Drop for ProbeBuffer {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        self.limit.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}
