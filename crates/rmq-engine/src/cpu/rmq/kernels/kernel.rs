//! What the build and the search ask of a CPU's vectors: the minimum of up to 16, or 48, neighbouring keys and the
//! first lane that holds it.

use crate::cpu::rmq::levels::{BLOCK, WINDOW_LINES};
use crate::cpu::rmq::tile::{self, Offsets, Place, Plan, Planner, TILE, Tile};
use crate::key::{Encoding, Key};

/// Minima of neighbouring keys under a mask (bit `i` for the key at `keys + i`).
///
/// Each gives the smallest key and the first lane that holds it: ([`Key::MAX`], [`NOWHERE`]) for an empty mask. Lanes of
/// a mask are neighbours: there are no holes.
pub(crate) trait Kernel<K: Key>: Copy {
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
        alignment_offset: usize,
        places: &[Place; TILE],
        out: &mut [i64],
    ) {
        // SAFETY: as the caller vouches.
        unsafe { tile::positions(bytes, offsets, alignment_offset, places, out) }
    }
}

/// The cache lines of a window, and the mask of the keys between `first` and `last`, counted from the start of the first
/// cache line. `N` lines are enough for [`WINDOW_LINES`] lines of keys.
///
/// A load whose lanes are all masked out still brings its cache line in. So a line past that of `last` is replaced by
/// it: exactly the lines that were asked for are touched.
#[inline(always)]
pub(crate) fn window_lines<K, const N: usize>(
    first: *const K,
    last: *const K,
) -> ([*const K; N], u64) {
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
pub(crate) fn between<K>(first: *const K, last: *const K) -> u64 {
    let lane = |key: *const K| (key.addr() - cache_line(first).addr()) / size_of::<K>() % 64;
    ((1 << lane(last)) - 1) & (!1 << lane(first))
}

/// The lane of a minimum over nothing.
pub(crate) const NOWHERE: u32 = 64;
