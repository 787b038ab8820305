//! Search for many bounds at once, by levels of sampled keys.
//!
//! Level 1 holds each 16th key, level 2 each 256th, and so on: a search tree without pointers. From the first level on
//! which at most 16 keys are in a row's range, the bound is compared with a block of 16 keys of each level, without
//! branches, down to the keys themselves.
//!
//! The searches of a tile go through each level together, so that their cache misses overlap. The upper levels stay in
//! caches, so a bound takes two misses, however the keys are distributed. Interpolation takes as few only among keys
//! that are evenly distributed: among the times of trading days, or of bursts, it was 4 to 15 times slower.

use std::fmt;

use bytemuck::Pod;

use crate::candidate_ranges::CandidateRanges;
use crate::column::{Column, SharedSlice};
use crate::comparison::Comparison;
use crate::cpu::huge_page_buf::HugePageBuf;
use crate::cpu::key_search::arithmetic::{ArithmeticKeys, KeyArithmetic};
use crate::cpu::rmq::kernels::kernel::Kernel;
use crate::cpu::rmq::kernels::portable::Portable;
#[cfg(target_arch = "x86_64")]
use crate::cpu::rmq::kernels::{avx2::Avx2, avx512::Avx512};
use crate::cpu::simd::dispatch::{SupportedSimd, multiversion};
use crate::cpu::simd::prefetch::prefetch;
use crate::cpu::threads::in_parallel;
use crate::error::EngineError;
use crate::key::Encoding;

/// The keys of a block: how much fewer keys each level has.
const BLOCK: usize = 16;

/// Searches that go through each level together.
const SEARCHES_AT_ONCE: usize = 32;

/// The average size of groups from which on it is worthwhile to find out whether their keys are evenly spaced.
const MIN_GROUP_KEYS: usize = 64;

/// Keys that one thread samples at least.
const MIN_PER_THREAD: usize = 1 << 19;

/// Sorted keys in main memory, in the chunks they came in. They are borrowed, not copied.
pub struct CpuKeySearch<K> {
    /// None is empty.
    chunks: Vec<SharedSlice<K>>,
    encoding: Encoding<K>,
    /// The first position of each chunk, and the end of the last.
    starts: Vec<usize>,
    /// Level 1 first, each with a block more than it needs. The last has one block at most.
    levels: Vec<HugePageBuf<K>>,
    groups: usize,
    /// The first position and the keys of each group that is evenly spaced; empty if none is.
    arithmetic: Vec<Option<(usize, ArithmeticKeys<K>)>>,
}

impl<K> fmt::Debug for CpuKeySearch<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuKeySearch")
            .field("starts", &self.starts)
            .field("levels", &self.levels.len())
            .field("groups", &self.groups)
            .finish_non_exhaustive()
    }
}

/// One search of a tile.
#[derive(Clone, Copy)]
struct BoundSearch<K> {
    row: usize,
    comparison: Comparison,
    /// The position is in `low..=high`.
    low: usize,
    high: usize,
    /// The level on which the search begins, 0 for the keys themselves.
    level: usize,
    /// The first key of the block to compare, on the level to come.
    first: usize,
    /// The greatest key before the position.
    last_before: K,
}

/// Bounds of a batch, one per row, and how keys compare with them.
#[derive(Clone, Copy)]
pub(crate) struct Bounds<'a, K> {
    pub(crate) comparison: Comparison,
    pub(crate) bits: &'a [K],
    pub(crate) encoding: Encoding<K>,
}

/// Sorted keys as slices, and where each begins.
#[derive(Clone, Copy)]
struct Chunks<'a, K> {
    chunks: &'a [&'a [K]],
    starts: &'a [usize],
}

impl<K> Chunks<'_, K> {
    /// Returns the number of the chunk that has a position.
    #[inline(always)]
    fn find(&self, position: usize) -> usize {
        // Usually all but the last have the same length.
        let guess = position / self.starts[1];
        match self.starts.get(guess + 1) {
            Some(end) if self.starts[guess] <= position && position < *end => guess,
            _ => self.starts.partition_point(|start| *start <= position) - 1,
        }
    }

    /// Returns the keys of a position's chunk from that on.
    #[inline(always)]
    fn from(&self, position: usize) -> &[K] {
        match self.chunks {
            [keys] => &keys[position..],
            _ => {
                let chunk = self.find(position);
                &self.chunks[chunk][position - self.starts[chunk]..]
            }
        }
    }
}

