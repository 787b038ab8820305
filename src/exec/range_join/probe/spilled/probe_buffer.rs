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

    /// Adds bytes. They are registered even above the pool's limit, because they are in memory already.
    pub(crate) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.limit.used.fetch_add(bytes, Ordering::Relaxed);
        self.memory.grow(bytes);
    }

    /// Whether the partition should buffer more rows before the build side is scanned.
    pub(crate) fn has_room(&self) -> bool {
        let limit = &self.limit;
        self.bytes.load(Ordering::Relaxed) < limit.per_partition
            || limit.used.load(Ordering::Relaxed) < limit.total
    }

    /// Registers the actual bytes in place of the estimate.
    pub(crate) fn register(&self, bytes: usize) {
        self.memory.resize(bytes);
    }
}

impl Drop for ProbeBuffer {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        self.limit.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}
