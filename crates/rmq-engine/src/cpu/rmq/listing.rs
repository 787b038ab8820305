//! The listing of rows: all rows of a range whose key is at most a threshold, and their number.
//!
//! A block is of interest if its minimum is at most the threshold. The ranges of a tile descend together, a level at a
//! time: from the blocks of level 4 of interest, which the sparse table finds without reading those between, to the
//! blocks of interest below each of them, and so on down to the column. So lines are prefetched while others are read,
//! and no branch depends on what is found. Blocks stay in the order of ranges and rows, so rows come in ascending
//! order, and a listing can stop at any row.
//!
//! Every line that is read has a row, or is at an end of its range: about one line of each level per row found, fewer
//! where rows are neighbours. About [`MOST_BLOCKS`] blocks of a level are found at a time. The first range that has not
//! all of its blocks goes on in the next tile.
//!
//! 10 rows in a prefix of 10^6 take 57 ns, and took 280 when each range descended depth first. For intervals that
//! overlap, bounding the start by the longest interval would save 4 % of that and cost a second search: blocks that end
//! too early are skipped above.

use bytemuck::Pod;

use crate::cpu::rmq::crossing::prefetch_block;
use crate::cpu::rmq::kernels::kernel::Kernel;
use crate::cpu::rmq::levels::{BLOCK, LEVELS};
use crate::cpu::rmq::search::{BatchSearch, Context};
use crate::crossings::{ListLimits, RowList};
use crate::key::Key;

/// The number of bits of a position within a block of level 4.
const TOP_BITS: usize = 4 * LEVELS;

/// The most ranges that descend together.
const MAX_RANGES: usize = 64;

/// Blocks of a level after which no more are searched. Two blocks of a range, those at its ends, may have no row, and
/// all others have.
const MOST_BLOCKS: usize = 960;

/// The number of lines between the prefetch of a line and its use.
const PREFETCHED: usize = 16;

/// Lists the rows of a batch of ranges into `out`, which is empty. The slices have been checked.
///
/// # Safety
/// The levels were built of this column, or of one of the same length and alignment offset, and the machine has the
/// instructions of `S`.
#[inline(always)]
pub(crate) unsafe fn list_at_most<K: Key + Pod, S: Kernel<K>>(
    context: Context<'_, K>,
    left: &[i64],
    right: &[i64],
    thresholds: &[K],
    limits: ListLimits,
    out: &mut RowList,
) {
    let listing = Listing(BatchSearch::new(context));
    let batch = Batch {
        left,
        right,
        thresholds,
    };
    let mut tile = RangeTile::new();
    let mut cursor = Cursor::default();
    // The rows of the cursor's range that have been listed.
    let mut listed = 0;
    while cursor.range < left.len() && out.positions.len() < limits.total {
        let before = out.positions.len();
        if listing.excludes_only_nulls(thresholds[cursor.range]) {
            let room = (limits.total - before).min(limits.per_range - listed);
            let rows = listing.valid_rows(left[cursor.range], right[cursor.range]);
            // Positions fit `i64`, see `Layout::new`.
            let rows = rows.map(|at| at as i64);
            out.positions.extend(rows.take(room));
            if out.positions.len() == limits.total && room < limits.per_range {
                return;
            }
            out.ends.push(out.positions.len());
            (cursor, listed) = (Cursor::at(cursor.range + 1), 0);
            continue;
        }
        tile.load(&listing, &batch, &cursor);
        // SAFETY: guaranteed by the caller; `load` clips ranges to the column.
        unsafe { listing.find_blocks::<S>(&mut tile, limits.per_range) };
        // The end of the rows of each range; 0 if it has no block.
        let mut ends = [0; MAX_RANGES];
        let (mut read, mut end) = (0, before);
        out.positions.reserve(tile.blocks * BLOCK);
        while read < tile.blocks && end < limits.total {
            // SAFETY: guaranteed by the caller. There is room for a row of each value of the blocks.
            unsafe {
                let (range, line, hits) = listing.read_column::<S>(&tile, read);
                let rows = out.positions.as_mut_ptr().add(end);
                // Positions fit `i64`, see `Layout::new`. A line may begin before the column.
                S::numbers(line as i64 - context.alignment_offset as i64, hits, rows);
                end += hits.count_ones() as usize;
                ends[range] = end;
            }
            read += 1;
        }
        // SAFETY: there are rows up to `end`.
        unsafe { out.positions.set_len(end) };
        let next = tile.next(read);
        // Rows beyond the limits are removed.
        let (mut from, mut to) = (before, before);
        for (range, end) in ends[..tile.len].iter().enumerate() {
            let rows = end.saturating_sub(from);
            let room = limits.per_range - listed;
            let kept = rows.min(room).min(limits.total - to);
            if to < from {
                out.positions.copy_within(from..from + kept, to);
            }
            from += rows;
            to += kept;
            listed += kept;
            let is_complete = kept == rows && range < next.range || kept == room;
            if !is_complete {
                let start = if range == next.range { next.start } else { 0 };
                cursor = Cursor {
                    range: cursor.range + range,
                    start,
                };
                break;
            }
            out.ends.push(to);
            listed = 0;
            if range + 1 == tile.len {
                cursor = Cursor::at(cursor.range + tile.len);
            }
        }
        out.positions.truncate(to);
    }
}

