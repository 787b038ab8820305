//! What the build and the search ask of a CPU's vectors: the minimum of up to 16, or 48, neighbouring keys and the
//! first lane that holds it.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub(super) mod portable;

use super::levels::{BLOCK, WINDOW_LINES};
use super::tile::{self, Offsets, Place, Plan, Planner, TILE, Tile};
use crate::{Encoding, EngineError, Key};

/// A set of vector instructions. The engine takes the best one the machine has, at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Simd {
    /// AVX-512 F, BW, DQ and VL, with BMI, LZCNT and POPCNT.
    Avx512,
    /// AVX2, with BMI, LZCNT and POPCNT.
    Avx2,
    /// What the compiler makes of loops over arrays of fixed size. On aarch64, where NEON is part of the base
    /// instruction set, that is NEON; elsewhere it is SSE2 or scalar code.
    Portable,
}

impl Simd {
    /// All of them, best first.
    pub const ALL: [Self; 3] = [Self::Avx512, Self::Avx2, Self::Portable];

    /// The best one this machine has.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL
            .into_iter()
            .find(|simd| simd.is_available())
            .unwrap_or(Self::Portable)
    }

    /// Whether this machine has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && Self::Avx2.is_available()
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("bmi1")
                    && is_x86_feature_detected!("bmi2")
                    && is_x86_feature_detected!("lzcnt")
                    && is_x86_feature_detected!("popcnt")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => false,
            Self::Portable => true,
        }
    }

    /// Itself, where this machine has it.
    pub(super) fn check(self) -> Result<Self, EngineError> {
        if self.is_available() {
            return Ok(self);
        }
        Err(EngineError::Unsupported(match self {
            Self::Avx512 => "AVX-512",
            Self::Avx2 => "AVX2",
            Self::Portable => "portable code",
        }))
    }
}

/// Minima of neighbouring keys under a mask (bit `i` for the key at `keys + i`).
///
/// Each gives the smallest key and the first lane that holds it: ([`Key::MAX`], [`NOWHERE`]) for an empty mask. Lanes of
/// a mask are neighbours: there are no holes.
pub(super) trait Kernel<K: Key>: Copy {
    /// Of 16 keys of a level.
    ///
    /// # Safety
    /// All 16 keys can be read, and the machine has the kernel's instructions.
    unsafe fn line(keys: *const K, mask: u32) -> (K, u32);

    /// Of the keys of a level strictly between `first` and `last`, which lie at most [`WINDOW_LINES`] lines apart, the first
    /// line's and the last's included. The lane counts from the start of the first line.
    ///
    /// # Safety
    /// The lines can be read, and the machine has the kernel's instructions.
    unsafe fn window(first: *const K, last: *const K) -> (K, u32);

    /// Of 16 stored values, encoded on the way.
    ///
    /// # Safety
    /// The values under the mask can be read (the others may lie outside the column), and the machine has the
    /// kernel's instructions.
    unsafe fn base(values: *const K, mask: u32, encoding: Encoding<K>) -> (K, u32);

    /// As [`plan`](tile::plan) for a full tile.
    ///
    /// # Safety
    /// The machine has the kernel's instructions.
    #[inline(always)]
    unsafe fn plan(
        planner: &Planner<K>,
        left: &[i64; TILE],
        right: &[i64; TILE],
        tile: &mut Tile<K>,
        plan: &mut Plan<K>,
    ) {
        tile::plan(planner, left, right, tile, plan);
    }

    /// As [`positions`](tile::positions).
    ///
    /// # Safety
    /// As there, and the machine has the kernel's instructions.
    #[inline(always)]
    unsafe fn positions(
        bytes: *const u8,
        offsets: &Offsets,
        lead: usize,
        places: &[Place; TILE],
        out: &mut [i64],
    ) {
        // SAFETY: as the caller vouches.
        unsafe { tile::positions(bytes, offsets, lead, places, out) }
    }
}

/// The cache lines of a window, and the mask of the keys between `first` and `last`, counted from the start of the first
/// cache line. `N` lines are enough for [`WINDOW_LINES`] lines of keys.
///
/// A load whose lanes are all masked out still brings its cache line in. So a line past that of `last` is replaced by
/// it: exactly the lines that were asked for are touched.
#[inline(always)]
fn window_lines<K, const N: usize>(first: *const K, last: *const K) -> ([*const K; N], u64) {
    const { assert!(N * 64 == WINDOW_LINES * BLOCK * size_of::<K>()) };
    let (start, end) = (cache_line(first), cache_line(last));
    let lines = std::array::from_fn(|i| start.wrapping_byte_add(64 * i).min(end));
    (lines, between(first, last))
}

/// The start of a key's cache line.
#[inline(always)]
fn cache_line<K>(key: *const K) -> *const K {
    key.map_addr(|at| at & !63)
}

/// The lanes between `first` and `last`, counted from the start of the cache line of `first`.
#[inline(always)]
fn between<K>(first: *const K, last: *const K) -> u64 {
    let lane = |key: *const K| (key.addr() - cache_line(first).addr()) / size_of::<K>() % 64;
    ((1 << lane(last)) - 1) & (!1 << lane(first))
}

/// The lane of a minimum over nothing.
pub(super) const NOWHERE: u32 = 64;

/// Asks for the cache line of an address. Any address will do: it is a hint.
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing a program can see and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
