//! Interpolation search for many bounds at once.
//!
//! 1. Each bound's position is estimated: from the first and the last key of its range, or, where bounds mostly ascend,
//!    from the position that the last search in its group found.
//! 2. The estimate is improved once or twice by the key found there.
//! 3. The 16 keys around it are compared without branches. If the position is not among them, the search gallops from
//!    the estimate.
//!
//! The searches of a tile go through each step together, so that their cache misses overlap. On evenly distributed
//! keys, as times and positions often are, a bound takes two or three cache misses, where a binary search takes
//! log2(n).

use std::fmt;

use crate::candidate_ranges::CandidateRanges;
use crate::column::{Column, SharedSlice};
use crate::comparison::Comparison;
use crate::cpu::key_search::arithmetic::{ArithmeticKeys, KeyArithmetic};
use crate::cpu::key_search::order::mostly_ascend;
use crate::cpu::simd::dispatch::{SupportedSimd, multiversion};
use crate::cpu::simd::prefetch::prefetch;
use crate::error::EngineError;
use crate::key::Encoding;
use crate::key_search::{BoundHints, GroupHint};

/// Searches that go through each step together.
const SEARCHES_AT_ONCE: usize = 32;

/// How often an estimate is improved before keys are compared.
const STEPS: usize = 2;

/// The same for an estimate that comes from a hint.
const STEPS_FROM_HINT: usize = 1;

/// Keys that are compared on each side of the estimate.
const PROBE_RADIUS: usize = 8;

/// If at most this many searches of a tile end farther than [`PROBE_RADIUS`] from where they began, those of the next
/// tile skip the interpolation.
const MAX_FAR: usize = 2;

/// The average size of groups from which on hints and the detection of even spacing are worthwhile.
const MIN_GROUP_KEYS: usize = 64;

/// Sorted keys in main memory, in the chunks they came in. They are borrowed, not copied.
pub struct CpuKeySearch<K> {
    /// None is empty.
    chunks: Vec<SharedSlice<K>>,
    encoding: Encoding<K>,
    /// The first position of each chunk, and the end of the last.
    starts: Vec<usize>,
    /// The first key of each chunk, and the last key of all.
    first_keys: Vec<K>,
    /// Estimated chunks per unit of key distance.
    chunk_slope: f64,
    groups: usize,
    /// The first position and the keys of each group that is evenly spaced; empty if none is.
    arithmetic: Vec<Option<(usize, ArithmeticKeys<K>)>>,
    all_arithmetic: bool,
}

impl<K> fmt::Debug for CpuKeySearch<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuKeySearch")
            .field("starts", &self.starts)
            .field("groups", &self.groups)
            .field("all_arithmetic", &self.all_arithmetic)
            .finish_non_exhaustive()
    }
}

/// One search of a tile.
#[derive(Clone, Copy)]
struct BoundSearch<K> {
    row: usize,
    chunk: usize,
    /// The position is in `low..=high` of the chunk.
    low: usize,
    high: usize,
    estimate: usize,
    /// The estimate that the search began with.
    first_estimate: usize,
    /// Estimated positions per unit of key distance.
    slope: f64,
    bound: K,
}

/// The bounds of a batch, one per row.
#[derive(Clone, Copy)]
pub(crate) struct Bounds<'a, K> {
    pub(crate) bits: &'a [K],
    pub(crate) encoding: Encoding<K>,
}

#[expect(
    private_bounds,
    reason = "only the entry points of each width are public"
)]
impl<K: KeyArithmetic> CpuKeySearch<K> {
    pub(crate) fn from_columns(columns: &[Column<K>], group_starts: &[usize]) -> Self {
        let encoding = columns.first().map(Column::encoding);
        let encoding = encoding.unwrap_or_else(Encoding::unsigned);
        let chunks = columns.iter().filter(|column| !column.is_empty());
        let chunks: Vec<_> = chunks.map(|chunk| chunk.shared_bits().clone()).collect();
        let mut starts = vec![0];
        let mut first_keys = vec![];
        let mut end = 0;
        for chunk in &chunks {
            let bits = (**chunk).as_ref();
            end += bits.len();
            starts.push(end);
            first_keys.push(encoding.encode(bits[0]));
        }
        let last = chunks.last().and_then(|chunk| (**chunk).as_ref().last());
        let last = last.map(|last| encoding.encode(*last));
        let chunk_slope = match (first_keys.first(), last) {
            (Some(first), Some(last)) => slope(chunks.len(), *first, last),
            _ => 0.0,
        };
        first_keys.extend(last);
        let mut keys = Self {
            chunks,
            encoding,
            starts,
            first_keys,
            chunk_slope,
            groups: group_starts.len().saturating_sub(1),
            arithmetic: vec![],
            all_arithmetic: false,
        };
        keys.arithmetic = keys.arithmetic_groups(group_starts);
        let mut groups = keys.arithmetic.iter();
        keys.all_arithmetic = !keys.arithmetic.is_empty() && groups.all(Option::is_some);
        keys
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
            + self.chunks.len()
                * (size_of::<SharedSlice<K>>() + size_of::<usize>() + size_of::<K>())
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
        comparison: Comparison,
        bounds: Bounds<'_, K>,
        hints: &mut BoundHints,
    ) -> Result<(), EngineError> {
        // Hints are of no use among few keys, and among chunks the first estimate is close anyway.
        let has_large_groups =
            self.key_count() / self.groups.max(1) >= MIN_GROUP_KEYS && !self.all_arithmetic;
        let use_hints = has_large_groups
            && self.chunks.len() == 1
            && mostly_ascend(bounds.bits, bounds.encoding);
        let hints = use_hints.then(|| hints.of_groups(self.groups));
        self.narrow_with(candidates, comparison, bounds, hints)
    }

