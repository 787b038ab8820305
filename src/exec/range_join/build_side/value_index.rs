//! The range-minimum index of a value column, built on demand, and the memory that is registered for it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::errors::engine_error;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::index::column_index::ColumnIndex;

/// The lazy index of a value column: it scans the column until the ranges that are queried justify building it.
#[derive(Debug)]
pub(crate) struct ValueIndex {
    index: ColumnIndex,
    /// Registers the memory of the index: until it is built, all that this takes, because the pool may have no more by
    /// then.
    memory: MemoryReservation,
    /// Registers the collected column while the index scans it.
    scanned_column: Mutex<Option<Arc<MemoryReservation>>>,
    metrics: BuildMetrics,
}

impl ValueIndex {
    /// Of a [lazy](ColumnIndex::lazy) index.
    pub(crate) fn new(
        index: ColumnIndex,
        memory: MemoryReservation,
        metrics: BuildMetrics,
    ) -> Self {
        Self {
            index,
            memory,
            scanned_column: Mutex::default(),
            metrics,
        }
    }

    pub(crate) fn index(&self) -> &ColumnIndex {
        &self.index
    }

    /// Bytes that are registered for the index, without the column that it scans.
    pub(crate) fn registered_bytes(&self) -> usize {
        self.memory.size()
    }

    /// Keeps the collected column registered while the index scans it.
    pub(crate) fn retain_scanned_column(&self, column: &Arc<MemoryReservation>) {
        if self.index.borrows_column() {
            self.set_scanned_column(Some(Arc::clone(column)));
        }
    }

    fn set_scanned_column(&self, column: Option<Arc<MemoryReservation>>) {
        // A poisoned value is complete: it is only ever replaced.
        let mut scanned = self
            .scanned_column
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *scanned = column;
    }

    /// Builds the index unless it is built already. Blocks, and can't be stopped.
    pub(crate) fn build(&self) -> Result<()> {
        let metrics = &self.metrics;
        let started = Instant::now();
        if self.index.build_lazy().map_err(engine_error)? {
            metrics.index_time.add_elapsed(started);
            metrics.elapsed_compute.add_elapsed(started);
            metrics.index_bytes.add(self.index.index_bytes());
            self.memory.resize(self.index.memory_bytes());
            if !self.index.borrows_column() {
                self.set_scanned_column(None);
            }
        }
        Ok(())
    }
}
