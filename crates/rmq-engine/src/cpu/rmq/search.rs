//! The pruned search, many queries at a time.
//!
//! A range starts at the lowest level where it spans at most two lines of blocks (above level 3: at the sparse table
//! on level 4). The blocks inside the range give a first minimum. The two blocks at its ends reach beyond it, so
//! their minima are only lower bounds: a range goes down into an end block only where that bound beats what it
//! holds (for leftmost positions: on the left, where it equals it too). On most data most ranges never see the column.
//!
//! Queries go through in tiles, and several tiles are under way at once, each a stage apart: a stage works on lines
//! that the stage before asked for while the other tiles were worked on. Within a stage queries are kept in sets by
//! what is to be done, built without branches, so that each loop is straight code.

use bytemuck::Pod;

use crate::cpu::rmq::kernels::kernel::Kernel;
use crate::cpu::rmq::levels::{BLOCK, LEVELS, Levels};
use crate::cpu::rmq::next_valid::NextValid;
use crate::cpu::rmq::tile::{Offsets, Place, Plan, Planner, Set, TILE, Tile, plan};
use crate::cpu::simd::prefetch::prefetch;
use crate::key::{Encoding, Key};
use crate::outputs::Answers;

/// Tiles under way.
const STAGES: usize = 5;

/// What a batch is searched in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a, K> {
    pub(crate) column: &'a [K],
    /// How many values the first block lacks before the column's first.
    pub(crate) alignment_offset: usize,
    pub(crate) encoding: Encoding<K>,
    pub(crate) levels: &'a Levels<K>,
    pub(crate) valid: Option<&'a NextValid>,
}

/// The context, unpacked to what the loops need.
struct Search<'a, K> {
    context: Context<'a, K>,
    /// The column from the origin of its blocks on: `alignment_offset` values before its first.
    base: *const K,
    level: [*const K; LEVELS],
    tops: usize,
    sparse: *const K,
    sparse_place: *const u32,
    bytes: *const u8,
    offsets: Offsets,
    planner: Planner<K>,
}

/// Answers a batch. `POSITIONS` says whether positions are tracked; outputs have been checked.
///
/// # Safety
/// The levels (with positions where `POSITIONS`) were built of this column, or of one of the same length and alignment_offset, and
/// the machine has the instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn answer<K: Key + Pod, S: Kernel<K>, const POSITIONS: bool>(
    context: Context<'_, K>,
    left: &[i64],
    right: &[i64],
    mut out: Answers<'_, K>,
) {
    let search = Search::new(context);
    let mut tiles: [Tile<K>; STAGES] = std::array::from_fn(|_| Tile::new());
    let mut plans: [Plan<K>; 2] = std::array::from_fn(|_| Plan::new());
    let count = left.len().div_ceil(TILE);
    for step in 0..count + STAGES - 1 {
        // Tile `t` of the batch lives in `tiles[t % STAGES]`; at this step it is at stage `step - t`.
        let stage = |stage: usize| step.checked_sub(stage).filter(|&t| t < count);
        // SAFETY: as the caller vouches.
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
                (0..TILE).for_each(|i| ask(next, i));
            }
        }
    }
}

/// Asks for the cache lines that query `i` of a plan starts with.
#[inline(always)]
fn ask<K>(plan: &Plan<K>, i: usize) {
    let (first, last) = (plan.first[i % TILE], plan.last[i % TILE]);
    prefetch(first);
    prefetch(last);
    // Two lines of keys are two cache lines of 32-bit keys, but four of 64-bit ones. (Of 128-bit keys they are eight, read
    // one after the other, which the machine foresees.)
    if size_of::<K>() > 4 {
        prefetch(first.wrapping_byte_add(64).min(last));
        prefetch(first.wrapping_byte_add(128).min(last));
    }
}

