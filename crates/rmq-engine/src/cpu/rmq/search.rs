//! The pruned search, many queries at a time.
//!
//! A range starts at the lowest level where it spans at most two lines of blocks (above level 3: at the sparse table on
//! level 4). The blocks inside the range give a first minimum. The two blocks at its ends extend beyond it, so their
//! minima are only lower bounds: a query descends into an end block only if that bound is smaller than its current
//! minimum (for leftmost positions, on the left, also if it is equal). On most data most queries never read the column.
//!
//! Queries are processed in tiles, and several tiles are in flight at once, each one stage apart: a stage works on
//! cache lines that the stage before prefetched while the other tiles were processed. Within a stage, queries are in
//! sets by the step to do. Sets are built without branches, so that each loop is straight-line code.

use bytemuck::Pod;

use crate::cpu::rmq::kernels::kernel::Kernel;
use crate::cpu::rmq::levels::{BLOCK, LEVELS, Levels};
use crate::cpu::rmq::next_valid::NextValid;
use crate::cpu::rmq::tile::{BlockId, Offsets, Plan, Planner, Set, TILE, Tile, plan};
use crate::cpu::simd::prefetch::prefetch;
use crate::key::{Encoding, Key};
use crate::outputs::Answers;

/// Tiles in flight.
pub(crate) const STAGES: usize = 5;

/// The indexed column that a batch is searched in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a, K> {
    pub(crate) column: &'a [K],
    /// See [`alignment_offset`](crate::cpu::rmq::levels::alignment_offset).
    pub(crate) alignment_offset: usize,
    pub(crate) encoding: Encoding<K>,
    pub(crate) levels: &'a Levels<K>,
    pub(crate) valid: Option<&'a NextValid>,
}

/// The context as addresses, for the inner loops.
pub(crate) struct BatchSearch<'a, K> {
    pub(crate) context: Context<'a, K>,
    /// The origin of the column's blocks: `alignment_offset` values before its first.
    pub(crate) base: *const K,
    pub(crate) level: [*const K; LEVELS],
    pub(crate) tops: usize,
    pub(crate) sparse: *const K,
    sparse_blocks: *const u32,
    bytes: *const u8,
    offsets: Offsets,
    planner: Planner<K>,
}

/// Answers a batch. `POSITIONS` states whether positions are tracked. The outputs have been checked.
///
/// # Safety
/// The levels (with positions where `POSITIONS`) were built of this column, or of one of the same length and alignment
/// offset, and the machine has the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn answer<K: Key + Pod, S: Kernel<K>, const POSITIONS: bool>(
    context: Context<'_, K>,
    left: &[i64],
    right: &[i64],
    mut out: Answers<'_, K>,
) {
    let search = BatchSearch::new(context);
    let mut tiles: [Tile<K>; STAGES] = std::array::from_fn(|_| Tile::new());
    let mut plans: [Plan<K>; 2] = std::array::from_fn(|_| Plan::new());
    let count = left.len().div_ceil(TILE);
    for step in 0..count + STAGES - 1 {
        // Tile `t` of the batch is in `tiles[t % STAGES]`; at this step it is at stage `step - t`.
        let stage = |stage: usize| step.checked_sub(stage).filter(|&t| t < count);
        // SAFETY: guaranteed by the caller.
        unsafe {
            if let Some(t) = stage(4) {
                let tile = &mut tiles[t % STAGES];
                search.read_column::<S, POSITIONS>(tile);
                search.write::<S, POSITIONS>(tile, &mut out);
            }
            if let Some(t) = stage(3) {
                search.descend::<S, POSITIONS>(&mut tiles[t % STAGES], 1);
            }
            if let Some(t) = stage(2) {
                search.descend::<S, POSITIONS>(&mut tiles[t % STAGES], 2);
            }
            let [even, odd] = &mut plans;
            let (now, next) = if step % 2 == 0 {
                (odd, even)
            } else {
                (even, odd)
            };
            if let Some(t) = stage(0) {
                let tile = &mut tiles[t % STAGES];
                search.plan::<S>(tile, next, t * TILE, left, right);
            }
            if let Some(t) = stage(1) {
                search.start::<S, POSITIONS>(&mut tiles[t % STAGES], now, next);
            } else {
                (0..TILE).for_each(|i| prefetch_start(next, i));
            }
        }
    }
}

/// Prefetches the cache lines that query `i` of a plan starts with.
#[inline(always)]
pub(crate) fn prefetch_start<K>(plan: &Plan<K>, i: usize) {
    let (first, last) = (plan.first[i % TILE], plan.last[i % TILE]);
    prefetch(first);
    prefetch(last);
    // Two lines of keys are two cache lines of 32-bit keys, four of 64-bit keys, and eight of 128-bit keys. The eight
    // are read sequentially, so the hardware prefetches the rest.
    if size_of::<K>() > 4 {
        prefetch(first.wrapping_byte_add(64).min(last));
        prefetch(first.wrapping_byte_add(128).min(last));
    }
}