    fn narrow_with(
        &self,
        candidates: &mut CandidateRanges,
        comparison: Comparison,
        bounds: Bounds<'_, K>,
        hints: Option<&mut [GroupHint]>,
    ) -> Result<(), EngineError> {
        if bounds.bits.len() != candidates.rows() {
            return Err(EngineError::Lengths {
                what: "the slice of bounds",
                expected: candidates.rows(),
                found: bounds.bits.len(),
            });
        }
        let mut chunks = Vec::with_capacity(self.chunks.len());
        for (chunk, ends) in self.chunks.iter().zip(self.starts.windows(2)) {
            let bits: &[K] = (**chunk).as_ref();
            if bits.len() != ends[1] - ends[0] {
                return Err(EngineError::ColumnMoved);
            }
            chunks.push(bits);
        }
        let keys = self.key_count();
        if candidates.limit() > keys {
            return Err(EngineError::Lengths {
                what: "the sorted keys, where a range of candidates ends behind them,",
                expected: candidates.limit(),
                found: keys,
            });
        }
        let simd = SupportedSimd::best();
        narrow_vectorized(simd, self, &chunks, candidates, comparison, bounds, hints);
        Ok(())
    }

    // The closures are defined here and not in `multiversion!`, where each would have target features of its own.
    #[inline(always)]
    fn narrow_inlined(
        &self,
        chunks: &[&[K]],
        candidates: &mut CandidateRanges,
        comparison: Comparison,
        bounds: Bounds<'_, K>,
        hints: Option<&mut [GroupHint]>,
    ) {
        if comparison.is_before_equal() {
            self.narrow_where(
                chunks,
                candidates,
                comparison,
                bounds,
                hints,
                |key, bound| key < bound,
            );
        } else {
            self.narrow_where(
                chunks,
                candidates,
                comparison,
                bounds,
                hints,
                |key, bound| key <= bound,
            );
        }
    }

