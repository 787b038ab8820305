//! The range-minimum index of a value column, built on demand, and the memory that is registered for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::range_join::build_side::lazy_structure::LazyStructure;
use crate::exec::range_join::metrics::BuildMetrics;
use rmq_arrow::common::errors::engine_error;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::index::key_index::KeyIndex;
use rmq_engine::cpu::LazyBuild;

/// The lazy index of a value column: it scans the column until the ranges that are queried justify building it.
#[derive(Debug)]
pub(crate) struct ValueIndex {
    keys: KeyIndex,
    lazy: Arc<dyn LazyBuild>,
    /// Registers the memory of the index: until it is built, all that this takes, because the pool may have no more by
    /// then.
    memory: Arc<MemoryReservation>,
    /// Registers the collected column while the index scans it.
    scanned_column: Mutex<Option<Arc<MemoryReservation>>>,
    metrics: BuildMetrics,
}

impl ValueIndex {
    /// Of a [lazy](KeyIndex::lazy) index.
    pub(crate) fn new(
        (keys, lazy): (KeyIndex, Arc<dyn LazyBuild>),
        memory: MemoryReservation,
        metrics: BuildMetrics,
    ) -> Self {
        Self {
            keys,
            lazy,
            memory: Arc::new(memory),
            scanned_column: Mutex::default(),
            metrics,
        }
    }

    pub(crate) fn keys(&self) -> &KeyIndex {
        &self.keys
    }

    /// Whether it refers to the memory of the collected column.
    fn scans_column(&self) -> bool {
        !self.lazy.is_built() || self.keys.borrows_column()
    }

    /// Keeps the collected column registered while the index scans it.
    pub(crate) fn retain_scanned_column(&self, column: &Arc<MemoryReservation>) {
        if self.scans_column() {
            *self.scanned_column() = Some(Arc::clone(column));
        }
    }

    fn scanned_column(&self) -> MutexGuard<'_, Option<Arc<MemoryReservation>>> {
        // A poisoned value is complete: it is only ever replaced.
        let scanned = self.scanned_column.lock();
        scanned.unwrap_or_else(PoisonError::into_inner)
    }
}

impl LazyStructure for ValueIndex {
    fn should_build(&self, ranges: &Ranges) -> bool {
        self.lazy.should_build(ranges.left(), ranges.right())
    }

    fn build(&self) -> Result<()> {
        let metrics = &self.metrics;
        let started = Instant::now();
        if self.lazy.build().map_err(engine_error)? {
            metrics.index_time.add_elapsed(started);
            metrics.elapsed_compute.add_elapsed(started);
            metrics.index_bytes.add(self.keys.index_bytes());
            self.memory.resize(self.keys.memory_bytes());
            if !self.scans_column() {
                *self.scanned_column() = None;
            }
        }
        Ok(())
    }

    fn memory(&self) -> Vec<Arc<MemoryReservation>> {
        let scanned = self.scanned_column().clone();
        let own = Arc::clone(&self.memory);
        scanned.into_iter().chain([own]).collect()
    }
}
