//! Host memory that a device copies to and from at full speed.
//!
//! It takes long to make (about a millisecond for four megabytes), so blocks are kept and lent again.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use cudarc::driver::sys::{self, CU_MEMHOSTALLOC_PORTABLE};

use super::device::Device;
use crate::{EngineError, Memory};

/// Smallest block.
const SMALLEST: usize = 64 << 10;

/// Blocks that nobody uses are kept up to so many bytes.
const KEPT: usize = 1 << 30;

/// Answers are put into pinned memory while no more than so many bytes of it were made: the machine can't swap it out.
const ANSWERS: usize = 4 << 30;

/// Blocks of pinned memory, each of a power of two bytes.
#[derive(Debug)]
pub struct Pinned {
    device: Arc<Device>,
    spare: Mutex<Spare>,
    /// Where each block begins and ends, lent or not.
    all: RwLock<BTreeMap<usize, usize>>,
    /// Bytes of these.
    made: AtomicUsize,
}

#[derive(Debug, Default)]
struct Spare {
    /// By size.
    blocks: BTreeMap<usize, Vec<Start>>,
    bytes: usize,
}

#[derive(Debug)]
struct Start(NonNull<u8>);

// SAFETY: memory that nobody else uses.
unsafe impl Send for Start {}

impl Pinned {
    pub fn new(device: &Arc<Device>) -> Self {
        Self {
            device: Arc::clone(device),
            spare: Mutex::default(),
            all: RwLock::default(),
            made: AtomicUsize::new(0),
        }
    }

    /// A block of at least `bytes` bytes, its contents of any kind.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<Block, EngineError> {
        let bytes = bytes
            .max(SMALLEST)
            .checked_next_power_of_two()
            .ok_or(EngineError::OutOfMemory { bytes })?;
        let block = |start| Block {
            pool: Arc::clone(self),
            start,
            bytes,
        };
        {
            let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Start(start)) = spare.blocks.get_mut(&bytes).and_then(Vec::pop) {
                spare.bytes -= bytes;
                return Ok(block(start));
            }
        }
        let mut start = std::ptr::null_mut();
        // Portable: devices of other contexts copy to it as fast.
        // SAFETY: the pointer is good for the call.
        let enough = self.device.allocate("pin host memory", || unsafe {
            sys::cuMemHostAlloc(&raw mut start, bytes, CU_MEMHOSTALLOC_PORTABLE)
        })?;
        let start: NonNull<u8> = NonNull::new(start.cast())
            .filter(|_| enough)
            .ok_or(EngineError::OutOfMemory { bytes })?;
        // So that whoever is lent it sees initialised bytes.
        // SAFETY: fresh memory of that length.
        unsafe { start.write_bytes(0, bytes) };
        let address = start.as_ptr().addr();
        self.all
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(address, address + bytes);
        self.made.fetch_add(bytes, Ordering::Relaxed);
        Ok(block(start))
    }

    /// `len` numbers in pinned memory, to keep.
    pub fn numbers<T: Pod>(self: &Arc<Self>, len: usize) -> Result<Memory<T>, EngineError> {
        let bytes = len.saturating_mul(size_of::<T>());
        if self.made.load(Ordering::Relaxed).saturating_add(bytes) > ANSWERS {
            return Err(EngineError::OutOfMemory { bytes });
        }
        let block = self.take(bytes)?;
        // SAFETY: a block is initialised, aligned to pages, that long, and lent to nobody else before it is dropped.
        Ok(unsafe { Memory::lent(block.start.cast(), len, block) })
    }

    /// Whether a slice lies in a block of this pool, so that a device may copy to it directly.
    pub fn holds<T>(&self, slice: &[T]) -> bool {
        let range = slice.as_ptr_range();
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.range(..=range.start.addr())
            .next_back()
            .is_some_and(|(_, end)| range.end.addr() <= *end)
    }

    fn give_back(&self, start: NonNull<u8>, bytes: usize) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.bytes + bytes <= KEPT {
            spare.bytes += bytes;
            spare.blocks.entry(bytes).or_default().push(Start(start));
            return;
        }
        drop(spare);
        self.free(start, bytes);
    }

    fn free(&self, start: NonNull<u8>, bytes: usize) {
        self.made.fetch_sub(bytes, Ordering::Relaxed);
        self.all
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&start.as_ptr().addr());
        // SAFETY: allocated in `take`, lent to nobody, freed once.
        self.device
            .quietly(|| unsafe { sys::cuMemFreeHost(start.as_ptr().cast()) });
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let spare = std::mem::take(self.spare.get_mut().unwrap_or_else(PoisonError::into_inner));
        for (bytes, starts) in spare.blocks {
            for Start(start) in starts {
                self.free(start, bytes);
            }
        }
    }
}

/// A block on loan, aligned to pages and initialised. No copy to or from it is under way when it is dropped.
#[derive(Debug)]
pub struct Block {
    pool: Arc<Pinned>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the block is lent to one owner, which its memory belongs to.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// `len` numbers from byte `offset` on. No copy to or from them is under way.
    pub fn numbers<T: Pod>(&mut self, offset: usize, len: usize) -> &mut [T] {
        let end = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_add(offset));
        assert!(
            offset.is_multiple_of(align_of::<T>()) && end.is_some_and(|end| end <= self.bytes),
            "a part of a block lies outside it"
        );
        // SAFETY: inside the block, aligned, initialised; `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset).cast(), len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.pool.give_back(self.start, self.bytes);
    }
}

/// Types of which any bytes are a value.
///
/// # Safety
/// Only for integers.
pub unsafe trait Pod:
    Copy + Default + Send + Sync + std::panic::RefUnwindSafe + 'static
{
}
// SAFETY: an integer.
unsafe impl Pod for u8 {}
// SAFETY: an integer.
unsafe impl Pod for u32 {}
// SAFETY: an integer.
unsafe impl Pod for u64 {}
// SAFETY: an integer.
unsafe impl Pod for u128 {}
// SAFETY: an integer.
unsafe impl Pod for i64 {}
