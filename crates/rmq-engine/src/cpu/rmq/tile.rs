//! A tile: queries that pass the search together, so that their cache misses overlap.

use crate::cpu::rmq::levels::{LEVELS, WINDOW_LINES};
use crate::key::Key;

/// Queries in a tile: one per bit of a word, and few enough that all tiles in flight stay in the L1 cache.
pub(crate) const TILE: usize = 64;

/// A set of queries of a tile. Unlike a list, insertion takes no branch and no memory access.
#[derive(Debug)]
pub(crate) struct Set(pub(crate) u64);

impl Set {
    /// Returns the bit of this query if `wanted`, else 0.
    #[inline(always)]
    pub(crate) fn one(query: usize, wanted: bool) -> u64 {
        u64::from(wanted) << (query % TILE)
    }
}

impl Iterator for Set {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        // Always below 64; `% TILE` lets the compiler omit bounds checks.
        let query = self.0.trailing_zeros() as usize % TILE;
        self.0 &= self.0 - 1;
        Some(query)
    }
}

/// The smallest block known to contain the minimum of a query: its number, and its level (0: a single position).
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct BlockId(pub(crate) u64);

impl BlockId {
    /// Block numbers and positions stay below 2^47 (see `Layout::new`), so the level fits above.
    pub(crate) const LEVEL_SHIFT: u32 = 56;

    #[inline(always)]
    pub(crate) fn new(level: usize, block: usize) -> Self {
        Self((level as u64) << Self::LEVEL_SHIFT | block as u64)
    }

    #[inline(always)]
    pub(crate) fn level(self) -> usize {
        (self.0 >> Self::LEVEL_SHIFT) as usize
    }

    #[inline(always)]
    pub(crate) fn block(self) -> usize {
        (self.0 & ((1 << Self::LEVEL_SHIFT) - 1)) as usize
    }
}

/// Where the queries of a tile start.
#[derive(Debug)]
pub(crate) struct Plan<K> {
    /// The addresses of the keys of the first and of the last block, at the level where a query starts.
    pub(crate) first: [*const K; TILE],
    pub(crate) last: [*const K; TILE],
}

impl<K> Plan<K> {
    pub(crate) fn new() -> Self {
        Self {
            first: [std::ptr::null(); TILE],
            last: [std::ptr::null(); TILE],
        }
    }
}

/// The state of the queries of a tile.
#[derive(Debug)]
pub(crate) struct Tile<K> {
    /// Inclusive bounds, clipped, counted from the origin of blocks. Those of position 0 if a range is empty.
    pub(crate) left: [usize; TILE],
    pub(crate) right: [usize; TILE],
    /// The smallest key found so far.
    pub(crate) best: [K; TILE],
    /// The block that contains it.
    pub(crate) minimum: [BlockId; TILE],
    /// Queries whose range is not empty.
    pub(crate) some: u64,
    /// Queries by the level they start at: 1 to 3 with a window, 4 with the sparse table.
    pub(crate) start: [u64; LEVELS],
    /// Queries that descend at their left end into a line of level `k` (0: of the column).
    pub(crate) down_left: [u64; LEVELS],
    /// Queries that descend at their right end.
    pub(crate) down_right: [u64; LEVELS],
    /// The index of the first query in the batch, and the number of queries.
    pub(crate) first: usize,
    pub(crate) len: usize,
}

impl<K: Key> Tile<K> {
    pub(crate) fn new() -> Self {
        Self {
            left: [0; TILE],
            right: [0; TILE],
            best: [K::MAX; TILE],
            minimum: [BlockId(0); TILE],
            some: 0,
            start: [0; LEVELS],
            down_left: [0; LEVELS],
            down_right: [0; LEVELS],
            first: 0,
            len: 0,
        }
    }
}

