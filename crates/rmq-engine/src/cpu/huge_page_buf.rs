//! Zeroed memory for levels and column copies: aligned to cache lines, in huge pages where it is large.
//!
//! A random line on 4 KiB pages costs two to four times one on huge pages, as each misses the TLB too; so large pieces
//! come straight from the kernel, aligned to 2 MiB and advised to be huge.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::error::EngineError;
use crate::key::Plain;

/// What memory is aligned to: a block of 16 keys of the widest kind, four cache lines. A line of keys can so be found
/// from the address of any key in it.
pub(crate) const ALIGN: usize = 256;

/// A huge page of x86-64 and of aarch64 with 4 KiB base pages.
const HUGE: usize = 2 << 20;

/// Owned bytes, zero at first, aligned to [`ALIGN`].
#[derive(Debug)]
pub(crate) struct Memory {
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

// SAFETY: `Memory` owns its bytes alone, like a `Box<[u8]>`; shared references only read.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `bytes` zeroed bytes, or an error where they cannot be had: nothing aborts.
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

    /// Fresh pages of the kernel, the first byte aligned to a huge page.
    #[cfg(unix)]
    fn mapped(bytes: usize) -> Option<Self> {
        // One huge page more than asked for, to align within; pages that nobody touches cost only addresses.
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
        // SAFETY: the range lies within the mapping. This is advice: a kernel without huge pages refuses, and nothing
        // but speed depends on it.
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

    /// Number of bytes asked for.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// `len` items of `T` from byte `offset` on.
    pub(crate) fn slice<T: Plain>(&self, offset: usize, len: usize) -> &[T] {
        self.check::<T>(offset, len);
        // SAFETY: checked to lie inside and to be aligned; the bytes are initialised (zeroed, then only ever written
        // as `Plain` items), and any bytes are a `Plain` item.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset).cast(), len) }
    }

    /// As [`Memory::slice`], to write.
    pub(crate) fn slice_mut<T: Plain>(&mut self, offset: usize, len: usize) -> &mut [T] {
        self.check::<T>(offset, len);
        // SAFETY: as in `slice`, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset).cast(), len) }
    }

    fn check<T>(&self, offset: usize, len: usize) {
        let end = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_add(offset));
        assert!(
            offset.is_multiple_of(align_of::<T>()) && end.is_some_and(|end| end <= self.bytes),
            "a part of an index lies outside its memory"
        );
    }
}

impl Drop for Memory {
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

/// Numbers of one kind in such memory.
#[derive(Debug)]
pub struct Numbers<T> {
    memory: Memory,
    len: usize,
    kind: std::marker::PhantomData<T>,
}

impl<T: Plain> Numbers<T> {
    /// `len` zeros.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`].
    pub fn zeroed(len: usize) -> Result<Self, EngineError> {
        Ok(Self {
            memory: Memory::zeroed(len.saturating_mul(size_of::<T>()))?,
            len,
            kind: std::marker::PhantomData,
        })
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

impl<T: Plain> std::ops::Deref for Numbers<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.memory.slice(0, self.len)
    }
}

impl<T: Plain> std::ops::DerefMut for Numbers<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.memory.slice_mut(0, self.len)
    }
}

impl<T: Plain> AsRef<[T]> for Numbers<T> {
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
            let mut memory = Memory::zeroed(bytes).expect("a few MiB are there");
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
                Memory::zeroed(bytes).err(),
                Some(EngineError::OutOfMemory { bytes })
            );
        }
    }
}
