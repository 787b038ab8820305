//! Search for many bounds at once, by search trees over the groups of keys (`trees.rs`): a bound is compared with a
//! block of 16 keys of each level, without branches, down to the keys themselves.
//!
//! The searches of a tile go through each level together, so that their cache misses overlap. The upper levels stay in
//! caches, so a bound takes two misses, however the keys are distributed. Interpolation takes as few only among keys
//! that are evenly distributed: among the times of trading days, or of bursts, it was 4 to 15 times slower.

use std::fmt;
use std::ops::Range;

use bytemuck::Pod;

use crate::candidate_ranges::CandidateRanges;
use crate::column::{Column, SharedSlice};
use crate::comparison::Comparison;
use crate::cpu::key_search::arithmetic::{ArithmeticKeys, KeyArithmetic};
use crate::cpu::key_search::trees::{BLOCK, LEVELS, MAX_KEYS_WITHOUT_TREE, NO_LEVELS, Tree, Trees};
use crate::cpu::rmq::kernels::kernel::Kernel;
use crate::cpu::rmq::kernels::portable::Portable;
#[cfg(target_arch = "x86_64")]
use crate::cpu::rmq::kernels::{avx2::Avx2, avx512::Avx512};
use crate::cpu::simd::dispatch::{SupportedSimd, multiversion};
use crate::cpu::simd::prefetch::prefetch;
use crate::error::EngineError;
use crate::key::Encoding;

/// All keys of a block.
const ALL: u32 = (1 << BLOCK) - 1;

/// Searches that go through each level together.
const SEARCHES_AT_ONCE: usize = 32;

/// The average size of groups from which on it is worthwhile to find out whether their keys are evenly spaced.
const MIN_GROUP_KEYS: usize = 64;

/// Sorted keys in main memory, in the chunks they came in. They are borrowed, not copied.
pub struct CpuKeySearch<K> {
    /// None is empty.
    chunks: Vec<SharedSlice<K>>,
    encoding: Encoding<K>,
    /// The first position of each chunk, and the end of the last.
    starts: Vec<usize>,
    trees: Trees<K>,
    groups: usize,
    /// The first position and the keys of each group that is evenly spaced; empty if none is.
    arithmetic: Vec<Option<(usize, ArithmeticKeys<K>)>>,
}

impl<K> fmt::Debug for CpuKeySearch<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuKeySearch")
            .field("starts", &self.starts)
            .field("groups", &self.groups)
            .finish_non_exhaustive()
    }
}