    #[inline(always)]
    fn narrow_where(
        &self,
        chunks: &[&[K]],
        candidates: &mut CandidateRanges,
        comparison: Comparison,
        bounds: Bounds<'_, K>,
        mut hints: Option<&mut [GroupHint]>,
        is_before: impl Fn(K, K) -> bool + Copy,
    ) {
        let Bounds { bits, encoding } = bounds;
        // Ranges without groups among keys in groups may begin anywhere.
        let arithmetic = if self.groups == 1 || candidates.has_groups() {
            self.arithmetic.as_slice()
        } else {
            &[]
        };
        // The end of a short range is so near to its start that no interpolation is needed.
        let mut are_near = false;
        let mut tile: Vec<BoundSearch<K>> = Vec::with_capacity(SEARCHES_AT_ONCE);
        for first in (0..bits.len()).step_by(SEARCHES_AT_ONCE) {
            tile.clear();
            let end = bits.len().min(first + SEARCHES_AT_ONCE);
            for (row, bound) in (first..).zip(&bits[first..end]) {
                let Some(range) = candidates.get(row) else {
                    continue;
                };
                let bound = encoding.encode(*bound);
                if let Some(Some((start, keys))) = arithmetic.get(candidates.group(row)) {
                    let position = start + keys.count_before(bound, comparison.is_before_equal());
                    candidates.intersect(row, comparison, position);
                    continue;
                }
                let mut search = match chunks {
                    [keys] => {
                        let hint = hints.as_mut();
                        let hint = hint.and_then(|hints| hints.get_mut(candidates.group(row)));
                        self.begin(keys, range, bound, hint)
                    }
                    _ => self.begin_in_chunks(chunks, bound, is_before),
                };
                search.row = row;
                search.first_estimate = search.estimate;
                let estimate = &raw const chunks[search.chunk][search.estimate];
                prefetch(estimate);
                if are_near {
                    // These are the keys that are compared.
                    prefetch(estimate.wrapping_sub(PROBE_RADIUS));
                    prefetch(estimate.wrapping_add(2 * PROBE_RADIUS));
                }
                tile.push(search);
            }
            let steps = match hints {
                Some(_) if are_near => 0,
                Some(_) => STEPS_FROM_HINT,
                None => STEPS,
            };
            for _ in 0..steps {
                for search in &mut tile {
                    let keys = chunks[search.chunk];
                    let key = self.encoding.encode(keys[search.estimate]);
                    search.interpolate(search.estimate, search.bound.above(key));
                    let estimate = &raw const keys[search.estimate];
                    prefetch(estimate.wrapping_sub(PROBE_RADIUS));
                    prefetch(estimate);
                    prefetch(estimate.wrapping_add(PROBE_RADIUS));
                }
            }
            let mut near = 0;
            for search in &tile {
                let keys = chunks[search.chunk];
                let position = search.finish(keys, |bits| {
                    is_before(self.encoding.encode(bits), search.bound)
                });
                if let Some(hints) = &mut hints {
                    if let Some(hint) = hints.get_mut(candidates.group(search.row)) {
                        hint.position = u32::try_from(position).unwrap_or(u32::MAX);
                    }
                    near += usize::from(position.abs_diff(search.first_estimate) < PROBE_RADIUS);
                }
                // Chunks are searched as a whole, so the position may be outside of the row's range.
                let position = self.starts[search.chunk] + position;
                candidates.intersect(search.row, comparison, position);
            }
            are_near = near + MAX_FAR >= tile.len();
        }
    }

    /// Begins a search in a range of the only chunk.
    #[inline(always)]
    fn begin(
        &self,
        keys: &[K],
        (low, high): (usize, usize),
        bound: K,
        hint: Option<&mut GroupHint>,
    ) -> BoundSearch<K> {
        let mut search = BoundSearch {
            row: 0,
            chunk: 0,
            low,
            high,
            estimate: low,
            first_estimate: low,
            slope: 0.0,
            bound,
        };
        match hint {
            Some(hint) if !hint.slope.is_nan() => {
                search.slope = f64::from(hint.slope);
                search.estimate = (hint.position as usize).clamp(low, high - 1);
            }
            hint => {
                let first = self.encoding.encode(keys[low]);
                let last = self.encoding.encode(keys[high - 1]);
                search.slope = slope(high - low, first, last);
                search.interpolate(low, bound.above(first));
                // A single key, or equal keys, have no slope.
                if let Some(hint) = hint.filter(|_| search.slope > 0.0) {
                    hint.slope = search.slope as f32;
                }
            }
        }
        search
    }

    /// Returns the last chunk whose first key is before the bound, or the first chunk.
    #[inline(always)]
    fn chunk_before(&self, bound: K, is_before: impl Fn(K, K) -> bool) -> usize {
        /// Chunks that are compared on each side of the estimate.
        const RADIUS: usize = 2;
        let firsts = &self.first_keys[..self.chunks.len()];
        let last = firsts.len() - 1;
        let estimate = estimate(0, bound.above(firsts[0]), self.chunk_slope).min(last);
        let (from, to) = (
            estimate.saturating_sub(RADIUS),
            (estimate + RADIUS).min(last),
        );
        let is_before = |first: &K| is_before(*first, bound);
        let after = if (from == 0 || is_before(&firsts[from]))
            && (to == last || !is_before(&firsts[to + 1]))
        {
            let near = firsts[from..=to].iter();
            from + near.filter(|first| is_before(first)).count()
        } else {
            firsts.partition_point(|first| is_before(first))
        };
        after.saturating_sub(1)
    }

    /// Begins a search in the chunk that contains the position.
    #[inline(always)]
    fn begin_in_chunks(
        &self,
        chunks: &[&[K]],
        bound: K,
        is_before: impl Fn(K, K) -> bool,
    ) -> BoundSearch<K> {
        let chunk = self.chunk_before(bound, is_before);
        let high = chunks[chunk].len();
        let first = self.first_keys[chunk];
        let mut search = BoundSearch {
            row: 0,
            chunk,
            low: 0,
            high,
            estimate: 0,
            first_estimate: 0,
            slope: slope(high, first, self.first_keys[chunk + 1]),
            bound,
        };
        search.interpolate(0, bound.above(first));
        search
    }
}

