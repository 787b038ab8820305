//! The pruned search, many queries at a time.
//!
//! A range starts at the lowest level where it spans at most a [`WINDOW`] of blocks (above level 3: at the sparse table
//! on level 4). The blocks inside the range give a first minimum. The two blocks at its ends reach beyond it, so
//! their minima are only lower bounds: a range goes down into an end block only where that bound beats what it
//! holds (for leftmost positions: on the left, where it equals it too). On most data most ranges never see the column.
//!
//! Queries go through in tiles, and several tiles are under way at once, each a stage apart: a stage works on lines
//! that the stage before asked for while the other tiles were worked on. Within a stage queries are kept in lists by
//! what is to be done, built without branches, so that each loop is straight code.

use super::levels::{BLOCK, LEVELS, Levels, WINDOW};
use super::memory::Plain;
use super::simd::{Kernel, prefetch};
use super::tile::{Place, TILE, Tile};
use super::validity::NextValid;
use crate::engine::{Answers, Encoding, Key};

/// Tiles under way.
const STAGES: usize = 5;

/// What a batch is searched in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a, K> {
    pub(super) column: &'a [K],
    /// How many values the first block lacks before the column's first.
    pub(super) lead: usize,
    pub(super) encoding: Encoding<K>,
    pub(super) levels: &'a Levels<K>,
    pub(super) valid: Option<&'a NextValid>,
}

/// The context, unpacked to what the loops need.
struct Search<'a, K> {
    context: Context<'a, K>,
    /// The column from the origin of its blocks on: `lead` values before its first.
    base: *const K,
    level: [*const K; LEVELS],
    tops: usize,
    sparse: *const K,
    sparse_place: *const u32,
    offsets: *const u8,
    /// How an offset is found in `offsets`, by level (0: there is none).
    offset: [Offset; LEVELS + 1],
}

/// Where the offset of the first minimum of block `b` lies: 16 bits at byte `start + (b * bits / 8)`.
#[derive(Debug, Clone, Copy, Default)]
struct Offset {
    start: usize,
    /// Bits an entry, 0 for none.
    bits: usize,
    mask: usize,
    /// Positions a block, as a power of two.
    shift: u32,
}

/// Answers a batch. `POSITIONS` says whether positions are tracked; outputs have been checked.
///
/// # Safety
/// The levels (with positions where `POSITIONS`) were built of this column with this lead, and the machine has the
/// instructions of `S`.
#[inline(always)]
pub(super) unsafe fn answer<K: Key + Plain, S: Kernel<K>, const POSITIONS: bool>(
    context: Context<'_, K>,
    left: &[i64],
    right: &[i64],
    mut out: Answers<'_, K>,
) {
    let search = Search::new(context);
    let mut tiles: [Tile<K>; STAGES] = std::array::from_fn(|_| Tile::new());
    let count = left.len().div_ceil(TILE);
    for step in 0..count + STAGES - 1 {
        // Tile `t` of the batch lives in `tiles[t % STAGES]`; at this step it is at stage `step - t`.
        if let Some(t) = step.checked_sub(STAGES - 1) {
            let tile = &mut tiles[t % STAGES];
            // SAFETY: as the caller vouches.
            unsafe { search.read_column::<S, POSITIONS>(tile) };
            search.write::<POSITIONS>(tile, &mut out);
        }
        for stage in (1..STAGES - 1).rev() {
            let Some(t) = step.checked_sub(stage).filter(|&t| t < count) else {
                continue;
            };
            let tile = &mut tiles[t % STAGES];
            // SAFETY: as the caller vouches.
            unsafe {
                match stage {
                    1 => search.start::<S, POSITIONS>(tile),
                    2 => search.descend::<S, POSITIONS>(tile, 2),
                    _ => search.descend::<S, POSITIONS>(tile, 1),
                }
            }
        }
        if step < count {
            search.take(&mut tiles[step % STAGES], step * TILE, left, right);
        }
    }
}