#[expect(
    private_bounds,
    reason = "only the entry points of each width are public"
)]
impl<K: NarrowKey> CpuKeySearch<K> {
    pub(crate) fn from_columns(
        columns: &[Column<K>],
        group_starts: &[usize],
        threads: usize,
    ) -> Result<Self, EngineError> {
        let encoding = columns.first().map(Column::encoding);
        let encoding = encoding.unwrap_or_else(Encoding::unsigned);
        let chunks = columns.iter().filter(|column| !column.is_empty());
        let chunks: Vec<_> = chunks.map(|chunk| chunk.shared_bits().clone()).collect();
        let mut starts = vec![0];
        let mut end = 0;
        for chunk in &chunks {
            end += (**chunk).as_ref().len();
            starts.push(end);
        }
        let mut keys = Self {
            chunks,
            encoding,
            starts,
            levels: vec![],
            groups: group_starts.len().saturating_sub(1),
            arithmetic: vec![],
        };
        keys.arithmetic = keys.arithmetic_groups(group_starts);
        if !matches!(keys.arithmetic.as_slice(), [Some(_)]) {
            keys.levels = keys.sample(threads)?;
        }
        Ok(keys)
    }

    /// Returns the groups that are evenly spaced, if any is.
    fn arithmetic_groups(&self, group_starts: &[usize]) -> Vec<Option<(usize, ArithmeticKeys<K>)>> {
        if self.key_count() / self.groups.max(1) < MIN_GROUP_KEYS {
            return vec![];
        }
        let chunks = self.slices();
        let groups: Vec<_> = match (self.groups, chunks.as_slice()) {
            (1, chunks) => {
                let keys = ArithmeticKeys::detect(chunks.iter().copied(), self.encoding);
                vec![keys.map(|keys| (0, keys))]
            }
            (_, [bits]) => {
                let ends = group_starts.windows(2);
                let groups = ends.map(|ends| {
                    let bits = std::iter::once(&bits[ends[0]..ends[1]]);
                    Some((ends[0], ArithmeticKeys::detect(bits, self.encoding)?))
                });
                groups.collect()
            }
            _ => vec![],
        };
        if groups.iter().any(Option::is_some) {
            groups
        } else {
            vec![]
        }
    }

    /// Returns the levels of these keys.
    fn sample(&self, threads: usize) -> Result<Vec<HugePageBuf<K>>, EngineError> {
        let slices = self.slices();
        let chunks = Chunks {
            chunks: &slices,
            starts: &self.starts,
        };
        let mut levels: Vec<HugePageBuf<K>> = vec![];
        let mut keys = self.key_count();
        for _ in 0..first_level(keys) {
            let samples = keys.div_ceil(BLOCK);
            let mut level = HugePageBuf::zeroed(samples + BLOCK)?;
            let share = samples.div_ceil(threads.min(keys / MIN_PER_THREAD).max(1));
            let below = levels.last().map(|below| &**below);
            let parts = level[..samples].chunks_mut(share).zip((0..).step_by(share));
            in_parallel(parts, |(part, first)| {
                fill_level(part, first, below, chunks, self.encoding);
            })?;
            levels.push(level);
            keys = samples;
        }
        Ok(levels)
    }

    fn slices(&self) -> Vec<&[K]> {
        let chunks = self.chunks.iter();
        chunks.map(|chunk| (**chunk).as_ref()).collect()
    }