/// Counts the rows of a batch of ranges. The slices have been checked.
///
/// # Safety
/// As [`list_at_most`].
#[inline(always)]
pub(crate) unsafe fn count_at_most<K: Key + Pod, S: Kernel<K>>(
    context: Context<'_, K>,
    left: &[i64],
    right: &[i64],
    thresholds: &[K],
    counts: &mut [i64],
) {
    let listing = Listing(BatchSearch::new(context));
    let batch = Batch {
        left,
        right,
        thresholds,
    };
    counts.fill(0);
    let mut tile = RangeTile::new();
    let mut cursor = Cursor::default();
    while cursor.range < left.len() {
        if listing.excludes_only_nulls(thresholds[cursor.range]) {
            let rows = listing.valid_rows(left[cursor.range], right[cursor.range]);
            // A column has fewer than 2^63 rows.
            counts[cursor.range] = rows.count() as i64;
            cursor = Cursor::at(cursor.range + 1);
            continue;
        }
        tile.load(&listing, &batch, &cursor);
        // SAFETY: guaranteed by the caller; `load` clips ranges to the column.
        unsafe { listing.find_blocks::<S>(&mut tile, usize::MAX) };
        for block in 0..tile.blocks {
            // SAFETY: guaranteed by the caller.
            let (range, _, hits) = unsafe { listing.read_column::<S>(&tile, block) };
            counts[cursor.range + range] += i64::from(hits.count_ones());
        }
        let next = tile.next(tile.blocks);
        cursor = Cursor {
            range: cursor.range + next.range,
            ..next
        };
    }
}

/// Ranges and their thresholds.
struct Batch<'a, K> {
    left: &'a [i64],
    right: &'a [i64],
    thresholds: &'a [K],
}

/// Where a batch, or a tile, goes on: a range, and the first position of it that has not been looked at, from the
/// origin of blocks.
#[derive(Clone, Copy, Default)]
struct Cursor {
    range: usize,
    start: usize,
}

impl Cursor {
    /// Before the first row of a range.
    fn at(range: usize) -> Self {
        Self { range, start: 0 }
    }
}

/// The first and the last position of a range, counted from the origin of blocks; an empty range has its first after
/// its last.
type Bounds = (usize, usize);

/// Ranges that descend together.
struct RangeTile<K> {
    len: usize,
    bounds: [Bounds; MAX_RANGES],
    threshold: [K; MAX_RANGES],
    /// Blocks of a level and of the one below it, by turns: the number of the range, shifted by [`RANGE_SHIFT`], and
    /// that of the block. They are in order. What follows them is of no meaning.
    found: [[i64; MOST_BLOCKS + 2 * BLOCK + PREFETCHED]; 2],
    /// The number of blocks of the column that have been found. They are in `found[0]`.
    blocks: usize,
    /// The number of ranges all of whose blocks have been found.
    complete: usize,
}

/// Blocks are numbered with fewer bits, see [`Layout`](crate::cpu::rmq::levels::Layout).
const RANGE_SHIFT: u32 = 48;

/// Returns the range and the number of a block that has been found.
#[inline(always)]
fn range_and_block(found: i64) -> (usize, usize) {
    // Ranges are below `MAX_RANGES`.
    let range = (found >> RANGE_SHIFT) as usize % MAX_RANGES;
    (range, (found & ((1 << RANGE_SHIFT) - 1)) as usize)
}

impl<K: Key + Pod> RangeTile<K> {
    fn new() -> Self {
        Self {
            len: 0,
            bounds: [(1, 0); MAX_RANGES],
            threshold: [K::ZERO; MAX_RANGES],
            found: [[0; MOST_BLOCKS + 2 * BLOCK + PREFETCHED]; 2],
            blocks: 0,
            complete: 0,
        }
    }

