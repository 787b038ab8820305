//! The stream and the memory that one part of a batch passes through.

use std::sync::Arc;

use super::driver::stream::Stream;
use super::memory::device_memory::DeviceMemory;
use super::memory::pinned::{PinnedBlock, PinnedPool};
use crate::EngineError;

/// A stream with buffers on both ends, reused from batch to batch.
///
/// A batch uses two of them in turn: while the device works on the part in one, the host prepares the next part in the
/// other.
#[derive(Debug)]
pub struct BatchBuffers {
    // The first field: its drop waits for the work that uses the memory.
    pub stream: Stream,
    /// Queries on their way to the device.
    pub queries: Option<PinnedBlock>,
    /// Answers on their way back.
    pub answers: Option<PinnedBlock>,
    /// Queries and answers on the device.
    pub memory: Option<DeviceMemory>,
    pub pinned: Arc<PinnedPool>,
}

impl BatchBuffers {
    /// Creates the stream; memory is allocated on first use.
    ///
    /// # Errors
    /// Those of [`Stream::new`].
    pub fn new(pinned: &Arc<PinnedPool>) -> Result<Self, EngineError> {
        Ok(Self {
            stream: Stream::new(pinned.device())?,
            queries: None,
            answers: None,
            memory: None,
            pinned: Arc::clone(pinned),
        })
    }

    /// Copies answers that have arrived in the pinned block to their destinations.
    ///
    /// # Safety
    /// No copy into the block is in flight, the destinations are valid, and nothing else accesses them.
    pub unsafe fn deliver(&mut self, copies: Vec<StagedCopy>) {
        let Some(block) = &mut self.answers else {
            return;
        };
        for StagedCopy { offset, to, bytes } in copies {
            let answers = block.slice_mut::<u8>(offset, bytes);
            // SAFETY: the caller guarantees that `to` is valid; it does not overlap a block of the engine.
            unsafe { std::ptr::copy_nonoverlapping(answers.as_ptr(), to, bytes) };
        }
    }
}

/// A copy out of the pinned block of answers, to a destination that is not pinned.
#[derive(Debug)]
pub struct StagedCopy {
    pub offset: usize,
    pub to: *mut u8,
    pub bytes: usize,
}

/// The number of queries that buffers are allocated for: a power of two, so that batches of similar sizes share them.
#[must_use]
pub fn capacity(queries: usize) -> usize {
    queries.next_power_of_two().max(1 << 12)
}

/// Returns the block in `block`, after replacing it if it has fewer than `bytes` bytes.
///
/// # Errors
/// Those of [`PinnedPool::take`].
pub fn reserve_pinned<'a>(
    block: &'a mut Option<PinnedBlock>,
    bytes: usize,
    pinned: &Arc<PinnedPool>,
) -> Result<&'a mut PinnedBlock, EngineError> {
    reserve(block, bytes, PinnedBlock::bytes, || pinned.take(bytes))
}

/// Returns the memory in `memory`, after replacing it if it has fewer than `bytes` bytes.
///
/// # Errors
/// Those of [`DeviceMemory::new`].
pub fn reserve_device<'a>(
    memory: &'a mut Option<DeviceMemory>,
    bytes: usize,
    pinned: &PinnedPool,
) -> Result<&'a mut DeviceMemory, EngineError> {
    reserve(memory, bytes, DeviceMemory::bytes, || {
        DeviceMemory::new(pinned.device(), bytes)
    })
}

fn reserve<T>(
    buffer: &mut Option<T>,
    bytes: usize,
    size: impl Fn(&T) -> usize,
    allocate: impl FnOnce() -> Result<T, EngineError>,
) -> Result<&mut T, EngineError> {
    if buffer.as_ref().is_some_and(|buffer| size(buffer) < bytes) {
        // Freed before the larger one is allocated.
        *buffer = None;
    }
    match buffer {
        Some(buffer) => Ok(buffer),
        None => Ok(buffer.insert(allocate()?)),
    }
}

/// The offsets of aligned parts that follow each other in one buffer.
#[derive(Debug, Default)]
pub struct Offsets {
    /// Bytes of all parts.
    pub end: usize,
}

impl Offsets {
    /// Appends a part; returns its offset.
    pub fn add(&mut self, bytes: usize) -> usize {
        let start = self.end;
        self.end = (start + bytes).next_multiple_of(256);
        start
    }
}
