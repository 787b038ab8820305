//! The threshold search: the first, or last, row of each range whose key is at most a threshold, many queries at a
//! time.
//!
//! A range starts where the pruned search of minima does: at the lowest level where it spans at most two lines of
//! blocks (above level 3: at the sparse table on level 4). The search begins at one end of the range, the *near* end
//! (the left one for the first row); the other is the *far* end. A block is of interest if its minimum is at most the
//! threshold.
//!
//! 1. The nearest block of interest inside the range certainly has a row. It is the *node* of the query, and each
//!    further stage replaces it by its nearest child of interest, down to a row.
//! 2. The block at the near end extends beyond the range, so its minimum is only a lower bound. If it is of interest,
//!    its children are searched, too, and what they find is nearer and replaces the node.
//! 3. The block at the far end is searched likewise while nothing else was found.
//!
//! So a query reads at most three lines of each level. Tiles pass the stages as in the search of minima, one level per
//! stage.

use std::hint::{black_box, select_unpredictable};

use bytemuck::Pod;

use crate::cpu::rmq::kernels::kernel::Kernel;
use crate::cpu::rmq::levels::{BLOCK, LEVELS};
use crate::cpu::rmq::search::{BatchSearch, Context, STAGES, prefetch_start};
use crate::cpu::rmq::tile::{Plan, Set, TILE, Tile};
use crate::cpu::simd::prefetch::prefetch;
use crate::crossings::Crossings;
use crate::key::Key;

/// The state of the queries of a tile.
struct CrossingTile<K> {
    /// The bounds, the sets by start level, and the position in the batch.
    queries: Tile<K>,
    threshold: [K; TILE],
    /// The block of interest, at the level of the last stage; a position after the last stage. Only of queries in
    /// `found`.
    node: [usize; TILE],
    /// Queries with a node.
    found: u64,
    /// Queries that search the line of level `k` (0: of the column) at their near end.
    near: [u64; LEVELS],
    /// Queries that search the line of level `k` at their far end.
    far: [u64; LEVELS],
}

impl<K: Key> CrossingTile<K> {
    fn new() -> Self {
        Self {
            queries: Tile::new(),
            threshold: [K::ZERO; TILE],
            node: [0; TILE],
            found: 0,
            near: [0; LEVELS],
            far: [0; LEVELS],
        }
    }

    /// The queries that started above a level, so that their nodes are blocks above it when its stage begins.
    #[inline(always)]
    fn started_above(&self, level: usize) -> u64 {
        let start = &self.queries.start[level..];
        start.iter().fold(0, |all, start| all | start)
    }

    /// Adds a query to `found` if `hits` is not empty, with block `first` plus the nearest lane as its node.
    #[inline(always)]
    fn set_node<const FIRST: bool>(&mut self, q: usize, first: usize, hits: u64) {
        let found = hits != 0;
        let block = first + nearest::<FIRST>(hits);
        self.node[q] = select_unpredictable(found, block, self.node[q]);
        self.found |= Set::one(q, found);
    }
}