    /// Loads the ranges of a batch from a cursor on: at least the first one, and up to the next for which only NULLs
    /// are excluded.
    #[inline(always)]
    fn load(&mut self, listing: &Listing<'_, K>, batch: &Batch<'_, K>, cursor: &Cursor) {
        let thresholds = &batch.thresholds[cursor.range..];
        self.len = 0;
        for (i, threshold) in thresholds.iter().take(MAX_RANGES).enumerate() {
            if i > 0 && listing.excludes_only_nulls(*threshold) {
                break;
            }
            let range = cursor.range + i;
            self.bounds[i] = listing.clip(batch.left[range], batch.right[range]);
            self.threshold[i] = *threshold;
            self.len += 1;
        }
        self.bounds[0].0 = self.bounds[0].0.max(cursor.start);
    }

    /// Where the tile goes on after `read` blocks of the column.
    #[inline(always)]
    fn next(&self, read: usize) -> Cursor {
        let [found, _] = &self.found;
        if read < self.blocks {
            let (range, block) = range_and_block(found[read]);
            let start = block * BLOCK;
            return Cursor { range, start };
        }
        let range = self.complete;
        let last = found[..read].last().map(|last| range_and_block(*last));
        let start = match last {
            Some((last_range, block)) if last_range == range => (block + 1) * BLOCK,
            _ => self.bounds[..self.len]
                .get(range)
                .map_or(0, |(left, _)| *left),
        };
        Cursor { range, start }
    }
}

struct Listing<'a, K>(BatchSearch<'a, K>);