impl<'a, K: Key + Pod> BatchSearch<'a, K> {
    pub(crate) fn new(context: Context<'a, K>) -> Self {
        let levels = context.levels;
        let mut offsets = Offsets::default();
        if levels.has_positions() {
            for (level, log_bits) in [(1, 2), (2, 3), (3, 4), (4, 4)] {
                offsets.start[level] = levels.offset_start(level - 1) as u64;
                offsets.keep[level] = !0;
                offsets.log_bits[level] = log_bits;
                offsets.mask[level] = (1 << (1 << log_bits)) - 1;
                offsets.shift[level] = 4 * level as u64;
            }
        }
        let level = std::array::from_fn(|k| levels.level(k).as_ptr());
        Self {
            context,
            base: context
                .column
                .as_ptr()
                .wrapping_sub(context.alignment_offset),
            level,
            tops: levels.layout().len[LEVELS - 1],
            sparse: levels.sparse().as_ptr(),
            sparse_blocks: levels.sparse_blocks().as_ptr(),
            bytes: levels.bytes().as_ptr(),
            offsets,
            planner: Planner {
                // Lengths of slices fit `i64`.
                last: context.column.len() as i64 - 1,
                alignment_offset: context.alignment_offset,
                level,
            },
        }
    }

    /// Stage 0: loads queries into a tile, and plans where they start.
    #[inline(always)]
    pub(crate) unsafe fn plan<S: Kernel<K>>(
        &self,
        tile: &mut Tile<K>,
        next: &mut Plan<K>,
        first: usize,
        left: &[i64],
        right: &[i64],
    ) {
        let (left, right) = (&left[first..], &right[first..]);
        tile.first = first;
        tile.len = left.len().min(TILE);
        // The bounds are read sequentially, but the hardware prefetcher stops at the end of each page.
        for line in (0..TILE).step_by(8) {
            prefetch(left.as_ptr().wrapping_add(4 * TILE + line));
            prefetch(right.as_ptr().wrapping_add(4 * TILE + line));
        }
        if let (Some(left), Some(right)) = (left.first_chunk(), right.first_chunk()) {
            // SAFETY: guaranteed by the caller.
            unsafe { S::plan(&self.planner, left, right, tile, next) };
        } else {
            plan(&self.planner, left, right, tile, next);
        }
    }

    /// Stage 1: the blocks inside the range, at the level where it starts. After each query it prefetches the lines of
    /// one query of the next tile, so that their latency overlaps with this work.
    #[inline(always)]
    unsafe fn start<S: Kernel<K>, const POSITIONS: bool>(
        &self,
        tile: &mut Tile<K>,
        now: &Plan<K>,
        next: &Plan<K>,
    ) {
        let mut prefetched = 0;
        let (mut go_left, mut go_right) = (0, 0);
        for q in Set(tile.start[0] | tile.start[1] | tile.start[2]) {
            let (first, last) = (now.first[q], now.last[q]);
            // SAFETY: `first` and `last` are keys of one level, at most a window apart.
            let ((best, lane), at_left, at_right) =
                unsafe { (S::window(first, last), *first, *last) };
            tile.best[q] = best;
            if POSITIONS {
                // The lane for now; replaced by the block below.
                tile.minimum[q] = BlockId(lane.into());
            }
            go_left |= Set::one(q, beats_left::<K, POSITIONS>(at_left, best));
            go_right |= Set::one(q, (first != last) & (at_right < best));
            prefetch_start(next, prefetched);
            prefetched += 1;
        }
        if POSITIONS {
            for level in 1..LEVELS {
                for q in Set(tile.start[level - 1]) {
                    // Without a block inside the range this id is replaced by that of the left end.
                    let line = (tile.left[q] >> (4 * level)) & !(64 / size_of::<K>() - 1);
                    let block = line + tile.minimum[q].block();
                    tile.minimum[q] = BlockId::new(level, block);
                    if level == 1 {
                        prefetch(
                            self.bytes
                                .wrapping_add(self.offsets.start[1] as usize + block / 2),
                        );
                    }
                }
            }
        }
        for level in 1..LEVELS {
            let start = tile.start[level - 1];
            tile.down_left[level - 1] = go_left & start;
            tile.down_right[level - 1] = go_right & start;
        }
        let (mut go_left, mut go_right) = (0, 0);
        for q in Set(tile.start[3]) {
            // SAFETY: guaranteed by the caller.
            let (left, right) = unsafe { self.start_sparse::<POSITIONS>(tile, q) };
            go_left |= left;
            go_right |= right;
            prefetch_start(next, prefetched);
            prefetched += 1;
        }
        for i in prefetched..TILE {
            prefetch_start(next, i);
        }
        tile.down_left[3] = go_left;
        tile.down_right[3] = go_right;
        // Lines of level 3 are in cache, so they need no stage of their own.
        // SAFETY: guaranteed by the caller.
        unsafe { self.descend::<S, POSITIONS>(tile, 3) };
        for below in 0..3 {
            let line = self.lines(below);
            let shift = 4 * below;
            for q in Set(tile.down_left[below] & tile.start[below]) {
                prefetch_from(line.wrapping_add(tile.left[q] >> shift));
            }
            for q in Set(tile.down_right[below] & tile.start[below]) {
                prefetch_to(line.wrapping_add(tile.right[q] >> shift));
            }
        }
    }

