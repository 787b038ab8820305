//! The listing of rows: all rows of a range whose key is at most a threshold, and their number.
//!
//! A block is of interest if its minimum is at most the threshold. A range starts at the lowest level where one line covers it, or walks the blocks of
//! level 4 of interest, which the sparse table finds without reading those between. From there the lines below blocks of interest are visited depth
//! first, so rows come in ascending order, and a listing can stop at any row. Every line that is read has a row, or is at an end of the range:
//! about one line of each level per row found, fewer where rows are neighbours.

use bytemuck::Pod;

use crate::cpu::rmq::kernels::kernel::Kernel;
use crate::cpu::rmq::levels::{BLOCK, LEVELS};
use crate::cpu::rmq::search::{BatchSearch, Context};
use crate::cpu::simd::prefetch::prefetch;
use crate::crossings::{ListLimits, RowList};
use crate::key::Key;

/// The number of bits of a position within a block of level 4.
const TOP_BITS: usize = 4 * LEVELS;

/// Lists the rows of a batch of ranges into `out`, which is empty. The slices have been checked.
///
/// # Safety
/// The levels were built of this column, or of one of the same length and alignment offset, and the machine has the instructions of `S`.
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
    let offset = context.alignment_offset;
    for ((left, right), threshold) in left.iter().zip(right).zip(thresholds) {
        let before = out.positions.len();
        let mut rows = out.begin_range(limits);
        // Not in a closure, which would be compiled for the base instruction set.
        let range = listing.clip(*left, *right);
        if let Some(range) = range.filter(|_| rows.has_room()) {
            // SAFETY: guaranteed by the caller; `clip` returns positions of the column.
            unsafe {
                listing.visit::<S>(range, *threshold, |first, mut hits| {
                    while hits != 0 {
                        let at = first + hits.trailing_zeros() as usize;
                        hits &= hits - 1;
                        // Positions fit `i64`, see `Layout::new`.
                        if !rows.add((at - offset) as i64) {
                            return false;
                        }
                    }
                    true
                });
            }
        }
        if !out.end_range(before, limits) {
            break;
        }
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
    let bounds = left.iter().zip(right).zip(thresholds);
    for (((left, right), threshold), count) in bounds.zip(counts) {
        *count = 0;
        if let Some(range) = listing.clip(*left, *right) {
            // SAFETY: guaranteed by the caller; `clip` returns positions of the column.
            unsafe {
                listing.visit::<S>(range, *threshold, |_, hits| {
                    *count += i64::from(hits.count_ones());
                    true
                });
            }
        }
    }
}

/// The first and the last position of a range, counted from the origin of blocks.
type Bounds = (usize, usize);

struct Listing<'a, K>(BatchSearch<'a, K>);