impl<'a, K: Key + Pod> Search<'a, K> {
    fn new(context: Context<'a, K>) -> Self {
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
            sparse_place: levels.sparse_place().as_ptr(),
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

    /// Stage 0: takes queries into a tile, and plans where they start.
    #[inline(always)]
    unsafe fn plan<S: Kernel<K>>(
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
        // The bounds come in order, but the machine's own prefetcher stops at the end of each page.
        for line in (0..TILE).step_by(8) {
            prefetch(left.as_ptr().wrapping_add(4 * TILE + line));
            prefetch(right.as_ptr().wrapping_add(4 * TILE + line));
        }
        if let (Some(left), Some(right)) = (left.first_chunk(), right.first_chunk()) {
            // SAFETY: as the caller vouches.
            unsafe { S::plan(&self.planner, left, right, tile, next) };
        } else {
            plan(&self.planner, left, right, tile, next);
        }
    }

    /// Stage 1: the blocks inside the range, at the level where it starts. Meanwhile asks for the lines of the tile that
    /// is a stage behind, a query each time, so that their way from memory overlaps with the work here.
    #[inline(always)]
    unsafe fn start<S: Kernel<K>, const POSITIONS: bool>(
        &self,
        tile: &mut Tile<K>,
        now: &Plan<K>,
        next: &Plan<K>,
    ) {
        let mut asked = 0;
        let (mut go_left, mut go_right) = (0, 0);
        for q in Set(tile.start[0] | tile.start[1] | tile.start[2]) {
            let (first, last) = (now.first[q], now.last[q]);
            // SAFETY: `first` and `last` are keys of one level, at most a window apart.
            let ((best, lane), at_left, at_right) =
                unsafe { (S::window(first, last), *first, *last) };
            tile.best[q] = best;
            if POSITIONS {
                // Relative to nothing yet; see below.
                tile.place[q] = Place(lane.into());
            }
            go_left |= Set::one(q, beats_left::<K, POSITIONS>(at_left, best));
            go_right |= Set::one(q, (first != last) & (at_right < best));
            ask(next, asked);
            asked += 1;
        }
        if POSITIONS {
            for level in 1..LEVELS {
                for q in Set(tile.start[level - 1]) {
                    // Over no block this is a place that the left end is about to replace.
                    let line = (tile.left[q] >> (4 * level)) & !(64 / size_of::<K>() - 1);
                    let block = line + tile.place[q].block();
                    tile.place[q] = Place::new(level, block);
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
            // SAFETY: as the caller vouches.
            let (left, right) = unsafe { self.start_sparse::<POSITIONS>(tile, q) };
            go_left |= left;
            go_right |= right;
            ask(next, asked);
            asked += 1;
        }
        for i in asked..TILE {
            ask(next, i);
        }
        tile.down_left[3] = go_left;
        tile.down_right[3] = go_right;
        // Lines of level 3 are hot, so they need no stage of their own.
        // SAFETY: as the caller vouches.
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

    /// Starts a query with the sparse table on level 4: whether it goes down on the left and on the right.
    #[inline(always)]
    unsafe fn start_sparse<const POSITIONS: bool>(
        &self,
        tile: &mut Tile<K>,
        q: usize,
    ) -> (u64, u64) {
        let (l, r) = (tile.left[q], tile.right[q]);
        let (first, last) = (l >> 16, r >> 16);
        // At least one block lies between, as the range spans more than a window of level 3.
        let inner = last - first - 1;
        let row = (inner | 1).ilog2() as usize;
        let (i, j) = (first + 1, last - (1 << row));
        // SAFETY: `i + 2^row <= last` and `j + 2^row = last`, both within the table's row; `first` and `last` are blocks
        // of level 4.
        unsafe {
            let table = self.sparse.add(row * self.tops);
            let (a, b) = (*table.add(i), *table.add(j));
            let best = a.min(b);
            tile.best[q] = best;
            if POSITIONS {
                let from = if b < a { j } else { i };
                let block = *self.sparse_place.add(row * self.tops + from) as usize;
                tile.place[q] = Place::new(4, block);
            }
            let (at_left, at_right) = (*self.level[3].add(first), *self.level[3].add(last));
            (
                Set::one(q, beats_left::<K, POSITIONS>(at_left, best)),
                Set::one(q, at_right < best),
            )
        }
    }

    /// The lines of level `level`, 0 for the column.
    #[inline(always)]
    fn lines(&self, level: usize) -> *const K {
        if level == 0 {
            self.base
        } else {
            self.level[level - 1]
        }
    }

    /// Goes down into the lines of level `level` (1 to 3) below the end blocks that promised more.
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
                let place = Place::new(level, first + lane as usize % BLOCK);
                tile.place[q] = if better { place } else { tile.place[q] };
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
            // SAFETY: as above.
            let ((key, lane), at_right) =
                unsafe { (S::line(keys.add(first), mask), *keys.add(child)) };
            let best = tile.best[q];
            if POSITIONS {
                let place = Place::new(level, first + lane as usize % BLOCK);
                tile.place[q] = if key < best { place } else { tile.place[q] };
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
            // SAFETY: the mask leaves only values of the range, which lie in the column.
            unsafe {
                let (key, lane) =
                    S::base(self.base.wrapping_add(first), mask, self.context.encoding);
                let best = tile.best[q];
                if POSITIONS {
                    let place = Place::new(0, first + lane as usize);
                    tile.place[q] = if key <= best { place } else { tile.place[q] };
                }
                tile.best[q] = best.min(key);
            }
        }
        for q in Set(tile.down_right[0]) {
            let r = tile.right[q];
            let first = r & !(BLOCK - 1);
            let mask = 0xFFFF >> (BLOCK - 1 - r % BLOCK);
            // SAFETY: as above: this block is not the range's first, so all of its values up to `r` are in the range.
            unsafe {
                let (key, lane) =
                    S::base(self.base.wrapping_add(first), mask, self.context.encoding);
                let best = tile.best[q];
                if POSITIONS {
                    let place = Place::new(0, first + lane as usize);
                    tile.place[q] = if key < best { place } else { tile.place[q] };
                }
                tile.best[q] = best.min(key);
            }
        }
    }

    /// Writes the answers of a tile.
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
            tile.place[q] = Place(self.context.alignment_offset as u64);
        }
        if let Some(values) = &mut out.values {
            values[first..first + len].copy_from_slice(&tile.best[..len]);
        }
        if POSITIONS && let Some(positions) = &mut out.positions {
            let positions = &mut positions[first..first + len];
            // SAFETY: as the caller vouches.
            unsafe {
                S::positions(
                    self.bytes,
                    &self.offsets,
                    self.context.alignment_offset,
                    &tile.place,
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

/// Asks for what is read of a block when going down at a left end: from `key` to the end of its block.
///
/// Where nothing is wanted callers ask for a line that is hot anyway: a branch would often be mispredicted.
#[inline(always)]
fn prefetch_from<K>(key: *const K) {
    prefetch(key);
    if size_of::<K>() > 4 {
        let block = size_of::<K>() * BLOCK;
        prefetch(key.wrapping_byte_add((block - 1) & !key.addr()));
    }
}

/// The same at a right end: from the start of the block to `key`.
#[inline(always)]
fn prefetch_to<K>(key: *const K) {
    prefetch(key);
    if size_of::<K>() > 4 {
        let block = size_of::<K>() * BLOCK;
        prefetch(key.wrapping_byte_sub((block - 1) & key.addr()));
    }
}

/// Whether the block at a range's left end, whose minimum is `key`, is worth going into when `best` is held.
///
/// For the leftmost position an equal key is: its first place may lie in the range.
#[inline(always)]
fn beats_left<K: Key, const POSITIONS: bool>(key: K, best: K) -> bool {
    if POSITIONS { key <= best } else { key < best }
}