    /// Starts a query with the sparse table on level 4. Returns the sets of those that descend on the left and on the
    /// right.
    #[inline(always)]
    unsafe fn start_sparse<const POSITIONS: bool>(
        &self,
        tile: &mut Tile<K>,
        q: usize,
    ) -> (u64, u64) {
        let (l, r) = (tile.left[q], tile.right[q]);
        let (first, last) = (l >> 16, r >> 16);
        // At least one block is inside, because the range spans more than a window of level 3.
        let inner = last - first - 1;
        let row = (inner | 1).ilog2() as usize;
        let (i, j) = (first + 1, last - (1 << row));
        // SAFETY: `i + 2^row <= last` and `j + 2^row = last`, both within the table's row; `first` and `last` are
        // blocks of level 4.
        unsafe {
            let table = self.sparse.add(row * self.tops);
            let (a, b) = (*table.add(i), *table.add(j));
            let best = a.min(b);
            tile.best[q] = best;
            if POSITIONS {
                let from = if b < a { j } else { i };
                let block = *self.sparse_blocks.add(row * self.tops + from) as usize;
                tile.minimum[q] = BlockId::new(4, block);
            }
            let (at_left, at_right) = (*self.level[3].add(first), *self.level[3].add(last));
            (
                Set::one(q, beats_left::<K, POSITIONS>(at_left, best)),
                Set::one(q, at_right < best),
            )
        }
    }

    /// Returns the keys of level `level`, 0 for the column.
    #[inline(always)]
    pub(crate) fn lines(&self, level: usize) -> *const K {
        if level == 0 {
            self.base
        } else {
            self.level[level - 1]
        }
    }

    /// Descends into the lines of level `level` (1 to 3) below end blocks whose bound is smaller than the current
    /// minimum.
    #[inline(always)]
    unsafe fn descend<S: Kernel<K>, const POSITIONS: bool>(
        &self,
        tile: &mut Tile<K>,
        level: usize,
    ) {
        let keys = self.level[level - 1];
        let below = self.lines(level - 1);
        let shift = 4 * level;
        let mut go = 0;
        for q in Set(tile.down_left[level]) {
            let child = tile.left[q] >> shift;
            let first = child & !(BLOCK - 1);
            // The children right of the one that the range begins in.
            let mask = (0xFFFE << (child % BLOCK)) & 0xFFFF;
            // SAFETY: lines of a level are complete, padding included.
            let ((key, lane), at_left) =
                unsafe { (S::line(keys.add(first), mask), *keys.add(child)) };
            let best = tile.best[q];
            if POSITIONS {
                let better = (key <= best) & (mask != 0);
                let block = BlockId::new(level, first + lane as usize % BLOCK);
                tile.minimum[q] = if better { block } else { tile.minimum[q] };
            }
            let best = best.min(key);
            tile.best[q] = best;
            let on = beats_left::<K, POSITIONS>(at_left, best);
            go |= Set::one(q, on);
            let key = below.wrapping_add(tile.left[q] >> (shift - 4));
            prefetch_from(if on { key } else { self.level[3] });
        }
        tile.down_left[level - 1] |= go;
        let mut go = 0;
        for q in Set(tile.down_right[level]) {
            let child = tile.right[q] >> shift;
            let first = child & !(BLOCK - 1);
            // The children left of the one that the range ends in.
            let mask = (1 << (child % BLOCK)) - 1;
            // SAFETY: lines of a level are complete, padding included.
            let ((key, lane), at_right) =
                unsafe { (S::line(keys.add(first), mask), *keys.add(child)) };
            let best = tile.best[q];
            if POSITIONS {
                let block = BlockId::new(level, first + lane as usize % BLOCK);
                tile.minimum[q] = if key < best { block } else { tile.minimum[q] };
            }
            let best = best.min(key);
            tile.best[q] = best;
            let on = at_right < best;
            go |= Set::one(q, on);
            let key = below.wrapping_add(tile.right[q] >> (shift - 4));
            prefetch_to(if on { key } else { self.level[3] });
        }
        tile.down_right[level - 1] |= go;
    }