/// One search of a tile.
#[derive(Clone, Copy)]
struct BoundSearch<'a, K> {
    tree: &'a Tree,
    /// The first key of the block to compare, on the level to come, counted from the begin of the tree.
    first: usize,
    /// The greatest key before the position. It is not [`Key::MAX`].
    last_before: K,
    row: usize,
    comparison: Comparison,
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
            trees: Trees::none(),
            groups: group_starts.len().saturating_sub(1),
            arithmetic: vec![],
        };
        keys.arithmetic = keys.arithmetic_groups(group_starts);
        if !matches!(keys.arithmetic.as_slice(), [Some(_)]) {
            let slices = keys.slices();
            let chunks = Chunks {
                chunks: &slices,
                starts: &keys.starts,
            };
            let key_at = |position| encoding.encode(chunks.from(position)[0]);
            keys.trees = Trees::build(group_starts, key_at, threads)?;
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

    fn slices(&self) -> Vec<&[K]> {
        let chunks = self.chunks.iter();
        chunks.map(|chunk| (**chunk).as_ref()).collect()
    }

    pub(crate) fn key_count(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    pub(crate) fn total_bytes(&self) -> usize {
        self.key_count() * size_of::<K>()
            + self.trees.bytes()
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
        let sorted = SortedKeys {
            chunks,
            encoding: self.encoding,
            trees: &self.trees,
            levels: self.trees.levels(),
            arithmetic: &self.arithmetic,
            // Ranges without groups among keys in groups may begin anywhere.
            has_groups: self.groups == 1 || candidates.has_groups(),
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
    trees: &'a Trees<K>,
    /// The keys of each level of all trees; none on level 0, that of the keys themselves.
    levels: [&'a [K]; LEVELS],
    arithmetic: &'a [Option<(usize, ArithmeticKeys<K>)>],
    /// Whether the group of each row's range is known.
    has_groups: bool,
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
    let mut tile = [BoundSearch {
        tree: &NO_LEVELS,
        first: 0,
        last_before: K::ZERO,
        row: 0,
        comparison: Comparison::AtLeast,
    }; SEARCHES_AT_ONCE];
    for bounds in bounds.chunks(SEARCHES_AT_ONCE) {
        let (rows, at_once) = (candidates.rows(), SEARCHES_AT_ONCE / bounds.len());
        for first in (0..rows).step_by(at_once) {
            let rows = first..rows.min(first + at_once);
            narrow_tile::<K, S>(&keys, candidates, bounds, rows, &mut tile);
        }
    }
}

/// The same for these rows, whose searches fit a tile.
#[inline(always)]
fn narrow_tile<'a, K: KeyArithmetic + Pod, S: Kernel<K>>(
    keys: &SortedKeys<'a, K>,
    candidates: &mut CandidateRanges,
    bounds: &[Bounds<'_, K>],
    rows: Range<usize>,
    tile: &mut [BoundSearch<'a, K>; SEARCHES_AT_ONCE],
) {
    let (mut searches, mut top) = (0, 0);
    // Looked up together, as each is a cache miss where groups are many.
    let mut trees = [&NO_LEVELS; SEARCHES_AT_ONCE];
    for (tree, row) in trees.iter_mut().zip(rows.clone()) {
        *tree = keys.tree_of(candidates.group(row));
    }
    for (tree, row) in trees.into_iter().zip(rows) {
        if let Some((low, high)) = candidates.get(row) {
            let arithmetic = keys.arithmetic_of(candidates.group(row));
            let first = if tree.levels > 0 { 0 } else { low };
            if arithmetic.is_none() {
                prefetch_block(keys.blocks(tree.levels)(tree.begin(tree.levels) + first));
                top = top.max(tree.levels);
            }
            for bounds in bounds {
                let comparison = bounds.comparison;
                let before_equal = comparison.is_before_equal();
                let bound = bounds.encoding.encode(bounds.bits[row]);
                let last_before = if before_equal {
                    bound.distance(K::ONE)
                } else {
                    bound
                };
                if let Some((start, keys)) = arithmetic {
                    let position = start + keys.count_before(bound, before_equal);
                    candidates.intersect(row, comparison, position);
                } else if last_before == K::MAX {
                    // No key is before the least one; none is above the greatest.
                    let position = if before_equal { low } else { high };
                    candidates.intersect(row, comparison, position);
                } else {
                    tile[searches % SEARCHES_AT_ONCE] = BoundSearch {
                        tree,
                        first,
                        last_before,
                        row,
                        comparison,
                    };
                    searches += 1;
                }
            }
        }
    }
    let tile = &mut tile[..searches];
    for level in (1..=top).rev() {
        let samples = keys.levels[level];
        let below = keys.blocks(level - 1);
        for search in &mut *tile {
            if search.tree.levels < level {
                continue;
            }
            let block = &samples[search.tree.begin(level) + search.first..][..BLOCK];
            // SAFETY: the block has 16 keys, and this is compiled for the instructions of `S`.
            let before = unsafe { S::line_at_most(block.as_ptr(), ALL, search.last_before) };
            // The position is in the block of the last key that is before it.
            search.first += (before.count_ones() as usize).saturating_sub(1);
            search.first *= BLOCK;
            prefetch_block(below(search.tree.begin(level - 1) + search.first));
        }
    }
    for search in tile {
        let position = if search.tree.levels > 0 {
            keys.position_in_block::<S>(search)
        } else if let Some((low, high)) = candidates.get(search.row) {
            keys.position_between::<S>(low..high, search.last_before)
        } else {
            continue;
        };
        candidates.intersect(search.row, search.comparison, position);
    }
}

impl<'a, K: KeyArithmetic + Pod> SortedKeys<'a, K> {
    /// The keys of a group, if they are evenly spaced.
    #[inline(always)]
    fn arithmetic_of(&self, group: usize) -> Option<&'a (usize, ArithmeticKeys<K>)> {
        let arithmetic = self.arithmetic.get(group).and_then(Option::as_ref);
        arithmetic.filter(|_| self.has_groups)
    }

    /// The tree of a group.
    #[inline(always)]
    fn tree_of(&self, group: usize) -> &'a Tree {
        if self.has_groups {
            self.trees.of_group(group)
        } else {
            &NO_LEVELS
        }
    }

    /// Returns a function that tells where the block of a level begins whose first key has this number. The block may
    /// begin before the keys of a chunk.
    #[inline(always)]
    fn blocks(&self, level: usize) -> impl Fn(usize) -> *const K {
        let (keys, chunks) = (self.levels[level % LEVELS].as_ptr(), self.chunks);
        move |first| match (level, chunks.chunks) {
            (0, [keys]) => keys.as_ptr().wrapping_add(first),
            (0, _) => chunks.from(first).as_ptr(),
            _ => keys.wrapping_add(first),
        }
    }

    /// Returns the position that is searched, after the descent to a block of keys.
    #[inline(always)]
    fn position_in_block<S: Kernel<K>>(&self, search: &BoundSearch<'_, K>) -> usize {
        let (start, end) = search.tree.positions();
        let first = search.tree.begin(0) + search.first;
        let positions = start.max(first)..end.min(first + BLOCK);
        positions.start + self.count_at_most::<S>(first, positions, search.last_before)
    }

    /// Returns the first of these positions whose key is above this one, or their end. There is no tree.
    #[inline(always)]
    fn position_between<S: Kernel<K>>(&self, mut positions: Range<usize>, last_before: K) -> usize {
        if positions.len() > MAX_KEYS_WITHOUT_TREE {
            return self.partition_point(positions, last_before);
        }
        loop {
            let first = positions.start;
            let block = first..positions.end.min(first + BLOCK);
            positions.start += self.count_at_most::<S>(first, block.clone(), last_before);
            if positions.start < block.end || block.end == positions.end {
                return positions.start;
            }
        }
    }

    /// Returns how many of the keys at these positions, in the block of keys from `first` on, are at most this one.
    #[inline(always)]
    fn count_at_most<S: Kernel<K>>(
        &self,
        first: usize,
        positions: Range<usize>,
        last_before: K,
    ) -> usize {
        let (start, end) = (positions.start, positions.end);
        let keys = self.chunks.from(start);
        if keys.len() < end - start {
            return self.count_across_chunks(positions, last_before);
        }
        let mask = ALL >> (BLOCK + first - end) & ALL << (start - first);
        // SAFETY: the mask is of keys of the chunk, and this is compiled for the instructions of `S`.
        let before = unsafe {
            // The block may begin before the chunk, where nothing is read.
            let block = keys.as_ptr().wrapping_sub(start - first);
            S::base_at_most(block, mask, self.encoding, last_before)
        };
        before.count_ones() as usize
    }

    /// As [`Self::position_between`] for many positions.
    #[cold]
    fn partition_point(&self, positions: Range<usize>, last_before: K) -> usize {
        let (mut low, mut high) = (positions.start, positions.end);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.encoding.encode(self.chunks.from(middle)[0]) <= last_before {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Returns how many of the keys at these positions, in several chunks, are at most this one.
    #[cold]
    fn count_across_chunks(&self, positions: Range<usize>, last_before: K) -> usize {
        let keys = positions.map(|position| self.encoding.encode(self.chunks.from(position)[0]));
        keys.take_while(|key| *key <= last_before).count()
    }
}

/// Prefetches a block of keys.
#[inline(always)]
fn prefetch_block<K>(keys: *const K) {
    for line in (0..size_of::<[K; BLOCK]>()).step_by(64) {
        prefetch(keys.wrapping_byte_add(line));
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
    fn groups_are_searched_by_themselves() {
        let random = &mut fastrand::Rng::with_seed(88_172_645_463_325_252);
        for round in 0..60 {
            let mut all = vec![];
            let mut starts = vec![0];
            for group in 0..4 {
                let most = [10, 70, 500, 6000][random.usize(..4)];
                let rows = 1 + random.usize(..most);
                all.append(&mut keys(random, rows, round + group));
                starts.push(all.len());
            }
            let sorted = CpuKeySearch::from_columns(&[column(&all)], &starts, 2).expect("memory");
            let queried = bounds(random, &all, 150);
            let groups: Vec<u32> = queried.iter().map(|_| random.u32(..4)).collect();
            let candidates = CandidateRanges::of_groups(groups.clone(), &starts);
            // The same ranges, not known to be groups.
            let mut ranges = CandidateRanges::all(groups.len(), all.len());
            for (row, group) in groups.iter().enumerate() {
                let (start, end) = (starts[*group as usize], starts[*group as usize + 1]);
                ranges.intersect(row, Comparison::AtLeast, start);
                ranges.intersect(row, Comparison::Below, end);
            }
            for comparison in COMPARISONS {
                let found = narrowed(&sorted, &candidates, &[(comparison, &queried)]);
                assert_eq!(narrowed(&sorted, &ranges, &[(comparison, &queried)]), found);
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
