//! The range-minimum index of a value column, built on demand, and the memory that is registered for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::errors::engine_error;
use crate::common::ranges::Ranges;
use crate::exec::common::blocking::blocking;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::index::key_index::KeyIndex;
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

    /// Whether it should be built before these ranges are answered. Counts the ranges.
    fn should_build(&self, ranges: &Ranges) -> bool {
        self.lazy.should_build(ranges.left(), ranges.right())
    }

    /// What registers the memory of the index, and of the column while it is scanned.
    pub(crate) fn memory(&self) -> Vec<Arc<MemoryReservation>> {
        let scanned = self.scanned_column().clone();
        scanned
            .into_iter()
            .chain([Arc::clone(&self.memory)])
            .collect()
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

    /// Builds the index on a blocking thread if these ranges, which are about to be queried, justify it.
    pub(crate) async fn build_if_justified(self: &Arc<Self>, ranges: &Ranges) -> Result<()> {
        if !self.should_build(ranges) {
            return Ok(());
        }
        // Building can't be stopped. The clone keeps its memory registered until it ends.
        let this = Arc::clone(self);
        blocking(move |_| this.build()).await
    }

    /// Does the same on the calling thread.
    pub(crate) fn build_if_justified_blocking(&self, ranges: &Ranges) -> Result<()> {
        if self.should_build(ranges) {
            self.build()?;
        }
        Ok(())
    }

    /// Builds the index unless it is built already.
    pub(crate) fn build(&self) -> Result<()> {
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
}
