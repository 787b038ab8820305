//! Column memory in pages of a chosen size.

use std::ops::{Deref, DerefMut};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// 2 MiB where the kernel grants them.
    Huge,
    /// 4 KiB.
    Small,
}

impl Pages {
    pub fn name(self) -> &'static str {
        match self {
            Self::Huge => "huge pages",
            Self::Small => "4 KiB pages",
        }
    }

    /// Lets `work` have memory of these pages only, whatever it advises.
    pub fn during<R>(self, work: impl FnOnce() -> R) -> R {
        #[cfg(target_os = "linux")]
        let forbid = |forbidden: libc::c_ulong| {
            // SAFETY: switches huge pages of this process off or on, for memory that is touched from now on.
            unsafe {
                libc::prctl(libc::PR_SET_THP_DISABLE, forbidden, 0, 0, 0);
            }
        };
        #[cfg(not(target_os = "linux"))]
        let forbid = |_: libc::c_ulong| {};
        forbid(libc::c_ulong::from(self == Self::Small));
        let result = work();
        forbid(0);
        result
    }
}

/// Values in memory of their own, straight from the kernel.
pub struct Values<T> {
    map: *mut libc::c_void,
    bytes: usize,
    start: *mut T,
    len: usize,
}

const HUGE: usize = 2 << 20;

impl<T: Copy> Values<T> {
    pub fn zeroed(len: usize, pages: Pages) -> Self {
        let bytes = len * size_of::<T>() + HUGE;
        let advice = match pages {
            Pages::Huge => libc::MADV_HUGEPAGE,
            Pages::Small => libc::MADV_NOHUGEPAGE,
        };
        // SAFETY: a new private mapping, advised as a whole; `start` leaves the asked length inside it.
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
            let skip = map.addr().next_multiple_of(HUGE) - map.addr();
            Self {
                map,
                bytes,
                start: map.byte_add(skip).cast(),
                len,
            }
        }
    }
}

impl<T> Deref for Values<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: mapped, zeroed, and only numbers are kept here.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T> DerefMut for Values<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

// SAFETY: owned memory of numbers, only read while shared.
unsafe impl<T: Send> Send for Values<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Values<T> {}

impl<T> Drop for Values<T> {
    fn drop(&mut self) {
        // SAFETY: our mapping, unmapped once.
        unsafe {
            libc::munmap(self.map, self.bytes);
        }
    }
}