multiversion! {
    fn narrow_vectorized[K: KeyArithmetic](
        keys: &CpuKeySearch<K>,
        chunks: &[&[K]],
        candidates: &mut CandidateRanges,
        comparison: Comparison,
        bounds: Bounds<'_, K>,
        hints: Option<&mut [GroupHint]>,
    ) {
        keys.narrow_inlined(chunks, candidates, comparison, bounds, hints);
    }
}

impl<K: KeyArithmetic> BoundSearch<K> {
    /// Sets the estimate for a bound that is `above` the key at a position.
    #[inline(always)]
    fn interpolate(&mut self, position: usize, above: f64) {
        self.estimate = estimate(position, above, self.slope).clamp(self.low, self.high - 1);
    }

    /// Returns the position: the end of the keys that are before the bound.
    #[inline(always)]
    fn finish(&self, keys: &[K], is_before: impl Fn(K) -> bool) -> usize {
        // Counting a fixed number of keys takes a few vector instructions; branches would be mispredicted.
        let from = self.estimate.saturating_sub(PROBE_RADIUS).max(self.low);
        let from = from.min(self.high.saturating_sub(2 * PROBE_RADIUS).max(self.low));
        let Some(near) = keys[from..self.high].first_chunk::<{ 2 * PROBE_RADIUS }>() else {
            let all = keys[from..self.high].iter();
            return from + all.filter(|key| is_before(**key)).count();
        };
        let before: u32 = near.iter().map(|key| u32::from(is_before(*key))).sum();
        let before = before as usize;
        let is_inside = (before > 0 || from == self.low)
            && (before < near.len() || from + near.len() == self.high);
        if is_inside {
            return from + before;
        }
        self.gallop(keys, is_before)
    }

    /// Returns the same in exponentially growing steps from the estimate.
    fn gallop(&self, keys: &[K], is_before: impl Fn(K) -> bool) -> usize {
        let (mut low, mut high) = (self.low, self.high);
        let mut step = 1;
        if is_before(keys[self.estimate]) {
            low = self.estimate + 1;
            while step <= high - low {
                let next = low + step - 1;
                if !is_before(keys[next]) {
                    high = next;
                    break;
                }
                low = next + 1;
                step *= 2;
            }
        } else {
            high = self.estimate;
            while step <= high - low {
                let next = high - step;
                if is_before(keys[next]) {
                    low = next + 1;
                    break;
                }
                high = next;
                step *= 2;
            }
        }
        low + keys[low..high].partition_point(|key| is_before(*key))
    }
}

/// Returns the estimated position of a bound that is `above` the key at a position.
#[inline(always)]
#[expect(clippy::cast_precision_loss, reason = "an estimate; NaN becomes 0")]
fn estimate(position: usize, above: f64, slope: f64) -> usize {
    (position as f64 + above * slope) as usize
}