impl<'a, K: Key + Plain> Search<'a, K> {
    fn new(context: Context<'a, K>) -> Self {
        let levels = context.levels;
        let offset = |level: usize, bits: usize| Offset {
            start: if levels.has_positions() {
                levels.offset_start(level - 1)
            } else {
                0
            },
            bits,
            mask: (1 << bits) - 1,
            shift: 4 * level as u32,
        };
        Self {
            context,
            base: context.column.as_ptr().wrapping_sub(context.lead),
            level: std::array::from_fn(|k| levels.level(k).as_ptr()),
            tops: levels.layout().len[LEVELS - 1],
            sparse: levels.sparse().as_ptr(),
            sparse_place: levels.sparse_place().as_ptr(),
            offsets: levels.bytes().as_ptr(),
            offset: [
                Offset::default(),
                offset(1, 4),
                offset(2, 8),
                offset(3, 16),
                offset(4, 16),
            ],
        }
    }

    /// Stage 0: takes queries into a tile, clips their bounds, and asks for the lines they start with.
    #[inline(always)]
    fn take(&self, tile: &mut Tile<K>, first: usize, left: &[i64], right: &[i64]) {
        tile.clear();
        let len = (left.len() - first).min(TILE);
        tile.first = first;
        tile.len = len;
        let (left, right) = (&left[first..first + len], &right[first..first + len]);
        // Lengths of slices fit `i64`.
        let last = self.context.column.len() as i64 - 1;
        let lead = self.context.lead;
        for q in 0..len {
            let l = left[q].max(0);
            let r = right[q].min(last);
            let some = l <= r;
            tile.some |= u64::from(some) << q;
            // Where the range is empty these are never looked at.
            let (l, r) = (
                (l as usize).wrapping_add(lead),
                (r as usize).wrapping_add(lead),
            );
            tile.left[q] = l;
            tile.right[q] = r;
            let span = |level: usize| (r >> (4 * level)).wrapping_sub(l >> (4 * level)) >= WINDOW;
            let level = usize::from(span(1)) + usize::from(span(2)) + usize::from(span(3));
            let list = &mut tile.start[level];
            list.push_if(q, some);
            // Level 3 and the sparse table are small and hot, asking for them costs more than it gives.
            if level < 2 {
                let keys = self.level[level];
                let shift = 4 * (level + 1);
                prefetch(keys.wrapping_add(l >> shift));
                prefetch(keys.wrapping_add(r >> shift));
            }
        }
    }

    /// Stage 1: the blocks inside the range, at the level where it starts.
    #[inline(always)]
    unsafe fn start<S: Kernel<K>, const POSITIONS: bool>(&self, tile: &mut Tile<K>) {
        // SAFETY: as the caller vouches.
        unsafe {
            for i in 0..tile.start[3].len() {
                self.start_sparse::<POSITIONS>(tile, tile.start[3].get(i));
            }
            // Lines of level 3 are hot, so they need no stage of their own.
            self.descend::<S, POSITIONS>(tile, 3);
            for i in 0..tile.start[2].len() {
                self.start_window::<S, POSITIONS>(tile, tile.start[2].get(i), 3);
            }
            for i in 0..tile.start[1].len() {
                self.start_window::<S, POSITIONS>(tile, tile.start[1].get(i), 2);
            }
            for i in 0..tile.start[0].len() {
                self.start_window::<S, POSITIONS>(tile, tile.start[0].get(i), 1);
            }
        }
    }