/// Answers a batch. `FIRST` states whether the first rows are searched, else the last. The outputs have been checked.
///
/// # Safety
/// The levels were built of this column, or of one of the same length and alignment offset, and the machine has the
/// instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn crossings<K: Key + Pod, S: Kernel<K>, const FIRST: bool>(
    context: Context<'_, K>,
    left: &[i64],
    right: &[i64],
    thresholds: &[K],
    out: &mut Crossings<'_>,
) {
    let search = CrossingSearch(BatchSearch::new(context));
    let mut tiles: [CrossingTile<K>; STAGES] = std::array::from_fn(|_| CrossingTile::new());
    let mut plans: [Plan<K>; 2] = std::array::from_fn(|_| Plan::new());
    let count = left.len().div_ceil(TILE);
    for step in 0..count + STAGES - 1 {
        // Tile `t` of the batch is in `tiles[t % STAGES]`; at this step it is at stage `step - t`.
        let stage = |stage: usize| step.checked_sub(stage).filter(|&t| t < count);
        // SAFETY: guaranteed by the caller.
        unsafe {
            if let Some(t) = stage(4) {
                let tile = &mut tiles[t % STAGES];
                search.read_column::<S, FIRST>(tile);
                search.write::<FIRST>(tile, out);
            }
            if let Some(t) = stage(3) {
                search.descend::<S, FIRST>(&mut tiles[t % STAGES], 1);
            }
            if let Some(t) = stage(2) {
                search.descend::<S, FIRST>(&mut tiles[t % STAGES], 2);
            }
            let [even, odd] = &mut plans;
            let (now, next) = if step % 2 == 0 {
                (odd, even)
            } else {
                (even, odd)
            };
            if let Some(t) = stage(0) {
                let tile = &mut tiles[t % STAGES];
                let first = t * TILE;
                search
                    .0
                    .plan::<S>(&mut tile.queries, next, first, left, right);
                let thresholds = &thresholds[first..][..tile.queries.len];
                tile.threshold[..thresholds.len()].copy_from_slice(thresholds);
            }
            if let Some(t) = stage(1) {
                search.start::<S, FIRST>(&mut tiles[t % STAGES], now, next);
            } else {
                (0..TILE).for_each(|i| prefetch_start(next, i));
            }
        }
    }
}

/// Returns the lane of `hits` that is nearest to the end where the search begins; any lane below 64 if there is none.
#[inline(always)]
fn nearest<const FIRST: bool>(hits: u64) -> usize {
    let lane = if FIRST {
        hits.trailing_zeros()
    } else {
        63_u32.wrapping_sub(hits.leading_zeros())
    };
    lane as usize % 64
}

/// Returns the mask of the lanes of a line from `lane` on: to the right, or to the left. `lane` is included.
#[inline(always)]
fn from_lane<const RIGHT: bool>(lane: usize) -> u32 {
    if RIGHT {
        (0xFFFF << lane) & 0xFFFF
    } else {
        0xFFFF >> (BLOCK - 1 - lane)
    }
}

/// Prefetches the block of 16 keys that has key `at`.
#[inline(always)]
pub(crate) fn prefetch_block<K>(keys: *const K, at: usize) {
    let first = keys.wrapping_add(at & !(BLOCK - 1));
    for line in (0..size_of::<K>() * BLOCK).step_by(64) {
        prefetch(first.wrapping_byte_add(line));
    }
}

/// Returns the keys of the blocks at the near and at the far end of a range, at the level where it starts.
///
/// # Safety
/// The plan has keys of that level for query `q`.
#[inline(always)]
unsafe fn keys_at_ends<K: Copy, const FIRST: bool>(plan: &Plan<K>, q: usize) -> (K, K) {
    // SAFETY: guaranteed by the caller.
    let (first, last) = unsafe { (*plan.first[q], *plan.last[q]) };
    if FIRST { (first, last) } else { (last, first) }
}

/// The stages of the search.
struct CrossingSearch<'a, K>(BatchSearch<'a, K>);