/// Returns the estimated positions per unit of key distance.
#[inline(always)]
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn slope<K: KeyArithmetic>(positions: usize, first: K, last: K) -> f64 {
    let distance = last.above(first);
    if distance > 0.0 {
        positions as f64 / distance
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cpu::key_search::order::are_sorted;
    use crate::key_search::SearchHints;

    /// Sorted keys, spread evenly or not at all, as signed numbers.
    fn keys(random: &mut fastrand::Rng, rows: usize, round: u64) -> Vec<i64> {
        let mut keys: Vec<i64> = (0..rows)
            .map(|_| {
                let value = match round % 4 {
                    0 => random.u64(..1_000_000),
                    1 => random.u64(..8),
                    2 => 1 << random.u64(..62),
                    _ => u64::MAX - random.u64(..3),
                };
                value.cast_signed() - 1000
            })
            .collect();
        keys.sort_unstable();
        keys
    }

    /// Bounds below, among and above these keys, in order or not.
    fn bounds(random: &mut fastrand::Rng, keys: &[i64], count: usize, ordered: bool) -> Vec<i64> {
        let mut bounds: Vec<i64> = (0..count)
            .map(|_| match random.u64(..10) {
                0 => i64::MIN,
                1 => i64::MAX,
                _ => {
                    let position = random.usize(..keys.len());
                    keys[position].wrapping_add(random.u64(..3).cast_signed() - 1)
                }
            })
            .collect();
        if ordered {
            bounds.sort_unstable();
        }
        bounds
    }

    fn column(values: &[i64]) -> Column<u64> {
        let bits: Vec<u64> = values.iter().map(|v| v.cast_unsigned()).collect();
        Column::new(Arc::new(bits), Encoding::signed())
    }

    fn narrow(
        keys: &CpuKeySearch<u64>,
        candidates: &mut CandidateRanges,
        comparison: Comparison,
        bounds: &[i64],
        hints: &mut BoundHints,
    ) {
        let bounds = column(bounds);
        let bounds = Bounds {
            bits: bounds.bits(),
            encoding: bounds.encoding(),
        };
        keys.narrow_candidates(candidates, comparison, bounds, hints)
            .expect("one bound per row");
    }

    const COMPARISONS: [Comparison; 4] = [
        Comparison::Above,
        Comparison::AtLeast,
        Comparison::Below,
        Comparison::AtMost,
    ];

    /// The expected range, found by comparing each key.
    fn expected_range(
        keys: &[i64],
        (start, end): (usize, usize),
        comparison: Comparison,
        bound: i64,
    ) -> (usize, usize) {
        let position = start
            + keys[start..end]
                .iter()
                .filter(|key| **key < bound || **key == bound && !comparison.is_before_equal())
                .count();
        if comparison.is_lower() {
            (position, end)
        } else {
            (start, position)
        }
    }

    #[test]
    fn chunks_are_searched_like_one_slice() {
        let random = &mut fastrand::Rng::with_seed(1_442_695_040_888_963_407);
        for round in 0..200 {
            let rows = 1 + random.usize(..300);
            let keys = keys(random, rows, round);
            let mut chunks = vec![];
            let mut from = 0;
            while from < rows {
                // Some are empty, some of one key.
                let most = 1 + random.u64(..100);
                let to = rows.min(from + random.u64(..most) as usize);
                chunks.push(column(&keys[from..to]));
                from = to;
            }
            assert!(are_sorted(&chunks));
            let sorted = CpuKeySearch::from_columns(&chunks, &[0, rows]);
            for (position, key) in keys.iter().enumerate() {
                let key = Encoding::<u64>::signed().encode(key.cast_unsigned());
                assert_eq!(sorted.key_at(position), key);
            }
            let queried = bounds(random, &keys, 100, round % 2 == 0);
            for comparison in COMPARISONS {
                let mut candidates = CandidateRanges::all(queried.len(), rows);
                let mut hints = SearchHints::default();
                narrow(
                    &sorted,
                    &mut candidates,
                    comparison,
                    &queried,
                    hints.of_bound(0),
                );
                let (left, right) = candidates.into_inclusive();
                for (row, bound) in queried.iter().enumerate() {
                    let (start, end) = expected_range(&keys, (0, rows), comparison, *bound);
                    let expected = (start as i64, end as i64 - 1);
                    let found = (left[row], right[row]);
                    assert_eq!(found, expected, "round {round}, {comparison:?} {bound}");
                }
            }
        }
    }

    #[test]
    fn hints_do_not_change_results() {
        let random = &mut fastrand::Rng::with_seed(88_172_645_463_325_252);
        for round in 0..60 {
            // Large enough for hints.
            let mut all = vec![];
            let mut starts = vec![0];
            for group in 0..3 {
                let rows = MIN_GROUP_KEYS + random.usize(..200);
                all.append(&mut keys(random, rows, round + group));
                starts.push(all.len());
            }
            let sorted = CpuKeySearch::from_columns(&[column(&all)], &starts);
            for comparison in COMPARISONS {
                let mut found = SearchHints::default();
                // The hints of one batch serve the next.
                for batch in 0..4 {
                    let queried = bounds(random, &all, 150, batch != 2);
                    let groups: Vec<u32> = queried.iter().map(|_| random.u64(..3) as u32).collect();
                    let mut candidates = CandidateRanges::of_groups(groups.clone(), &starts);
                    let hints = found.of_bound(1);
                    narrow(&sorted, &mut candidates, comparison, &queried, hints);
                    assert!(
                        !hints.is_empty() || batch == 2,
                        "round {round}, batch {batch}"
                    );
                    let (left, right) = candidates.into_inclusive();
                    for (row, (bound, group)) in queried.iter().zip(&groups).enumerate() {
                        let group = *group as usize;
                        let whole = (starts[group], starts[group + 1]);
                        let (start, end) = expected_range(&all, whole, comparison, *bound);
                        let expected = (start as i64, end as i64 - 1);
                        let found = (left[row], right[row]);
                        assert_eq!(found, expected, "round {round}, {comparison:?} {bound}");
                    }
                }
            }
        }
    }
}
