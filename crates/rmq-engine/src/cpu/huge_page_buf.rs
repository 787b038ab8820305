//! Zeroed memory for levels and copies of columns: aligned to blocks of keys, on huge pages where it is large.
//!
//! A random access on 4 KiB pages takes two to four times as long as one on huge pages, because it misses the TLB, too.
//! So large allocations are mapped directly, aligned to 2 MiB and advised to be huge.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;

use bytemuck::Pod;

use crate::error::EngineError;

/// The alignment of memory: a block of 16 keys of the widest type, four cache lines. So the start of a block follows
/// from the address of any key in it.
pub(crate) const ALIGN: usize = 256;

/// A huge page of x86-64 and of aarch64 with 4 KiB base pages.
const HUGE: usize = 2 << 20;

/// Owned bytes, zero at first, aligned to [`ALIGN`].
#[derive(Debug)]
pub(crate) struct HugePageBytes {
    start: NonNull<u8>,
    bytes: usize,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Heap(Layout),
    #[cfg(unix)]
    Map {
        address: *mut libc::c_void,
        bytes: usize,
    },
}

// SAFETY: `HugePageBytes` owns its bytes alone, like a `Box<[u8]>`; shared references only read.
unsafe impl Send for HugePageBytes {}
// SAFETY: as above.
unsafe impl Sync for HugePageBytes {}

impl HugePageBytes {
    /// Allocates zeroed bytes.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`]; nothing aborts.
    pub(crate) fn zeroed(bytes: usize) -> Result<Self, EngineError> {
        let failed = EngineError::OutOfMemory { bytes };
        #[cfg(unix)]
        if bytes >= HUGE {
            return Self::mapped(bytes).ok_or(failed);
        }
        let layout =
            Layout::from_size_align(bytes.max(ALIGN), ALIGN).map_err(|_| failed.clone())?;
        // SAFETY: the layout's size is at least `ALIGN`, so not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(failed)?;
        Ok(Self {
            start,
            bytes,
            source: Source::Heap(layout),
        })
    }

    /// Maps fresh pages, the first byte aligned to a huge page.
    #[cfg(unix)]
    fn mapped(bytes: usize) -> Option<Self> {
        // One huge page more, to align within; pages that are never touched take address space only.
        let whole = bytes.checked_add(HUGE)?;
        if isize::try_from(whole).is_err() {
            return None;
        }
        // SAFETY: a new private anonymous mapping touches no memory of ours.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                whole,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return None;
        }
        let skip = address.addr().next_multiple_of(HUGE) - address.addr();
        // SAFETY: `skip < HUGE`, so `skip + bytes` stays within the mapping.
        let start = unsafe { address.byte_add(skip) };
        #[cfg(target_os = "linux")]
        // SAFETY: the range is within the mapping. This is advice: a kernel without huge pages refuses it, and only
        // speed depends on it.
        unsafe {
            libc::madvise(start, bytes, libc::MADV_HUGEPAGE);
        }
        Some(Self {
            start: NonNull::new(start.cast())?,
            bytes,
            source: Source::Map {
                address,
                bytes: whole,
            },
        })
    }

    /// Number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns `len` items of `T` from byte `offset` on.
    ///
    /// # Panics
    /// If they are outside, or not aligned.
    pub(crate) fn slice<T: Pod>(&self, offset: usize, len: usize) -> &[T] {
        bytemuck::cast_slice(&self.as_bytes()[byte_range::<T>(offset, len)])
    }

    /// Returns the same to write.
    ///
    /// # Panics
    /// As [`HugePageBytes::slice`].
    pub(crate) fn slice_mut<T: Pod>(&mut self, offset: usize, len: usize) -> &mut [T] {
        let range = byte_range::<T>(offset, len);
        assert!(range.end <= self.bytes, "items outside the memory");
        // SAFETY: within the memory, whose bytes are all initialised. The reference covers these bytes alone, so that
        // pointers to other parts stay valid.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len())
        };
        bytemuck::cast_slice_mut(bytes)
    }

    fn as_bytes(&self) -> &[u8] {
        // SAFETY: all bytes are initialised, zeroed at first, and `&self` keeps others from writing.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

/// The bytes of `len` items of `T` from byte `offset` on; saturated, which is outside of any memory.
fn byte_range<T>(offset: usize, len: usize) -> Range<usize> {
    offset..offset.saturating_add(len.saturating_mul(size_of::<T>()))
}

impl Drop for HugePageBytes {
    fn drop(&mut self) {
        match self.source {
            // SAFETY: `start` came from `alloc_zeroed` with this layout and is freed once.
            Source::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            #[cfg(unix)]
            // SAFETY: the whole mapping is ours and no reference into it outlives `self`.
            Source::Map { address, bytes } => unsafe {
                libc::munmap(address, bytes);
            },
        }
    }
}

/// A slice of integers in zeroed memory, on huge pages where it is large.
#[derive(Debug)]
pub struct HugePageBuf<T> {
    memory: HugePageBytes,
    len: usize,
    kind: std::marker::PhantomData<T>,
}

impl<T: Pod> HugePageBuf<T> {
    /// Allocates `len` zeros.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`].
    pub fn zeroed(len: usize) -> Result<Self, EngineError> {
        Ok(Self {
            memory: HugePageBytes::zeroed(len.saturating_mul(size_of::<T>()))?,
            len,
            kind: std::marker::PhantomData,
        })
    }

    /// Bytes of the slice.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

impl<T: Pod> std::ops::Deref for HugePageBuf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.memory.slice(0, self.len)
    }
}

impl<T: Pod> std::ops::DerefMut for HugePageBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.memory.slice_mut(0, self.len)
    }
}

impl<T: Pod> AsRef<[T]> for HugePageBuf<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_writable() {
        for bytes in [0, 1, 64, 4096, HUGE, HUGE + 12_345] {
            let mut memory = HugePageBytes::zeroed(bytes).expect("a few MiB are there");
            assert_eq!(memory.start.as_ptr().addr() % ALIGN, 0);
            assert!(memory.slice::<u8>(0, bytes).iter().all(|&b| b == 0));
            memory.slice_mut::<u8>(0, bytes).fill(7);
            assert!(memory.slice::<u8>(0, bytes).iter().all(|&b| b == 7));
        }
    }

    #[test]
    fn too_much_memory_is_an_error() {
        for bytes in [usize::MAX, isize::MAX.cast_unsigned(), 1 << 60] {
            assert_eq!(
                HugePageBytes::zeroed(bytes).err(),
                Some(EngineError::OutOfMemory { bytes })
            );
        }
    }
}
