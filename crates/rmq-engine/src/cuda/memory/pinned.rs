//! Pinned host memory, which devices copy to and from at full speed.
//!
//! Allocating it is slow (about a millisecond for four megabytes), so a pool caches freed blocks.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use cudarc::driver::sys::{self, CU_MEMHOSTALLOC_PORTABLE};

use crate::cuda::driver::device::Device;
use crate::{EngineError, OutputBuffer};

/// The size of the smallest block.
const MIN_BLOCK_BYTES: usize = 64 << 10;

/// The most bytes of freed blocks that are cached.
const MAX_CACHED_BYTES: usize = 1 << 30;

/// Answers get pinned memory while the pool has at most this many bytes: the system can't swap it out.
const MAX_BYTES_FOR_ANSWERS: usize = 4 << 30;

/// A pool of blocks of pinned memory, each of a power of two bytes.
#[derive(Debug)]
pub struct PinnedPool {
    device: Arc<Device>,
    cached: Mutex<Cached>,
    /// The start and end address of every block, cached or in use.
    ranges: RwLock<BTreeMap<usize, usize>>,
    /// Bytes of all blocks.
    allocated: AtomicUsize,
}

/// Freed blocks.
#[derive(Debug, Default)]
struct Cached {
    /// By size.
    blocks: BTreeMap<usize, Vec<Start>>,
    bytes: usize,
}

#[derive(Debug)]
struct Start(NonNull<u8>);

// SAFETY: the pool owns the memory; nothing else refers to it.
unsafe impl Send for Start {}

impl PinnedPool {
    /// Creates an empty pool.
    pub fn new(device: &Arc<Device>) -> Self {
        Self {
            device: Arc::clone(device),
            cached: Mutex::default(),
            ranges: RwLock::default(),
            allocated: AtomicUsize::new(0),
        }
    }

    /// The device through which the pool allocates.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Takes a block of at least `bytes` bytes with arbitrary contents.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] if no more memory can be pinned, [`EngineError::Device`] if the device fails.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<PinnedBlock, EngineError> {
        let bytes = bytes
            .max(MIN_BLOCK_BYTES)
            .checked_next_power_of_two()
            .ok_or(EngineError::OutOfMemory { bytes })?;
        let block = |start| PinnedBlock {
            pool: Arc::clone(self),
            start,
            bytes,
        };
        {
            let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Start(start)) = cached.blocks.get_mut(&bytes).and_then(Vec::pop) {
                cached.bytes -= bytes;
                return Ok(block(start));
            }
        }
        let mut start = std::ptr::null_mut();
        // Portable: devices of other contexts copy to it at the same speed.
        // SAFETY: the pointer is valid for the call.
        let enough = self.device.allocate("pin host memory", || unsafe {
            sys::cuMemHostAlloc(&raw mut start, bytes, CU_MEMHOSTALLOC_PORTABLE)
        })?;
        let start: NonNull<u8> = NonNull::new(start.cast())
            .filter(|_| enough)
            .ok_or(EngineError::OutOfMemory { bytes })?;
        // Users see initialised bytes.
        // SAFETY: newly allocated memory of that length.
        unsafe { start.write_bytes(0, bytes) };
        let address = start.as_ptr().addr();
        self.ranges
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(address, address + bytes);
        self.allocated.fetch_add(bytes, Ordering::Relaxed);
        Ok(block(start))
    }

    /// Allocates `len` numbers in pinned memory, for answers.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] if the pool is too large already, else as [`PinnedPool::take`].
    pub fn allocate<T: DeviceValue>(
        self: &Arc<Self>,
        len: usize,
    ) -> Result<OutputBuffer<T>, EngineError> {
        let bytes = len.saturating_mul(size_of::<T>());
        if self.allocated.load(Ordering::Relaxed).saturating_add(bytes) > MAX_BYTES_FOR_ANSWERS {
            return Err(EngineError::OutOfMemory { bytes });
        }
        let block = self.take(bytes)?;
        // SAFETY: the block is initialised, aligned to pages, at least that long, and used by its owner alone until it
        // is dropped.
        Ok(unsafe { OutputBuffer::lent(block.start.cast(), len, block) })
    }

    /// Whether a slice is in a block of this pool, so that a device may copy to it directly.
    pub fn contains<T>(&self, slice: &[T]) -> bool {
        let range = slice.as_ptr_range();
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        ranges
            .range(..=range.start.addr())
            .next_back()
            .is_some_and(|(_, end)| range.end.addr() <= *end)
    }

    fn release(&self, start: NonNull<u8>, bytes: usize) {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.bytes + bytes <= MAX_CACHED_BYTES {
            cached.bytes += bytes;
            cached.blocks.entry(bytes).or_default().push(Start(start));
            return;
        }
        drop(cached);
        self.free(start, bytes);
    }

    fn free(&self, start: NonNull<u8>, bytes: usize) {
        self.allocated.fetch_sub(bytes, Ordering::Relaxed);
        self.ranges
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&start.as_ptr().addr());
        // SAFETY: allocated in `take`, not in use, freed once.
        self.device
            .call_ignoring_errors(|| unsafe { sys::cuMemFreeHost(start.as_ptr().cast()) });
    }
}

impl Drop for PinnedPool {
    fn drop(&mut self) {
        let cached = std::mem::take(
            self.cached
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for (bytes, starts) in cached.blocks {
            for Start(start) in starts {
                self.free(start, bytes);
            }
        }
    }
}

/// A block of pinned memory, aligned to pages and initialised. When it is dropped, no copy to or from it is in flight.
#[derive(Debug)]
pub struct PinnedBlock {
    pool: Arc<PinnedPool>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the block owns its memory until it is dropped.
unsafe impl Send for PinnedBlock {}
// SAFETY: as above.
unsafe impl Sync for PinnedBlock {}

impl PinnedBlock {
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the `len` numbers at byte `offset`. No copy to or from them may be in flight.
    ///
    /// # Panics
    /// If they are not aligned or not within the block.
    pub fn slice_mut<T: DeviceValue>(&mut self, offset: usize, len: usize) -> &mut [T] {
        let end = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_add(offset));
        assert!(
            offset.is_multiple_of(align_of::<T>()) && end.is_some_and(|end| end <= self.bytes),
            "numbers outside their block"
        );
        // SAFETY: within the block, aligned, initialised; `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset).cast(), len) }
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        self.pool.release(self.start, self.bytes);
    }
}

/// Values that are copied to and from devices.
pub trait DeviceValue: bytemuck::Pod + Default + Send + Sync + std::panic::RefUnwindSafe {}
impl<T: bytemuck::Pod + Default + Send + Sync + std::panic::RefUnwindSafe> DeviceValue for T {}