/// The inputs of [`plan`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planner<K> {
    /// The last position of the column; -1 if it is empty.
    pub(crate) last: i64,
    /// See [`alignment_offset`](crate::cpu::rmq::levels::alignment_offset).
    pub(crate) alignment_offset: usize,
    /// The keys of each level.
    pub(crate) level: [*const K; LEVELS],
}

/// Clips bounds, and computes where each query starts: one query after the other.
#[inline(always)]
pub(crate) fn plan<K: Key>(
    planner: &Planner<K>,
    left: &[i64],
    right: &[i64],
    tile: &mut Tile<K>,
    plan: &mut Plan<K>,
) {
    let (mut some, mut wide) = (0, [0; 3]);
    for (q, (&l, &r)) in left.iter().zip(right).take(TILE).enumerate() {
        let (l, r) = (l.max(0), r.min(planner.last));
        let is_some = l <= r;
        let (l, r) = if is_some { (l, r) } else { (0, 0) };
        let (l, r) = (
            l as usize + planner.alignment_offset,
            r as usize + planner.alignment_offset,
        );
        tile.left[q] = l;
        tile.right[q] = r;
        some |= Set::one(q, is_some);
        let mut level = 0;
        for (k, wide) in wide.iter_mut().enumerate() {
            // Lines of level `k + 1`.
            let shift = 4 * (k + 2);
            let is_wide = (r >> shift) - (l >> shift) >= WINDOW_LINES;
            *wide |= Set::one(q, is_wide);
            level += usize::from(is_wide);
        }
        let keys = planner.level[level];
        let shift = 4 * (level + 1);
        plan.first[q] = keys.wrapping_add(l >> shift);
        plan.last[q] = keys.wrapping_add(r >> shift);
    }
    tile.set_starts(some, wide);
}

impl<K> Tile<K> {
    /// Partitions the queries by the level where they start; `wide[k]` has those too wide for a window of level
    /// `k + 1`.
    #[inline(always)]
    pub(crate) fn set_starts(&mut self, some: u64, wide: [u64; 3]) {
        self.some = some;
        self.start = [
            some & !wide[0],
            some & wide[0] & !wide[1],
            some & wide[1] & !wide[2],
            some & wide[2],
        ];
        self.down_left = [0; LEVELS];
        self.down_right = [0; LEVELS];
    }
}

/// The location of the offset of a block's first minimum, by level: `bits` bits from bit `start * 8 + block * bits` on.
/// Eight entries, the lanes of a vector; the last ones are not used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Offsets {
    /// First byte.
    pub(crate) start: [u64; 8],
    /// All bits; none for level 0, where block numbers are positions: these read the first entry, and mask it out.
    pub(crate) keep: [u64; 8],
    /// Binary logarithm of the bits per entry.
    pub(crate) log_bits: [u64; 8],
    pub(crate) mask: [u64; 8],
    /// Binary logarithm of the positions per block.
    pub(crate) shift: [u64; 8],
}

/// Resolves blocks to the positions of their minima, counted from the column's first value: one after the other.
///
/// # Safety
/// `bytes` is the index that `offsets` and `blocks` belong to.
#[inline(always)]
pub(crate) unsafe fn positions(
    bytes: *const u8,
    offsets: &Offsets,
    alignment_offset: usize,
    blocks: &[BlockId; TILE],
    out: &mut [i64],
) {
    for (block_id, out) in blocks.iter().zip(out) {
        let (level, block) = (block_id.level() % 8, block_id.block() as u64);
        let bit = (block & offsets.keep[level]) << offsets.log_bits[level];
        // SAFETY: `Layout` gives each array of offsets eight bytes more than its entries.
        let word = unsafe {
            bytes
                .add((offsets.start[level] + bit / 8) as usize)
                .cast::<u64>()
                .read_unaligned()
        };
        let within = (u64::from_le(word) >> (bit % 8)) & offsets.mask[level];
        *out = ((block << offsets.shift[level]) + within) as i64 - alignment_offset as i64;
    }
}
