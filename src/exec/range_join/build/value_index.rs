//! The index of a column of a range join, built at once or late, and the memory that is registered for it.

use crate::common::errors::engine_error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::ranges::Ranges;
use crate::exec::common::blocking::blocking;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::index::column_index::ColumnIndex;

/// An index that ranges are asked of. One that is built late scans them until ranges are asked that it pays for.
#[derive(Debug)]
pub(crate) struct JoinIndex {
    index: ColumnIndex,
    /// Registers what the index takes; of one that is built late all it may take, as there may be no more to be had when it pays.
    memory: MemoryReservation,
    /// Registers the column as it came, while an index that is built late scans it.
    scanned: Mutex<Option<Arc<MemoryReservation>>>,
    /// Of one that is built late.
    metrics: Option<BuildMetrics>,
}

impl JoinIndex {
    /// One that is there.
    pub(crate) fn built(index: ColumnIndex, memory: MemoryReservation) -> Self {
        Self {
            index,
            memory,
            scanned: Mutex::default(),
            metrics: None,
        }
    }

    /// One that is [late](ColumnIndex::late).
    pub(crate) fn late(
        index: ColumnIndex,
        memory: MemoryReservation,
        metrics: BuildMetrics,
    ) -> Self {
        Self {
            metrics: Some(metrics),
            ..Self::built(index, memory)
        }
    }

    pub(crate) fn index(&self) -> &ColumnIndex {
        &self.index
    }

    /// Bytes that are registered for it, the column that it scans not included.
    pub(crate) fn registered(&self) -> usize {
        self.memory.size()
    }

    /// Keeps a column registered that it scans, if it does.
    pub(crate) fn scans(&self, column: &Arc<MemoryReservation>) {
        if self.metrics.is_some() && self.index.borrows_column() {
            self.set_scanned(Some(Arc::clone(column)));
        }
    }

    fn set_scanned(&self, column: Option<Arc<MemoryReservation>>) {
        // Nothing is left half done.
        *self.scanned.lock().unwrap_or_else(PoisonError::into_inner) = column;
    }

    /// Builds it on a thread that may wait, if these ranges, which are to be asked, are the first that it pays for.
    pub(crate) async fn make_ready(self: &Arc<Self>, ranges: &Ranges) -> Result<()> {
        if !self.index.should_build(ranges) {
            return Ok(());
        }
        // Building can't be stopped: until it ends, this keeps its memory registered.
        let this = Arc::clone(self);
        blocking(move |_| this.build()).await
    }

    /// The same on this thread.
    pub(crate) fn make_ready_now(&self, ranges: &Ranges) -> Result<()> {
        if self.index.should_build(ranges) {
            self.build()?;
        }
        Ok(())
    }

    /// Builds it, unless it is there.
    pub(crate) fn build(&self) -> Result<()> {
        let Some(metrics) = &self.metrics else {
            return Ok(());
        };
        let started = Instant::now();
        if self.index.build_late().map_err(engine_error)? {
            metrics.index_time.add_elapsed(started);
            metrics.index_bytes.add(self.index.index_bytes());
            self.memory.resize(self.index.memory_bytes());
            if !self.index.borrows_column() {
                self.set_scanned(None);
            }
        }
        Ok(())
    }
}
