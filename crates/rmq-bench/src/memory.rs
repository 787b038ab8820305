//! Memory: columns in pages of a chosen size, and what the system and the allocator have free.

use std::ops::{Deref, DerefMut};

/// The size of a column's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// 2 MiB, where the kernel grants them.
    Huge,
    /// 4 KiB.
    Small,
}

impl Pages {
    /// Returns the name for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Huge => "huge pages",
            Self::Small => "4 KiB pages",
        }
    }

    /// Runs `work` so that all memory which it touches first has pages of this size, whatever `work` advises.
    pub fn during<R>(self, work: impl FnOnce() -> R) -> R {
        #[cfg(target_os = "linux")]
        let disable_huge = |disable: libc::c_ulong| {
            // SAFETY: switches huge pages of this process off or on, for memory that is touched from now on.
            unsafe {
                libc::prctl(libc::PR_SET_THP_DISABLE, disable, 0, 0, 0);
            }
        };
        #[cfg(not(target_os = "linux"))]
        let disable_huge = |_: libc::c_ulong| {};
        disable_huge(libc::c_ulong::from(self == Self::Small));
        let result = work();
        disable_huge(0);
        result
    }
}

/// A slice of numbers in a memory mapping of its own.
#[derive(Debug)]
pub struct MappedSlice<T> {
    map: *mut libc::c_void,
    bytes: usize,
    start: *mut T,
    len: usize,
}

const HUGE_PAGE_BYTES: usize = 2 << 20;

impl<T: Copy> MappedSlice<T> {
    /// Maps `len` zeroed numbers, aligned to huge pages.
    ///
    /// # Panics
    /// Where the system has no memory.
    #[must_use]
    pub fn zeroed(len: usize, pages: Pages) -> Self {
        let bytes = len * size_of::<T>() + HUGE_PAGE_BYTES;
        let advice = match pages {
            Pages::Huge => libc::MADV_HUGEPAGE,
            Pages::Small => libc::MADV_NOHUGEPAGE,
        };
        // SAFETY: a new private mapping, advised as a whole; `len` numbers from `start` on are inside it.
        unsafe {
            let map = libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(
                map,
                libc::MAP_FAILED,
                "no memory for a column of {len} values"
            );
            libc::madvise(map, bytes, advice);
            let skip = map.addr().next_multiple_of(HUGE_PAGE_BYTES) - map.addr();
            Self {
                map,
                bytes,
                start: map.byte_add(skip).cast(),
                len,
            }
        }
    }
}

impl<T> Deref for MappedSlice<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: mapped, zeroed, and only numbers are kept here.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T> DerefMut for MappedSlice<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

// SAFETY: owned memory of numbers, only read while shared.
unsafe impl<T: Send> Send for MappedSlice<T> {}
// SAFETY: owned memory of numbers, only read while shared.
unsafe impl<T: Sync> Sync for MappedSlice<T> {}

impl<T> Drop for MappedSlice<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this slice and is unmapped once.
        unsafe {
            libc::munmap(self.map, self.bytes);
        }
    }
}

/// Returns the bytes of memory that programs can still have, where the system reports it.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Whether a column of this many bytes fits the memory that is available, with half as much beside it.
pub fn has_room(bytes: u64) -> bool {
    available_bytes().is_none_or(|available| bytes + bytes / 2 < available)
}

/// Returns the bytes that the allocator has handed out and not got back; 0 where it does not count them.
#[must_use]
pub fn allocated_bytes() -> u64 {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes no arguments, and the allocator locks itself.
        let info = unsafe { libc::mallinfo2() };
        (info.uordblks + info.hblkhd) as u64
    }
    #[cfg(not(target_env = "gnu"))]
    0
}

/// Returns memory that the allocator keeps for later to the system, where it can.
pub fn release_unused() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes any argument, and the allocator locks itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The memory of this process that is in RAM, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Resident {
    /// Now.
    pub now: usize,
    /// The most since the start or since [`Self::reset_peak`].
    pub peak: usize,
}

impl Resident {
    /// Reads what Linux reports; none on other systems.
    #[must_use]
    pub fn now() -> Option<Self> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: usize = line.split_whitespace().next()?.parse().ok()?;
            Some(kib * 1024)
        };
        Some(Self {
            now: field("VmRSS:")?,
            peak: field("VmHWM:")?,
        })
    }

    /// Begins a new peak; returns the bytes in RAM now, or none where the system has no such counter.
    #[must_use]
    pub fn reset_peak() -> Option<usize> {
        std::fs::write("/proc/self/clear_refs", "5").ok()?;
        Some(Self::now()?.now)
    }
}