impl<K: Key + Pod> Listing<'_, K> {
    /// Clips a range to the column; `None` if it is empty.
    #[inline(always)]
    fn clip(&self, left: i64, right: i64) -> Option<Bounds> {
        let context = &self.0.context;
        let (left, right) = (left.max(0), right.min(context.column.len() as i64 - 1));
        let offset = context.alignment_offset;
        (left <= right).then(|| (left as usize + offset, right as usize + offset))
    }

    /// Calls `visit` with the rows of a range that are at most `threshold`: the position of a first row, and a mask of the rows from that on. Stops
    /// when it returns false.
    ///
    /// # Safety
    /// As [`list_at_most`], and the range is within the column.
    #[inline(always)]
    unsafe fn visit<S: Kernel<K>>(
        &self,
        (left, right): Bounds,
        threshold: K,
        mut visit: impl FnMut(usize, u32) -> bool,
    ) {
        if let Some(valid) = self.0.context.valid.filter(|_| threshold == K::MAX) {
            // Such a threshold does not tell NULL from the greatest value. All other rows are at most that.
            let offset = self.0.context.alignment_offset;
            let mut from = left;
            while let Some(at) = valid.next(from - offset) {
                if at + offset > right || !visit(at + offset, 1) {
                    return;
                }
                from = at + offset + 1;
            }
            return;
        }
        let (first, last) = (left >> TOP_BITS, right >> TOP_BITS);
        if first == last {
            let differing = usize::BITS - (left ^ right).leading_zeros();
            let level = differing.saturating_sub(1) as usize / 4;
            let line = (left >> (4 * level)) & !(BLOCK - 1);
            // SAFETY: guaranteed by the caller. One line of this level covers the range.
            unsafe {
                self.descend::<S>((level, line), (left, right), threshold, &mut visit);
            }
            return;
        }
        let mut block = first;
        // SAFETY: guaranteed by the caller; `last` is a block of level 4.
        while let Some(top) = unsafe { self.next_top(block, last, threshold) } {
            let line = (LEVELS - 1, top * BLOCK);
            // SAFETY: guaranteed by the caller. The block overlaps with the range.
            if !unsafe { self.descend::<S>(line, (left, right), threshold, &mut visit) } {
                return;
            }
            block = top + 1;
        }
    }

    /// Returns the first block of level 4 from `block` to `last` whose minimum is at most `threshold`.
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

    /// Visits the rows below a line, which is given by its level and first entry, within a range that overlaps with it. Returns whether all calls of
    /// `visit` have returned true.
    ///
    /// # Safety
    /// As [`Self::visit`], and the level is below 4.
    #[inline(always)]
    unsafe fn descend<S: Kernel<K>>(
        &self,
        (top, line): (usize, usize),
        range: Bounds,
        threshold: K,
        visit: &mut impl FnMut(usize, u32) -> bool,
    ) -> bool {
        // Of each level, the line that is being visited, and its entries of interest that have not been.
        let (mut lines, mut pending) = ([0; LEVELS], [0_u32; LEVELS]);
        let mut level = top;
        let mut line = line;
        loop {
            // SAFETY: guaranteed by the caller; the line overlaps with the range.
            let hits = unsafe { self.hits::<S>(level, line, range, threshold) };
            if level > 0 {
                lines[level % LEVELS] = line;
                pending[level % LEVELS] = hits;
            } else if hits != 0 && !visit(line, hits) {
                return false;
            }
            while level == 0 || pending[level % LEVELS] == 0 {
                if level == top {
                    return true;
                }
                level += 1;
            }
            let hits = &mut pending[level % LEVELS];
            line = (lines[level % LEVELS] + hits.trailing_zeros() as usize) * BLOCK;
            *hits &= *hits - 1;
            level -= 1;
        }
    }

    /// Returns the mask of the entries of a line that overlap with a range and are at most `threshold`, and prefetches what is below them.
    ///
    /// # Safety
    /// As [`Self::descend`].
    #[inline(always)]
    unsafe fn hits<S: Kernel<K>>(
        &self,
        level: usize,
        line: usize,
        (left, right): Bounds,
        threshold: K,
    ) -> u32 {
        let shift = 4 * level;
        let first = (left >> shift).saturating_sub(line) % BLOCK;
        let last = ((right >> shift) - line).min(BLOCK - 1);
        let mask = (0xFFFF >> (BLOCK - 1 - last)) & (0xFFFF << first);
        if level == 0 {
            let encoding = self.0.context.encoding;
            // SAFETY: the mask leaves only values of the range, which are in the column.
            return unsafe {
                S::base_at_most(self.0.base.wrapping_add(line), mask, encoding, threshold)
            };
        }
        // SAFETY: lines of a level are complete, padding included.
        let hits = unsafe { S::line_at_most(self.0.lines(level).add(line), mask, threshold) };
        let below = self.0.lines(level - 1);
        let mut rest = hits;
        while rest != 0 {
            let block = line + rest.trailing_zeros() as usize;
            prefetch(below.wrapping_add(block * BLOCK));
            rest &= rest - 1;
        }
        hits
    }
}