impl<K: Key + Pod> CrossingSearch<'_, K> {
    /// Stage 1: the blocks inside the range, at the level where it starts. After each query it prefetches the lines of
    /// one query of the next tile, so that their latency overlaps with this work.
    #[inline(always)]
    unsafe fn start<S: Kernel<K>, const FIRST: bool>(
        &self,
        tile: &mut CrossingTile<K>,
        now: &Plan<K>,
        next: &Plan<K>,
    ) {
        tile.found = 0;
        tile.near = [0; LEVELS];
        tile.far = [0; LEVELS];
        // SAFETY: guaranteed by the caller.
        let mut prefetched = unsafe { self.start_sparse::<FIRST>(tile, now, next) };
        for level in 1..LEVELS {
            let (mut near, mut far) = (0, 0);
            for q in Set(tile.queries.start[level - 1]) {
                let threshold = tile.threshold[q];
                // SAFETY: `first` and `last` are keys of one level, at most a window apart.
                let (hits, (at_near, at_far)) = unsafe {
                    let hits = S::window_at_most(now.first[q], now.last[q], threshold);
                    (hits, keys_at_ends::<K, FIRST>(now, q))
                };
                let line = tile.queries.left[q] >> (4 * level);
                let line = line & !(64 / size_of::<K>() - 1);
                tile.set_node::<FIRST>(q, line, hits);
                near |= Set::one(q, at_near <= threshold);
                let same = now.first[q] == now.last[q];
                far |= Set::one(q, !same & (at_far <= threshold));
                prefetch_start(next, prefetched);
                prefetched += 1;
            }
            tile.near[level - 1] = near;
            tile.far[level - 1] = far & !tile.found;
        }
        for i in prefetched..TILE {
            prefetch_start(next, i);
        }
        // Lines of level 3 are in cache, so they need no stage of their own.
        // SAFETY: guaranteed by the caller.
        unsafe { self.descend::<S, FIRST>(tile, 3) };
        for below in 0..3 {
            let line = self.0.lines(below);
            let start = tile.queries.start[below];
            for q in Set(tile.near[below] & start) {
                prefetch_block(line, near::<K, FIRST>(tile, q) >> (4 * below));
            }
            for q in Set(tile.far[below] & start) {
                prefetch_block(line, far::<K, FIRST>(tile, q) >> (4 * below));
            }
            for q in Set(tile.found & start) {
                prefetch_block(line, tile.node[q] * BLOCK);
            }
        }
    }

    /// Stage 1 of the ranges that start at level 4. Returns how many queries of the next tile have been prefetched.
    ///
    /// The search moves from the near end past runs of the sparse table without a block of interest, each half as long
    /// as the one before. All queries take the same steps, row by row of the table, so that their loads overlap. Keys
    /// of up to 64 bits the compiler can gather into vectors: there the queries that start at other levels take the
    /// steps, too.
    #[inline(always)]
    unsafe fn start_sparse<const FIRST: bool>(
        &self,
        tile: &mut CrossingTile<K>,
        now: &Plan<K>,
        next: &Plan<K>,
    ) -> usize {
        let start = tile.queries.start[LEVELS - 1];
        if start == 0 {
            return 0;
        }
        let queries = start.count_ones() as usize;
        let tops = self.0.tops;
        let block = |position: usize| position >> (4 * LEVELS);
        // The first block that is not passed; the block after it for the last row.
        let mut at: [usize; TILE] = std::array::from_fn(|q| {
            if FIRST {
                block(tile.queries.left[q]) + 1
            } else {
                block(tile.queries.right[q])
            }
        });
        // The blocks at both ends of such a range are not inside, and another one is: there are at least 3.
        let rows = (tops - 2).ilog2() as usize + 1;
        let wide = size_of::<K>() > size_of::<u64>();
        let mut prefetched = 0;
        for row in (0..rows).rev() {
            // Fewer than two runs are left inside the range. A run beyond the end of the level is moved inside it, over
            // blocks that are passed.
            let run = 1 << row;
            let runs = self.0.sparse.wrapping_add(row * tops);
            let step = |at: usize, threshold: K| {
                let first = if FIRST {
                    at.min(tops - run)
                } else {
                    at.max(run) - run
                };
                // SAFETY: bounds of all queries are in blocks of the level, so the run is within it.
                let key = unsafe { *runs.add(first) };
                let passed = if FIRST { first + run } else { first };
                let is_passed = key > threshold;
                if wide {
                    // Of a select by a comparison of two words the compiler makes a branch, which is often
                    // mispredicted.
                    at ^ ((at ^ passed) & black_box(usize::from(is_passed)).wrapping_neg())
                } else {
                    select_unpredictable(is_passed, passed, at)
                }
            };
            if wide {
                for q in Set(start) {
                    at[q] = step(at[q], tile.threshold[q]);
                }
            } else {
                for (at, threshold) in at.iter_mut().zip(&tile.threshold) {
                    *at = step(*at, *threshold);
                }
            }
            for _ in 0..(queries - prefetched) / (row + 1) {
                prefetch_start(next, prefetched);
                prefetched += 1;
            }
        }
        let (mut found, mut near, mut far) = (0, 0, 0);
        for q in Set(start) {
            let (node, inside) = if FIRST {
                (at[q], at[q] < block(tile.queries.right[q]))
            } else {
                let node = at[q].max(1) - 1;
                (node, at[q] > block(tile.queries.left[q]) + 1)
            };
            tile.node[q] = node;
            found |= Set::one(q, inside);
            // SAFETY: these are keys of level 4.
            let (at_near, _) = unsafe { keys_at_ends::<K, FIRST>(now, q) };
            near |= Set::one(q, at_near <= tile.threshold[q]);
        }
        for q in Set(start & !found) {
            // SAFETY: these are keys of level 4.
            let (_, at_far) = unsafe { keys_at_ends::<K, FIRST>(now, q) };
            far |= Set::one(q, at_far <= tile.threshold[q]);
        }
        tile.found = found;
        tile.near[LEVELS - 1] = near;
        tile.far[LEVELS - 1] = far;
        prefetched
    }

    /// Searches lines of level `level` (1 to 3): those below nodes, and those at the ends of ranges.
    #[inline(always)]
    unsafe fn descend<S: Kernel<K>, const FIRST: bool>(
        &self,
        tile: &mut CrossingTile<K>,
        level: usize,
    ) {
        let keys = self.0.lines(level);
        let below = self.0.lines(level - 1);
        let shift = 4 * level;
        for q in Set(tile.found & tile.started_above(level)) {
            let first = tile.node[q] * BLOCK;
            // SAFETY: lines of a level are complete, padding included.
            let hits = unsafe { S::line_at_most(keys.add(first), 0xFFFF, tile.threshold[q]) };
            tile.node[q] = first + nearest::<FIRST>(hits.into()) % BLOCK;
            prefetch_block(below, tile.node[q] * BLOCK);
        }
        let mut go = 0;
        for q in Set(tile.near[level]) {
            let end = near::<K, FIRST>(tile, q);
            let child = end >> shift;
            let lane = child % BLOCK;
            let mask = if FIRST {
                from_lane::<true>(lane)
            } else {
                from_lane::<false>(lane)
            };
            // SAFETY: lines of a level are complete, padding included.
            let hits = unsafe { S::line_at_most(keys.add(child - lane), mask, tile.threshold[q]) };
            tile.set_node::<FIRST>(q, child - lane, (hits & !(1 << lane)).into());
            go |= Set::one(q, hits >> lane & 1 == 1);
            prefetch_block(below, end >> (shift - 4));
            prefetch_block(below, tile.node[q] * BLOCK);
        }
        tile.near[level - 1] |= go;
        let mut go = 0;
        for q in Set(tile.far[level] & !tile.found) {
            let end = far::<K, FIRST>(tile, q);
            let child = end >> shift;
            let lane = child % BLOCK;
            let mask = if FIRST {
                from_lane::<false>(lane)
            } else {
                from_lane::<true>(lane)
            };
            // SAFETY: lines of a level are complete, padding included.
            let hits = unsafe { S::line_at_most(keys.add(child - lane), mask, tile.threshold[q]) };
            let inside = hits & !(1 << lane);
            tile.set_node::<FIRST>(q, child - lane, inside.into());
            let on = (hits != 0) & (inside == 0);
            go |= Set::one(q, on);
            let node = tile.node[q] * BLOCK;
            prefetch_block(below, if on { end >> (shift - 4) } else { node });
        }
        tile.far[level - 1] |= go;
    }

    /// The last stage: values of the column itself.
    #[inline(always)]
    unsafe fn read_column<S: Kernel<K>, const FIRST: bool>(&self, tile: &mut CrossingTile<K>) {
        let encoding = self.0.context.encoding;
        let values = |first: usize| self.0.base.wrapping_add(first);
        for q in Set(tile.found) {
            let first = tile.node[q] * BLOCK;
            // SAFETY: a node is inside its range, so all of its values are in the column.
            let hits =
                unsafe { S::base_at_most(values(first), 0xFFFF, encoding, tile.threshold[q]) };
            tile.node[q] = first + nearest::<FIRST>(hits.into()) % BLOCK;
        }
        for q in Set(tile.near[0]) {
            let (l, r) = (tile.queries.left[q], tile.queries.right[q]);
            let end = near::<K, FIRST>(tile, q);
            let first = end & !(BLOCK - 1);
            let (from, to) = (from_lane::<true>(l % BLOCK), from_lane::<false>(r % BLOCK));
            let mask = match (l ^ r < BLOCK, FIRST) {
                (true, _) => from & to,
                (false, true) => from,
                (false, false) => to,
            };
            // SAFETY: the mask leaves only values of the range, which are in the column.
            let hits = unsafe { S::base_at_most(values(first), mask, encoding, tile.threshold[q]) };
            tile.set_node::<FIRST>(q, first, hits.into());
        }
        for q in Set(tile.far[0] & !tile.found) {
            let end = far::<K, FIRST>(tile, q);
            let first = end & !(BLOCK - 1);
            let mask = if FIRST {
                from_lane::<false>(end % BLOCK)
            } else {
                from_lane::<true>(end % BLOCK)
            };
            // SAFETY: this block is not that of the near end, so all of its values up to the far end are in the range.
            let hits = unsafe { S::base_at_most(values(first), mask, encoding, tile.threshold[q]) };
            tile.set_node::<FIRST>(q, first, hits.into());
        }
    }

    /// Writes the outputs of a tile.
    #[inline(always)]
    unsafe fn write<const FIRST: bool>(&self, tile: &mut CrossingTile<K>, out: &mut Crossings<'_>) {
        let (first, len) = (tile.queries.first, tile.queries.len);
        let offset = self.0.context.alignment_offset;
        let positions = &mut out.positions[first..first + len];
        for (q, position) in positions.iter_mut().enumerate() {
            let found = tile.found >> q & 1 == 1;
            let at = tile.node[q % TILE].wrapping_sub(offset);
            *position = if found { at as i64 } else { 0 };
        }
        if let Some(valid) = self.0.context.valid {
            // Such a threshold does not tell NULL from the greatest value. All other rows are at most that.
            for q in Set(tile.queries.some) {
                if tile.threshold[q] == K::MAX {
                    let (l, r) = (
                        tile.queries.left[q] - offset,
                        tile.queries.right[q] - offset,
                    );
                    let at = if FIRST {
                        valid.next(l).filter(|at| *at <= r)
                    } else {
                        valid.previous(r).filter(|at| *at >= l)
                    };
                    tile.found &= !(1 << q);
                    tile.found |= Set::one(q, at.is_some());
                    positions[q] = at.map_or(0, |at| at as i64);
                }
            }
        }
        out.valid[first / TILE] = tile.found;
    }
}

/// Returns the end of the range where the search begins.
#[inline(always)]
fn near<K, const FIRST: bool>(tile: &CrossingTile<K>, q: usize) -> usize {
    if FIRST {
        tile.queries.left[q]
    } else {
        tile.queries.right[q]
    }
}

/// Returns the end of the range where the search ends.
#[inline(always)]
fn far<K, const FIRST: bool>(tile: &CrossingTile<K>, q: usize) -> usize {
    if FIRST {
        tile.queries.right[q]
    } else {
        tile.queries.left[q]
    }
}