impl<K: Key + Pod> Listing<'_, K> {
    /// Clips a range to the column.
    #[inline(always)]
    fn clip(&self, left: i64, right: i64) -> Bounds {
        let context = &self.0.context;
        let (left, right) = (left.max(0), right.min(context.column.len() as i64 - 1));
        if left > right {
            return (1, 0);
        }
        let offset = context.alignment_offset;
        (left as usize + offset, right as usize + offset)
    }

    /// Whether all rows but NULLs are at most a threshold that is the greatest key, as NULL is.
    #[inline(always)]
    fn excludes_only_nulls(&self, threshold: K) -> bool {
        threshold == K::MAX && self.0.context.valid.is_some()
    }

    /// The rows of a range that are not NULL, of a column that has NULLs.
    fn valid_rows(&self, left: i64, right: i64) -> impl Iterator<Item = usize> {
        let (offset, valid) = (self.0.context.alignment_offset, self.0.context.valid);
        let (left, right) = self.clip(left, right);
        let next = move |row| valid.and_then(|valid| valid.next(row));
        let first = if left <= right {
            next(left - offset)
        } else {
            None
        };
        let rows = std::iter::successors(first, move |at| next(at + 1));
        rows.take_while(move |at| at + offset <= right)
    }

    /// Finds the blocks of the column that overlap with ranges of a tile and are of interest. Of a range with at least
    /// `per_range` rows it may find only those of the first `per_range`.
    ///
    /// # Safety
    /// As [`list_at_most`], and the ranges are within the column.
    #[inline(always)]
    unsafe fn find_blocks<S: Kernel<K>>(&self, tile: &mut RangeTile<K>, per_range: usize) {
        // The blocks at the ends of a range may have no row in it.
        let per_range = per_range.saturating_add(2);
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut blocks = self.find_tops(tile, per_range);
            for level in (1..LEVELS).rev() {
                blocks = self.descend::<S>(tile, level, blocks, per_range);
            }
            tile.blocks = blocks;
        }
    }

    /// Finds the blocks of level 4. Returns their number.
    ///
    /// # Safety
    /// As [`Self::find_blocks`].
    #[inline(always)]
    unsafe fn find_tops(&self, tile: &mut RangeTile<K>, per_range: usize) -> usize {
        let mut blocks = 0;
        tile.complete = tile.len;
        let [_, found] = &mut tile.found;
        for (range, (left, right)) in tile.bounds[..tile.len].iter().enumerate() {
            if left > right {
                continue;
            }
            let threshold = tile.threshold[range];
            let (mut block, last) = (left >> TOP_BITS, right >> TOP_BITS);
            let most = per_range.saturating_add(blocks).min(MOST_BLOCKS);
            // SAFETY: guaranteed by the caller: these are blocks of level 4.
            unsafe {
                if block < last && !self.is_of_interest(block, last, threshold) {
                    block = last;
                }
                while let Some(top) = self.next_top(block, last, threshold) {
                    found[blocks] = (range << RANGE_SHIFT | top) as i64;
                    blocks += 1;
                    block = top + 1;
                    if blocks >= most {
                        break;
                    }
                }
            }
            if blocks >= MOST_BLOCKS {
                tile.complete = range;
                break;
            }
        }
        blocks
    }

    /// Whether any block of level 4 from `first` to `end`, exclusive, is of interest. There is at least one.
    ///
    /// # Safety
    /// They are blocks of level 4, and the levels are those of the column.
    #[inline(always)]
    unsafe fn is_of_interest(&self, first: usize, end: usize, threshold: K) -> bool {
        let row = (end - first).ilog2() as usize;
        // SAFETY: the two entries cover the blocks from `first` to `end`.
        unsafe {
            let entries = self.0.sparse.add(row * self.0.tops);
            (*entries.add(first)).min(*entries.add(end - (1 << row))) <= threshold
        }
    }

    /// Returns the first block of level 4 from `block` to `last` that is of interest.
    ///
    /// # Safety
    /// `last` is a block of level 4, and the levels are those of the column.
    #[inline(always)]
    unsafe fn next_top(&self, mut block: usize, last: usize, threshold: K) -> Option<usize> {
        let tops = self.0.tops;
        let mut row = 0;
        // Blocks without one of interest are skipped, twice as many each time, then half as many until one remains.
        while block <= last {
            let fits = block + (1 << row) <= tops;
            // SAFETY: the entry covers blocks of level 4 only.
            if fits && unsafe { *self.0.sparse.add(row * tops + block) } > threshold {
                block += 1 << row;
                row += 1;
            } else if row == 0 {
                return Some(block);
            } else {
                row -= 1;
            }
        }
        None
    }

    /// Replaces the blocks that were found, each with a line of `level`, by the blocks of that level of interest.
    /// Returns their number.
    ///
    /// # Safety
    /// As [`Self::find_blocks`]. The blocks overlap with their ranges.
    #[inline(always)]
    unsafe fn descend<S: Kernel<K>>(
        &self,
        tile: &mut RangeTile<K>,
        level: usize,
        blocks: usize,
        per_range: usize,
    ) -> usize {
        let [even, odd] = &mut tile.found;
        let (above, found) = if level.is_multiple_of(2) {
            (even, odd)
        } else {
            (odd, even)
        };
        let lines = self.0.lines(level);
        for ahead in &above[..PREFETCHED] {
            prefetch_block(lines, range_and_block(*ahead).1 * BLOCK);
        }
        let mut end = 0;
        // The range of the last block, and where its blocks begin.
        let (mut current, mut start) = (0, 0);
        for i in 0..blocks {
            prefetch_block(lines, range_and_block(above[i + PREFETCHED]).1 * BLOCK);
            let (range, block) = range_and_block(above[i]);
            if end >= MOST_BLOCKS {
                tile.complete = range;
                break;
            }
            if per_range < MOST_BLOCKS {
                if range != current {
                    (current, start) = (range, end);
                }
                if end - start >= per_range {
                    continue;
                }
            }
            let line = block * BLOCK;
            let mask = line_mask(level, line, tile.bounds[range]);
            // SAFETY: lines of a level are complete, padding included. `found` has room for the entries of a line after
            // `MOST_BLOCKS` blocks.
            unsafe {
                let hits = S::line_at_most(lines.add(line), mask, tile.threshold[range]);
                let first = (range << RANGE_SHIFT | line) as i64;
                S::numbers(first, hits, found.as_mut_ptr().add(end));
                end += hits.count_ones() as usize;
            }
        }
        end
    }

    /// Reads a block of the column that was found. Returns its range, the position of its first value from the origin
    /// of blocks, and the mask of the values that are rows of the range.
    ///
    /// # Safety
    /// As [`Self::find_blocks`].
    #[inline(always)]
    unsafe fn read_column<S: Kernel<K>>(
        &self,
        tile: &RangeTile<K>,
        i: usize,
    ) -> (usize, usize, u32) {
        let [found, _] = &tile.found;
        let ahead = range_and_block(found[i + PREFETCHED]).1;
        prefetch_block(self.0.base, ahead * BLOCK);
        let (range, block) = range_and_block(found[i]);
        let line = block * BLOCK;
        let mask = line_mask(0, line, tile.bounds[range]);
        let values = self.0.base.wrapping_add(line);
        let (encoding, threshold) = (self.0.context.encoding, tile.threshold[range]);
        // SAFETY: the mask leaves only values of the range, which are in the column.
        let hits = unsafe { S::base_at_most(values, mask, encoding, threshold) };
        (range, line, hits)
    }
}

/// The mask of the entries of a line that overlap with a range. The line does.
#[inline(always)]
fn line_mask(level: usize, line: usize, (left, right): Bounds) -> u32 {
    let shift = 4 * level;
    let first = (left >> shift).saturating_sub(line) % BLOCK;
    let last = ((right >> shift) - line).min(BLOCK - 1);
    (0xFFFF >> (BLOCK - 1 - last)) & (0xFFFF << first)
}