    /// The last stage: values of the column itself.
    #[inline(always)]
    unsafe fn read_column<S: Kernel<K>, const POSITIONS: bool>(&self, tile: &mut Tile<K>) {
        for q in Set(tile.down_left[0]) {
            let (l, r) = (tile.left[q], tile.right[q]);
            let first = l & !(BLOCK - 1);
            let above = (0xFFFF << (l % BLOCK)) & 0xFFFF;
            let below = 0xFFFF >> (BLOCK - 1 - r % BLOCK);
            let mask = if l ^ r < BLOCK { above & below } else { above };
            // SAFETY: the mask leaves only values of the range, which are in the column.
            unsafe {
                let (key, lane) =
                    S::base(self.base.wrapping_add(first), mask, self.context.encoding);
                let best = tile.best[q];
                if POSITIONS {
                    let block = BlockId::new(0, first + lane as usize);
                    tile.minimum[q] = if key <= best { block } else { tile.minimum[q] };
                }
                tile.best[q] = best.min(key);
            }
        }
        for q in Set(tile.down_right[0]) {
            let r = tile.right[q];
            let first = r & !(BLOCK - 1);
            let mask = 0xFFFF >> (BLOCK - 1 - r % BLOCK);
            // SAFETY: this block is not the range's first, so all of its values up to `r` are in the range.
            unsafe {
                let (key, lane) =
                    S::base(self.base.wrapping_add(first), mask, self.context.encoding);
                let best = tile.best[q];
                if POSITIONS {
                    let block = BlockId::new(0, first + lane as usize);
                    tile.minimum[q] = if key < best { block } else { tile.minimum[q] };
                }
                tile.best[q] = best.min(key);
            }
        }
    }

    /// Writes the outputs of a tile.
    #[inline(always)]
    unsafe fn write<S: Kernel<K>, const POSITIONS: bool>(
        &self,
        tile: &mut Tile<K>,
        out: &mut Answers<'_, K>,
    ) {
        let (first, len) = (tile.first, tile.len);
        let mut some = tile.some;
        let all = if len == TILE { !0 } else { (1 << len) - 1 };
        let none = all & !some;
        for q in Set(none) {
            tile.best[q] = K::MAX;
            tile.minimum[q] = BlockId(self.context.alignment_offset as u64);
        }
        if let Some(values) = &mut out.values {
            values[first..first + len].copy_from_slice(&tile.best[..len]);
        }
        if POSITIONS && let Some(positions) = &mut out.positions {
            let positions = &mut positions[first..first + len];
            // SAFETY: guaranteed by the caller.
            unsafe {
                S::positions(
                    self.bytes,
                    &self.offsets,
                    self.context.alignment_offset,
                    &tile.minimum,
                    positions,
                );
            }
        }
        if let Some(valid) = self.context.valid {
            for q in Set(some) {
                if tile.best[q] == K::MAX {
                    let alignment_offset = self.context.alignment_offset;
                    let next = valid.next(tile.left[q] - alignment_offset);
                    let found = next.filter(|&at| at <= tile.right[q] - alignment_offset);
                    if found.is_none() {
                        some &= !(1 << q);
                    }
                    if POSITIONS && let Some(positions) = &mut out.positions {
                        positions[first + q] = found.map_or(0, |at| at as i64);
                    }
                }
            }
        }
        out.valid[first / TILE] = some;
    }
}

/// Prefetches what a descent at a left end reads: from `key` to the end of its block.
///
/// Callers without a descent prefetch a line that is in cache: a branch would often be mispredicted.
#[inline(always)]
fn prefetch_from<K>(key: *const K) {
    prefetch(key);
    if size_of::<K>() > 4 {
        let block = size_of::<K>() * BLOCK;
        prefetch(key.wrapping_byte_add((block - 1) & !key.addr()));
    }
}

/// Prefetches what a descent at a right end reads: from the start of the block to `key`.
#[inline(always)]
fn prefetch_to<K>(key: *const K) {
    prefetch(key);
    if size_of::<K>() > 4 {
        let block = size_of::<K>() * BLOCK;
        prefetch(key.wrapping_byte_sub((block - 1) & key.addr()));
    }
}

/// Returns whether a query with the current minimum `best` descends into the block at its left end, whose minimum is
/// `key`.
///
/// For the leftmost position it does so also if they are equal: the first such key may be in the range.
#[inline(always)]
fn beats_left<K: Key, const POSITIONS: bool>(key: K, best: K) -> bool {
    if POSITIONS { key <= best } else { key < best }
}