    /// Starts a query with the sparse table on level 4.
    #[inline(always)]
    unsafe fn start_sparse<const POSITIONS: bool>(&self, tile: &mut Tile<K>, q: usize) {
        let (l, r) = (tile.left[q], tile.right[q]);
        let (first, last) = (l >> 16, r >> 16);
        let inner = last - first - 1;
        // `inner` is at least `WINDOW / 16 - 1`, as the range spans a window of level 3; the row 0 is level 4 itself.
        let row = inner.ilog2() as usize;
        let table = if row == 0 {
            self.level[3]
        } else {
            self.sparse.wrapping_add((row - 1) * self.tops)
        };
        let (i, j) = (first + 1, last - (1 << row));
        // SAFETY: `i + 2^row <= last` and `j + 2^row = last`, both within the table's row; `first` and `last` are blocks
        // of level 4.
        unsafe {
            let (a, b) = (*table.add(i), *table.add(j));
            let best = a.min(b);
            tile.best[q] = best;
            if POSITIONS {
                let from = if b < a { j } else { i };
                let block = if row == 0 {
                    from
                } else {
                    *self.sparse_place.add((row - 1) * self.tops + from) as usize
                };
                tile.place[q] = Place::new(4, block);
            }
            let (at_left, at_right) = (*self.level[3].add(first), *self.level[3].add(last));
            tile.down_left[3].push_if(q, beats_left::<K, POSITIONS>(at_left, best));
            tile.down_right[3].push_if(q, at_right < best);
        }
    }

    /// Starts a query with a window of level `level` (1 to 3).
    #[inline(always)]
    unsafe fn start_window<S: Kernel<K>, const POSITIONS: bool>(
        &self,
        tile: &mut Tile<K>,
        q: usize,
        level: usize,
    ) {
        let (l, r) = (tile.left[q], tile.right[q]);
        let shift = 4 * level;
        let (first, last) = (l >> shift, r >> shift);
        let keys = self.level[level - 1];
        // All blocks but the first and the last. Where there are none the mask is empty.
        let mask = ((1_u64 << (last - first)) - 1) & !1;
        // SAFETY: levels are padded by a window; `first` and `last` are blocks of this level.
        unsafe {
            let (best, lane) = S::window(keys.add(first), mask);
            tile.best[q] = best;
            if POSITIONS {
                // Over no block this is a place that the left end is about to replace.
                tile.place[q] = Place::new(level, first + lane as usize);
            }
            let (at_left, at_right) = (*keys.add(first), *keys.add(last));
            let go_left = beats_left::<K, POSITIONS>(at_left, best);
            let go_right = first != last && at_right < best;
            self.go_down(tile, q, level, go_left, go_right);
        }
    }

    /// Puts a query on the lists of the line below its end blocks of `level`, and asks for these lines.
    #[inline(always)]
    fn go_down(&self, tile: &mut Tile<K>, q: usize, level: usize, left: bool, right: bool) {
        let below = level - 1;
        let line = if below == 0 {
            self.base
        } else {
            self.level[below - 1]
        };
        let shift = 4 * level;
        tile.down_left[below].push_if(q, left);
        tile.down_right[below].push_if(q, right);
        self.prefetch_if(line.wrapping_add((tile.left[q] >> shift) * BLOCK), left);
        self.prefetch_if(line.wrapping_add((tile.right[q] >> shift) * BLOCK), right);
    }

