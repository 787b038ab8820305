//! The vector operations of the build and the search: the minimum of up to 16, or 32, neighbouring keys and the first
//! lane that has it.

use crate::cpu::rmq::levels::{BLOCK, WINDOW_LINES};
use crate::cpu::rmq::tile::{self, BlockId, Offsets, Plan, Planner, TILE, Tile};
use crate::key::{Encoding, Key};

/// Minima of neighbouring keys under a mask (bit `i` for the key at `keys + i`).
///
/// Each returns the smallest key and the first lane that has it; ([`Key::MAX`], [`NO_LANE`]) for an empty mask. The
/// lanes of a mask are contiguous.
pub(crate) trait Kernel<K: Key>: Copy {
    /// Returns the minimum of 16 keys of a level.
    ///
    /// # Safety
    /// All 16 keys can be read, and the machine has the kernel's instructions.
    unsafe fn line(keys: *const K, mask: u32) -> (K, u32);

    /// Returns the minimum of the keys of a level strictly between `first` and `last`. Both are within [`WINDOW_LINES`]
    /// consecutive lines. The lane is counted from the start of the cache line of `first`.
    ///
    /// # Safety
    /// The lines can be read, and the machine has the kernel's instructions.
    unsafe fn window(first: *const K, last: *const K) -> (K, u32);

    /// Returns the minimum of 16 stored values, which it encodes.
    ///
    /// # Safety
    /// The values under the mask can be read (the others may be outside the column), and the machine has the
    /// kernel's instructions.
    unsafe fn base(values: *const K, mask: u32, encoding: Encoding<K>) -> (K, u32);

    /// Returns the mask of those of 16 keys of a level that are at most `threshold`.
    ///
    /// # Safety
    /// As [`Kernel::line`].
    unsafe fn line_at_most(keys: *const K, mask: u32, threshold: K) -> u32;

    /// Returns the mask of the keys of a level strictly between `first` and `last` that are at most `threshold`,
    /// counted as by [`Kernel::window`].
    ///
    /// # Safety
    /// As [`Kernel::window`].
    unsafe fn window_at_most(first: *const K, last: *const K, threshold: K) -> u64;

    /// Returns the mask of those of 16 stored values, which it encodes, whose keys are at most `threshold`.
    ///
    /// # Safety
    /// As [`Kernel::base`].
    unsafe fn base_at_most(values: *const K, mask: u32, encoding: Encoding<K>, threshold: K)
    -> u32;

    /// Writes `first + i` for each bit `i` of the mask of 16 bits, in ascending order.
    ///
    /// # Safety
    /// 16 numbers can be written, and the machine has the kernel's instructions.
    #[inline(always)]
    unsafe fn numbers(first: i64, mask: u32, out: *mut i64) {
        let (mut rest, mut out) = (mask, out);
        while rest != 0 {
            // SAFETY: the mask has at most 16 bits.
            unsafe {
                out.write(first + i64::from(rest.trailing_zeros()));
                out = out.add(1);
            }
            rest &= rest - 1;
        }
    }

    /// Implements [`plan`](tile::plan) for a full tile.
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

    /// Implements [`positions`](tile::positions).
    ///
    /// # Safety
    /// As [`positions`](tile::positions), and the machine has the kernel's instructions.
    #[inline(always)]
    unsafe fn positions(
        bytes: *const u8,
        offsets: &Offsets,
        alignment_offset: usize,
        blocks: &[BlockId; TILE],
        out: &mut [i64],
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe { tile::positions(bytes, offsets, alignment_offset, blocks, out) }
    }
}

/// Returns the cache lines of a window, and the mask of the keys between `first` and `last`, counted from the start of
/// the first cache line. `N` lines are enough for [`WINDOW_LINES`] lines of keys.
///
/// A load with all lanes masked out still loads its cache line. So a line past that of `last` is replaced by that of
/// `last`, and only prefetched lines are read.
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

/// Returns the start of a key's cache line.
#[inline(always)]
fn cache_line<K>(key: *const K) -> *const K {
    key.map_addr(|at| at & !63)
}

/// Returns the mask of the lanes between `first` and `last`, counted from the start of the cache line of `first`.
#[inline(always)]
pub(crate) fn between<K>(first: *const K, last: *const K) -> u64 {
    let lane = |key: *const K| (key.addr() - cache_line(first).addr()) / size_of::<K>() % 64;
    ((1 << lane(last)) - 1) & (!1 << lane(first))
}

/// The lane of the minimum of an empty mask.
pub(crate) const NO_LANE: u32 = 64;
