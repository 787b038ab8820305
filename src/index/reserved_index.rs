//! Indexes of columns with the memory that is reserved for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::execution::memory_pool::MemoryReservation;

use crate::index::column_index::ColumnIndex;

/// An index and the memory reserved for it, which is released when the last user drops it.
#[derive(Debug)]
pub(crate) struct ReservedIndex {
    pub(crate) index: ColumnIndex,
    pub(super) memory: IndexMemory,
    pub(super) on_device: Option<DeviceBytes>,
}

impl ReservedIndex {
    /// Ties an index to its reservations, whose estimated sizes are corrected to the index's actual size.
    pub(crate) fn new(
        index: ColumnIndex,
        mut memory: IndexMemory,
        mut on_device: Option<DeviceBytes>,
    ) -> Self {
        memory.resize(index.memory_bytes());
        if let Some(on_device) = &mut on_device {
            on_device.resize(index.device_bytes());
        }
        Self {
            index,
            memory,
            on_device,
        }
    }

    /// Bytes of host memory.
    pub(super) fn bytes(&self) -> usize {
        self.memory.reservation.size()
    }

    /// Bytes of each device that stores the index.
    pub(crate) fn device_bytes(&self) -> usize {
        self.on_device.as_ref().map_or(0, |d| d.bytes)
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