    /// Asks for a line if `wanted`, and for one that is hot anyway if not: a branch would often be mispredicted.
    #[inline(always)]
    fn prefetch_if(&self, line: *const K, wanted: bool) {
        let line = if wanted { line } else { self.level[3] };
        prefetch(line);
        if size_of::<K>() > 4 {
            prefetch(line.wrapping_byte_add(64));
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
        let shift = 4 * level;
        for i in 0..tile.down_left[level].len() {
            let q = tile.down_left[level].get(i);
            let child = tile.left[q] >> shift;
            let first = child & !(BLOCK - 1);
            // The children right of the one that the range begins in.
            let mask = (0xFFFE << (child % BLOCK)) & 0xFFFF;
            // SAFETY: lines of a level are complete, padding included.
            unsafe {
                let (key, lane) = S::line(keys.add(first), mask);
                let best = tile.best[q];
                if POSITIONS {
                    let better = (key <= best) & (mask != 0);
                    let place = Place::new(level, first + lane as usize % BLOCK);
                    tile.place[q] = if better { place } else { tile.place[q] };
                }
                let best = best.min(key);
                tile.best[q] = best;
                let go = beats_left::<K, POSITIONS>(*keys.add(child), best);
                self.go_down(tile, q, level, go, false);
            }
        }
        for i in 0..tile.down_right[level].len() {
            let q = tile.down_right[level].get(i);
            let child = tile.right[q] >> shift;
            let first = child & !(BLOCK - 1);
            // The children left of the one that the range ends in.
            let mask = (1 << (child % BLOCK)) - 1;
            // SAFETY: as above.
            unsafe {
                let (key, lane) = S::line(keys.add(first), mask);
                let best = tile.best[q];
                if POSITIONS {
                    let place = Place::new(level, first + lane as usize % BLOCK);
                    tile.place[q] = if key < best { place } else { tile.place[q] };
                }
                let best = best.min(key);
                tile.best[q] = best;
                let go = *keys.add(child) < best;
                self.go_down(tile, q, level, false, go);
            }
        }
    }

    /// The last stage: values of the column itself.
    #[inline(always)]
    unsafe fn read_column<S: Kernel<K>, const POSITIONS: bool>(&self, tile: &mut Tile<K>) {
        for i in 0..tile.down_left[0].len() {
            let q = tile.down_left[0].get(i);
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
        for i in 0..tile.down_right[0].len() {
            let q = tile.down_right[0].get(i);
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

    /// The position of the first minimum of a place.
    #[inline(always)]
    fn position(&self, place: Place) -> usize {
        let (level, block) = (place.level(), place.block());
        let offset = self.offset[level.min(LEVELS)];
        let bit = block * offset.bits;
        // SAFETY: `Layout` gives each offset array eight bytes more than its entries; without entries this reads the
        // first bytes of the index, which has a window of padding at least.
        let word = unsafe {
            self.offsets
                .add(offset.start + bit / 8)
                .cast::<u16>()
                .read_unaligned()
        };
        let within = (u16::from_le(word) as usize >> (bit % 8)) & offset.mask;
        (block << offset.shift) + within
    }

    /// Writes the answers of a tile.
    #[inline(always)]
    fn write<const POSITIONS: bool>(&self, tile: &mut Tile<K>, out: &mut Answers<'_, K>) {
        let (first, len) = (tile.first, tile.len);
        let all = if len == TILE { !0 } else { (1 << len) - 1 };
        let mut some = tile.some;
        if some != all {
            for q in 0..len {
                if some >> q & 1 == 0 {
                    tile.best[q] = K::MAX;
                }
            }
        }
        if let Some(values) = &mut out.values {
            values[first..first + len].copy_from_slice(&tile.best[..len]);
        }
        if POSITIONS && let Some(positions) = &mut out.positions {
            for (q, position) in positions[first..first + len].iter_mut().enumerate() {
                let found = self.position(tile.place[q]).wrapping_sub(self.context.lead);
                *position = if some >> q & 1 == 1 { found as i64 } else { 0 };
            }
        }
        if let Some(valid) = self.context.valid {
            for q in 0..len {
                if some >> q & 1 == 1 && tile.best[q] == K::MAX {
                    let lead = self.context.lead;
                    let next = valid.next(tile.left[q] - lead);
                    let found = next.filter(|&at| at <= tile.right[q] - lead);
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

/// Whether the block at a range's left end, whose minimum is `key`, is worth going into when `best` is held.
///
/// For the leftmost position an equal key is: its first place may lie in the range.
#[inline(always)]
fn beats_left<K: Key, const POSITIONS: bool>(key: K, best: K) -> bool {
    if POSITIONS { key <= best } else { key < best }
}
