//! The index of a column of a range join, built at once or late, and the memory that is registered for one built late.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use super::blocking::blocking;
use super::key_metrics::BuildMetrics;
use crate::functions::bounds::Ranges;
use crate::index::ColumnIndex;

/// An index that ranges are asked of. One that is built late scans them until ranges are asked that it pays for.
#[derive(Debug)]
pub(super) struct JoinIndex {
    index: ColumnIndex,
    /// Of one that is built late.
    reserve: Option<Reserve>,
}

/// What is registered for an index that is built late: all it may take, as there may be no more to be had when it pays.
#[derive(Debug)]
pub(super) struct Reserve {
    /// The build side's, of which this is a part.
    memory: Arc<MemoryReservation>,
    bytes: usize,
    metrics: BuildMetrics,
    /// The column as it came, while it is scanned.
    scanned: Mutex<Option<Arc<Scanned>>>,
}

impl Reserve {
    /// So many bytes of what is registered already.
    pub(super) fn new(memory: Arc<MemoryReservation>, bytes: usize, metrics: BuildMetrics) -> Self {
        Self {
            memory,
            bytes,
            metrics,
            scanned: Mutex::default(),
        }
    }

    fn scanned(&self) -> MutexGuard<'_, Option<Arc<Scanned>>> {
        // Nothing is left half done.
        self.scanned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registers a column that its indexes scan as it came, until all of them are built.
#[derive(Debug)]
pub(super) struct Scanned {
    memory: Arc<MemoryReservation>,
    bytes: usize,
}

impl Scanned {
    /// So many bytes of what is registered already.
    pub(super) fn new(memory: Arc<MemoryReservation>, bytes: usize) -> Arc<Self> {
        Arc::new(Self { memory, bytes })
    }
}

impl Drop for Scanned {
    fn drop(&mut self) {
        self.memory.shrink(self.bytes);
    }
}

impl JoinIndex {
    /// One that is there.
    pub(super) fn built(index: ColumnIndex) -> Self {
        Self {
            index,
            reserve: None,
        }
    }

    /// One that is [late](ColumnIndex::late).
    pub(super) fn late(index: ColumnIndex, reserve: Reserve) -> Self {
        Self {
            index,
            reserve: Some(reserve),
        }
    }

    pub(super) fn index(&self) -> &ColumnIndex {
        &self.index
    }

    /// Keeps a column registered that it scans, if it does.
    pub(super) fn scans(&self, column: &Arc<Scanned>) {
        if self.index.borrows_column()
            && let Some(reserve) = &self.reserve
        {
            *reserve.scanned() = Some(Arc::clone(column));
        }
    }

    /// Builds it on a thread that may wait, if these ranges, which are to be asked, are the first that it pays for.
    pub(super) async fn make_ready(self: &Arc<Self>, ranges: &Ranges) -> Result<()> {
        if !self.index.pays_for(ranges) {
            return Ok(());
        }
        // Building can't be stopped: until it ends, this keeps its memory registered.
        let this = Arc::clone(self);
        blocking(move |_| this.build()).await
    }

    /// The same on this thread.
    pub(super) fn make_ready_now(&self, ranges: &Ranges) -> Result<()> {
        if self.index.pays_for(ranges) {
            self.build()?;
        }
        Ok(())
    }

    /// Builds it, unless it is there.
    pub(super) fn build(&self) -> Result<()> {
        let Some(reserve) = &self.reserve else {
            return Ok(());
        };
        let started = Instant::now();
        if self.index.build_late()? {
            reserve.metrics.index_time.add_elapsed(started);
            reserve.metrics.index_bytes.add(self.index.index_bytes());
            let (taken, now) = (reserve.bytes, self.index.memory_bytes());
            reserve.memory.grow(now.saturating_sub(taken));
            reserve.memory.shrink(taken.saturating_sub(now));
            if !self.index.borrows_column() {
                *reserve.scanned() = None;
            }
        }
        Ok(())
    }
}