    pub(crate) fn key_count(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    pub(crate) fn total_bytes(&self) -> usize {
        let levels: usize = self.levels.iter().map(HugePageBuf::bytes).sum();
        self.key_count() * size_of::<K>()
            + levels
            + self.chunks.len() * (size_of::<SharedSlice<K>>() + size_of::<usize>())
            + size_of_val(self.arithmetic.as_slice())
    }

    pub(crate) fn key_at(&self, position: usize) -> K {
        let chunk = self.starts.partition_point(|start| *start <= position) - 1;
        let bits = (*self.chunks[chunk]).as_ref()[position - self.starts[chunk]];
        self.encoding.encode(bits)
    }

    pub(crate) fn narrow_candidates(
        &self,
        candidates: &mut CandidateRanges,
        bounds: &[Bounds<'_, K>],
    ) -> Result<(), EngineError> {
        self.narrow_with(SupportedSimd::best(), candidates, bounds)
    }

    fn narrow_with(
        &self,
        simd: SupportedSimd,
        candidates: &mut CandidateRanges,
        bounds: &[Bounds<'_, K>],
    ) -> Result<(), EngineError> {
        let mut lengths = bounds.iter().map(|bounds| bounds.bits.len());
        if let Some(found) = lengths.find(|length| *length != candidates.rows()) {
            return Err(EngineError::Lengths {
                what: "the slice of bounds",
                expected: candidates.rows(),
                found,
            });
        }
        let slices = self.slices();
        for (bits, ends) in slices.iter().zip(self.starts.windows(2)) {
            if bits.len() != ends[1] - ends[0] {
                return Err(EngineError::ColumnMoved);
            }
        }
        let keys = self.key_count();
        if candidates.limit() > keys {
            return Err(EngineError::Lengths {
                what: "the sorted keys, where a range of candidates ends behind them,",
                expected: candidates.limit(),
                found: keys,
            });
        }
        let chunks = Chunks {
            chunks: &slices,
            starts: &self.starts,
        };
        let arithmetic = if self.groups == 1 || candidates.has_groups() {
            self.arithmetic.as_slice()
        } else {
            // Ranges without groups among keys in groups may begin anywhere.
            &[]
        };
        let sorted = SortedKeys {
            chunks,
            encoding: self.encoding,
            levels: &self.levels,
            arithmetic,
        };
        K::narrow(simd, sorted, candidates, bounds);
        Ok(())
    }
}

/// Sorted keys to search.
#[derive(Clone, Copy)]
pub(crate) struct SortedKeys<'a, K> {
    chunks: Chunks<'a, K>,
    encoding: Encoding<K>,
    levels: &'a [HugePageBuf<K>],
    arithmetic: &'a [Option<(usize, ArithmeticKeys<K>)>],
}

/// A key with a search for each instruction set.
pub(crate) trait NarrowKey: KeyArithmetic + Pod {
    /// See [`narrow`].
    fn narrow(
        simd: SupportedSimd,
        keys: SortedKeys<'_, Self>,
        candidates: &mut CandidateRanges,
        bounds: &[Bounds<'_, Self>],
    );
}

/// Compiles the search for the kernels of AVX-512, AVX2 and the base instruction set, or for the last alone.
macro_rules! narrow_key {
    ($key:ty: $($kernel:ty),+) => {
        impl NarrowKey for $key {
            multiversion! {
                fn narrow[](
                    keys: SortedKeys<'_, $key>,
                    candidates: &mut CandidateRanges,
                    bounds: &[Bounds<'_, $key>],
                )
                where S in [$($kernel),+] {
                    narrow::<$key, S>(keys, candidates, bounds);
                }
            }
        }
    };
}

narrow_key!(u32: Avx512, Avx2, Portable);
narrow_key!(u64: Avx512, Avx2, Portable);
// Vectors have no comparison of this width.
narrow_key!(u128: Portable);

/// Intersects each row's candidates with the positions whose key compares so with each of the row's bounds.
#[inline(always)]
fn narrow<K: KeyArithmetic + Pod, S: Kernel<K>>(
    keys: SortedKeys<'_, K>,
    candidates: &mut CandidateRanges,
    bounds: &[Bounds<'_, K>],
) {
    let is_one_group = keys.arithmetic.len() == 1;
    let mut tile: Vec<BoundSearch<K>> = Vec::with_capacity(SEARCHES_AT_ONCE);
    if bounds.is_empty() {
        return;
    }
    let rows_at_once = (SEARCHES_AT_ONCE / bounds.len()).max(1);
    let rows = candidates.rows();
    for first in (0..rows).step_by(rows_at_once) {
        tile.clear();
        let mut top = 0;
        for row in first..rows.min(first + rows_at_once) {
            let Some((low, high)) = candidates.get(row) else {
                continue;
            };
            // One group has all keys.
            let group = if is_one_group {
                0
            } else {
                candidates.group(row)
            };
            let arithmetic = keys.arithmetic.get(group).and_then(Option::as_ref);
            let level = first_level(high - low);
            let block = samples_before(low, level);
            if arithmetic.is_none() {
                keys.prefetch_block(level, block);
            }
            for Bounds {
                comparison,
                bits,
                encoding,
            } in bounds
            {
                let bound = encoding.encode(bits[row]);
                let before_equal = comparison.is_before_equal();
                if let Some((start, keys)) = arithmetic {
                    let position = start + keys.count_before(bound, before_equal);
                    candidates.intersect(row, *comparison, position);
                    continue;
                }
                if before_equal && bound == K::ZERO {
                    candidates.intersect(row, *comparison, low);
                    continue;
                }
                top = top.max(level);
                tile.push(BoundSearch {
                    row,
                    comparison: *comparison,
                    low,
                    high,
                    level,
                    first: block,
                    last_before: if before_equal {
                        bound.distance(K::ONE)
                    } else {
                        bound
                    },
                });
            }
        }
        for level in (1..=top).rev() {
            for search in &mut tile {
                if search.level >= level {
                    let position = keys.position_on_level::<S>(level, search);
                    search.first = position.saturating_sub(1) * BLOCK;
                    keys.prefetch_block(level - 1, search.first);
                }
            }
        }
        for search in &tile {
            candidates.intersect(search.row, search.comparison, keys.position::<S>(search));
        }
    }
}

impl<K: KeyArithmetic + Pod> SortedKeys<'_, K> {
    /// Returns how many keys of a level, counted from its begin, are of positions before the one that is searched.
    #[inline(always)]
    fn position_on_level<S: Kernel<K>>(&self, level: usize, search: &BoundSearch<K>) -> usize {
        let first = search.first;
        let (begin, mask) = lanes(
            first,
            samples_before(search.low, level),
            samples_before(search.high, level),
        );
        let block = &self.levels[level - 1][first..first + BLOCK];
        // SAFETY: the block has 16 keys, and this is compiled for the instructions of `S`.
        let before = unsafe { S::line_at_most(block.as_ptr(), mask, search.last_before) };
        begin + before.count_ones() as usize
    }

    /// Returns the position that is searched.
    #[inline(always)]
    fn position<S: Kernel<K>>(&self, search: &BoundSearch<K>) -> usize {
        let first = search.first;
        let (begin, mask) = lanes(first, search.low, search.high);
        let keys = self.chunks.from(first);
        if keys.len() < BLOCK && mask >> keys.len() != 0 {
            return self.position_across_chunks(search);
        }
        // SAFETY: the mask is of keys of the chunk, and this is compiled for the instructions of `S`.
        let before =
            unsafe { S::base_at_most(keys.as_ptr(), mask, self.encoding, search.last_before) };
        begin + before.count_ones() as usize
    }

    /// As [`Self::position`] for a block in several chunks.
    #[cold]
    fn position_across_chunks(&self, search: &BoundSearch<K>) -> usize {
        let end = search.high.min(search.first + BLOCK);
        let mut position = search.low.max(search.first);
        while position < end
            && self.encoding.encode(self.chunks.from(position)[0]) <= search.last_before
        {
            position += 1;
        }
        position
    }

    /// Prefetches the block of a level that begins with this key.
    #[inline(always)]
    fn prefetch_block(&self, level: usize, first: usize) {
        let keys = match level.checked_sub(1) {
            Some(level) => self.levels[level][first..].as_ptr(),
            None => self.chunks.from(first).as_ptr(),
        };
        for line in (0..size_of::<[K; BLOCK]>()).step_by(64) {
            prefetch(keys.wrapping_byte_add(line));
        }
    }
}

/// Returns the first level on which a range of this many positions has at most 16 keys.
#[inline(always)]
fn first_level(positions: usize) -> usize {
    let bits = usize::BITS - positions.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(1) / BLOCK.ilog2()) as usize
}

/// Returns how many keys of a level are of positions before this one.
#[inline(always)]
fn samples_before(position: usize, level: usize) -> usize {
    let shift = BLOCK.ilog2() as usize * level;
    (position + (1 << shift) - 1) >> shift
}

/// Returns the first position of a block that is in a range, or the end of the range or of the block, and the mask of
/// those of the block's 16 positions that are in the range.
#[inline(always)]
fn lanes(first: usize, low: usize, high: usize) -> (usize, u32) {
    let begin = low.saturating_sub(first).min(BLOCK);
    let end = high.saturating_sub(first).min(BLOCK);
    let mask = ((1_u32 << end) - 1) & !((1_u32 << begin) - 1);
    (first + begin, mask)
}

/// Returns the bytes of the levels of this many keys.
pub(crate) fn level_bytes<K>(keys: usize) -> usize {
    let mut samples = keys;
    let levels = (0..first_level(keys)).map(|_| {
        samples = samples.div_ceil(BLOCK);
        (samples + BLOCK) * size_of::<K>()
    });
    levels.sum()
}

/// Fills a part of a level, which begins with this key, from the level below or from the keys themselves.
fn fill_level<K: KeyArithmetic>(
    part: &mut [K],
    first: usize,
    below: Option<&[K]>,
    chunks: Chunks<'_, K>,
    encoding: Encoding<K>,
) {
    let positions = (first * BLOCK..).step_by(BLOCK);
    match (below, chunks.chunks) {
        (Some(below), _) => {
            for (key, position) in part.iter_mut().zip(positions) {
                *key = below[position];
            }
        }
        (None, [keys]) => {
            for (key, position) in part.iter_mut().zip(positions) {
                *key = encoding.encode(keys[position]);
            }
        }
        (None, _) => {
            for (key, position) in part.iter_mut().zip(positions) {
                *key = encoding.encode(chunks.from(position)[0]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cpu::key_search::order::are_sorted;
    use crate::cpu::simd::dispatch::Simd;

    const COMPARISONS: [Comparison; 4] = [
        Comparison::Above,
        Comparison::AtLeast,
        Comparison::Below,
        Comparison::AtMost,
    ];

    /// Sorted keys as signed numbers: spread evenly, few values, powers of two, at the end of the type, or evenly
    /// spaced.
    fn keys(random: &mut fastrand::Rng, rows: usize, round: usize) -> Vec<i64> {
        let mut keys: Vec<i64> = (0..rows)
            .map(|row| match round % 5 {
                0 => random.i64(-1000..1_000_000),
                1 => random.i64(-4..4),
                2 => (1 << random.u32(..62)) - 1000,
                3 => i64::MIN + random.i64(0..3),
                _ => 7 * row as i64 - 1000,
            })
            .collect();
        keys.sort_unstable();
        keys
    }

    /// Bounds below, among and above these keys.
    fn bounds(random: &mut fastrand::Rng, keys: &[i64], count: usize) -> Vec<i64> {
        let bound = |random: &mut fastrand::Rng| match random.u64(..10) {
            0 => i64::MIN,
            1 => i64::MAX,
            _ => keys[random.usize(..keys.len())].wrapping_add(random.i64(-1..2)),
        };
        (0..count).map(|_| bound(random)).collect()
    }

    fn column(values: &[i64]) -> Column<u64> {
        let bits: Vec<u64> = values.iter().map(|v| v.cast_unsigned()).collect();
        Column::new(Arc::new(bits), Encoding::signed())
    }

    /// The ends that each instruction set of this machine finds.
    fn narrowed(
        keys: &CpuKeySearch<u64>,
        candidates: &CandidateRanges,
        bounds: &[(Comparison, &[i64])],
    ) -> Vec<Option<(usize, usize)>> {
        let columns: Vec<_> = bounds.iter().map(|(_, bounds)| column(bounds)).collect();
        let bounds: Vec<_> = bounds
            .iter()
            .zip(&columns)
            .map(|((comparison, _), column)| Bounds {
                comparison: *comparison,
                bits: column.bits(),
                encoding: column.encoding(),
            })
            .collect();
        let supported = Simd::ALL.into_iter().filter(|simd| simd.is_available());
        let mut found = supported.map(|simd| {
            let simd = SupportedSimd::try_new(simd).expect("it is available");
            let mut candidates = candidates.clone();
            keys.narrow_with(simd, &mut candidates, &bounds)
                .expect("one bound per row");
            let (starts, ends) = (candidates.starts().iter(), candidates.ends().iter());
            let ranges = starts.zip(ends).map(|(start, end)| (*start, *end));
            ranges.map(unless_empty).collect::<Vec<_>>()
        });
        let first = found.next().expect("portable code");
        for other in found {
            assert_eq!(other, first);
        }
        first
    }

    /// The expected range, found by comparing each key.
    fn expected_range(
        keys: &[i64],
        (start, end): (usize, usize),
        comparison: Comparison,
        bound: i64,
    ) -> Option<(usize, usize)> {
        let is_before =
            |key: &&i64| **key < bound || **key == bound && !comparison.is_before_equal();
        let position = start + keys[start..end].iter().filter(is_before).count();
        unless_empty(if comparison.is_lower() {
            (position, end)
        } else {
            (start, position)
        })
    }

    fn unless_empty((start, end): (usize, usize)) -> Option<(usize, usize)> {
        (start < end).then_some((start, end))
    }

    #[test]
    fn chunks_are_searched_like_one_slice() {
        let random = &mut fastrand::Rng::with_seed(1_442_695_040_888_963_407);
        for round in 0..300 {
            // Up to four levels.
            let rows = 1 + random.usize(..[20, 300, 5000, 70_000][round / 5 % 4]);
            let keys = keys(random, rows, round);
            let mut chunks = vec![];
            let mut from = 0;
            // Some are empty, some of one key; one alone, of equal lengths, or of any.
            let length = [rows, 1 + random.usize(..100), 0][round % 3];
            while from < rows {
                let most = if length > 0 {
                    length
                } else {
                    random.usize(..=rows)
                };
                let to = rows.min(from + most);
                chunks.push(column(&keys[from..to]));
                from = to;
            }
            assert!(are_sorted(&chunks));
            let threads = 1 + random.usize(..3);
            let sorted = CpuKeySearch::from_columns(&chunks, &[0, rows], threads).expect("memory");
            let at = random.usize(..rows);
            let key = Encoding::<u64>::signed().encode(keys[at].cast_unsigned());
            assert_eq!(sorted.key_at(at), key);
            let queried = bounds(random, &keys, 50);
            let mut candidates = CandidateRanges::all(queried.len(), rows);
            for row in 0..queried.len() {
                if random.bool() {
                    candidates.intersect(row, Comparison::Above, random.usize(..rows));
                    candidates.intersect(row, Comparison::Below, random.usize(..rows));
                }
            }
            for comparison in COMPARISONS {
                let found = narrowed(&sorted, &candidates, &[(comparison, &queried)]);
                for (row, bound) in queried.iter().enumerate() {
                    let Some(range) = candidates.get(row) else {
                        continue;
                    };
                    let expected = expected_range(&keys, range, comparison, *bound);
                    let what =
                        format!("round {round}, {rows} keys, {comparison:?} {bound} in {range:?}");
                    assert_eq!(found[row], expected, "{what}");
                }
            }
        }
    }

    #[test]
    fn levels_are_the_same_by_any_number_of_threads() {
        let keys: Vec<i64> = (0..3 * MIN_PER_THREAD as i64).map(|i| i * i).collect();
        let levels = |threads| {
            let sorted = CpuKeySearch::from_columns(&[column(&keys)], &[0, keys.len()], threads);
            let levels = sorted.expect("memory").levels;
            levels
                .iter()
                .map(|level| level.to_vec())
                .collect::<Vec<_>>()
        };
        assert_eq!(levels(3), levels(1));
    }

    #[test]
    fn groups_are_searched_by_themselves() {
        let random = &mut fastrand::Rng::with_seed(88_172_645_463_325_252);
        for round in 0..60 {
            let mut all = vec![];
            let mut starts = vec![0];
            for group in 0..4 {
                let most = [10, 500, 6000][random.usize(..3)];
                let rows = 1 + random.usize(..most);
                all.append(&mut keys(random, rows, round + group));
                starts.push(all.len());
            }
            let sorted = CpuKeySearch::from_columns(&[column(&all)], &starts, 2).expect("memory");
            let queried = bounds(random, &all, 150);
            let groups: Vec<u32> = queried.iter().map(|_| random.u32(..4)).collect();
            let candidates = CandidateRanges::of_groups(groups.clone(), &starts);
            for comparison in COMPARISONS {
                let found = narrowed(&sorted, &candidates, &[(comparison, &queried)]);
                for (row, (bound, group)) in queried.iter().zip(&groups).enumerate() {
                    let group = *group as usize;
                    let whole = (starts[group], starts[group + 1]);
                    let expected = expected_range(&all, whole, comparison, *bound);
                    assert_eq!(
                        found[row], expected,
                        "round {round}, {comparison:?} {bound}"
                    );
                }
            }
        }
    }
}
