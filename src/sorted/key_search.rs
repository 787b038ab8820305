//! Searches among sorted keys of fixed width, many at once.

#![allow(unsafe_code, reason = "moves to the engine")]
#![allow(
    clippy::inline_always,
    reason = "one loop for each width and comparison"
)]

use crate::sorted::arithmetic_keys::ArithmeticKeys;
use crate::sorted::candidates::CandidateRanges;
use crate::sorted::permutation::number;
use crate::sorted::sorted_rows::Comparison;
use rmq_engine::Plain;
use rmq_engine::cpu::{Simd, prefetch};
use rmq_engine::{Column, Encoding, Key, SharedSlice};

/// How many searches are under way at once, so that the memory that each waits for comes while others go on.
const TILE: usize = 32;

/// How often a guess is bettered before keys are compared; and one that is known to begin near.
const STEPS: usize = 2;
const STEPS_FROM_NEAR: usize = 1;

/// How far from a good guess the place is at most.
const NEAR: usize = 8;

/// So many searches of a tile may end farther off than that from where they began, for the next tile's to begin there without a guess.
const FEW_FAR: usize = 2;

/// In groups of fewer keys nothing is won by what is known of the group: its last search, its even distances.
const MANY: usize = 64;

/// A key that it is known of how far it lies from another.
pub(crate) trait Number: Key + Plain {
    const ONE: Self;

    /// About how much greater this is.
    fn above(self, other: Self) -> f64;

    /// How much greater this is, modulo the width.
    fn distance(self, other: Self) -> Self;

    /// How often a distance other than zero fits in, and whether nothing is left then.
    fn divided(self, by: Self) -> (usize, bool);
}

macro_rules! distance {
    ($($key:ty),*) => {$(
        impl Number for $key {
            const ONE: Self = 1;

            #[inline(always)]
            #[allow(
                clippy::cast_precision_loss,
                clippy::cast_lossless,
                reason = "about; not all of these widths lose anything"
            )]
            fn above(self, other: Self) -> f64 {
                if self >= other {
                    (self - other) as f64
                } else {
                    -((other - self) as f64)
                }
            }

            #[inline(always)]
            fn distance(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }

            #[inline(always)]
            fn divided(self, by: Self) -> (usize, bool) {
                let (times, rest) = if by == 1 { (self, 0) } else { (self / by, self % by) };
                (usize::try_from(times).unwrap_or(usize::MAX), rest == 0)
            }
        }
    )*};
}

distance!(u32, u64, u128);

/// Sorted keys, in one piece or in the pieces they came in.
#[derive(Debug)]
pub(crate) struct Keys<K> {
    /// None is empty.
    chunks: Vec<Chunk<K>>,
    encoding: Encoding<K>,
    /// Where each chunk begins, and the end of the last.
    starts: Vec<usize>,
    /// The first key of each chunk, and the last of all.
    firsts: Vec<K>,
    /// About how many chunks there are to a key's distance.
    chunk_slope: f64,
    /// For each group where it begins and its keys, if these are even; nothing where no group is.
    even: Vec<Option<(usize, ArithmeticKeys<K>)>>,
    all_even: bool,
}

/// A piece of keys, as the bits of their column.
struct Chunk<K>(SharedSlice<K>);

impl<K> std::fmt::Debug for Chunk<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chunk").field("len", &self.len()).finish()
    }
}

impl<K> std::ops::Deref for Chunk<K> {
    type Target = [K];

    fn deref(&self) -> &[K] {
        (*self.0).as_ref()
    }
}

/// Where the last search in a group ended: the next one begins there where bounds come in order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hint {
    place: u32,
    /// About how many places there are to a key's distance; not a number where that is not known yet.
    slope: f32,
}

impl Hint {
    const NONE: Self = Self {
        place: 0,
        slope: f32::NAN,
    };
}

/// Where searches of one stream ended, for each bound of the range: the next batch begins there.
#[derive(Debug, Default)]
pub(crate) struct LastFound(Vec<Vec<Hint>>);

impl LastFound {
    /// The hints of one bound, to be made for so many groups.
    pub(crate) fn of_bound(&mut self, bound: usize, groups: usize) -> HintsOf<'_> {
        if self.0.len() <= bound {
            self.0.resize(bound + 1, vec![]);
        }
        HintsOf {
            hints: &mut self.0[bound],
            groups,
        }
    }
}

/// The hints of one bound.
pub(crate) struct HintsOf<'a> {
    hints: &'a mut Vec<Hint>,
    groups: usize,
}

impl<'a> HintsOf<'a> {
    /// One a group.
    fn made(self) -> &'a mut [Hint] {
        if self.hints.len() != self.groups {
            *self.hints = vec![Hint::NONE; self.groups];
        }
        self.hints
    }
}

/// One search under way.
#[derive(Clone, Copy)]
struct Search<K> {
    row: usize,
    chunk: usize,
    /// The place sought lies from here to there, in the chunk.
    low: usize,
    high: usize,
    guess: usize,
    /// The guess that it began with.
    first_guess: usize,
    slope: f64,
    bound: K,
}

impl<K: Number> Keys<K> {
    /// Keys that are sorted within each group. `groups` says where each begins, and ends with the end of the last; keys of several
    /// groups come in one piece.
    pub(crate) fn new(
        chunks: Vec<SharedSlice<K>>,
        encoding: Encoding<K>,
        groups: &[usize],
    ) -> Self {
        let chunks = chunks.into_iter().map(Chunk);
        let chunks: Vec<_> = chunks.filter(|chunk| !chunk.is_empty()).collect();
        let mut starts = vec![0];
        let mut firsts = vec![];
        let mut end = 0;
        for chunk in &chunks {
            end += chunk.len();
            starts.push(end);
            firsts.push(encoding.encode(chunk[0]));
        }
        let last = chunks.last().and_then(|chunk| chunk.last());
        let last = last.map(|last| encoding.encode(*last));
        let chunk_slope = match (firsts.first(), last) {
            (Some(first), Some(last)) => slope(chunks.len(), *first, last),
            _ => 0.0,
        };
        firsts.extend(last);
        let mut keys = Self {
            chunks,
            encoding,
            starts,
            firsts,
            chunk_slope,
            even: vec![],
            all_even: false,
        };
        keys.even = keys.even_groups(groups);
        keys.all_even = !keys.even.is_empty() && keys.even.iter().all(Option::is_some);
        keys
    }

    /// Which groups are even, if any of them is.
    fn even_groups(&self, groups: &[usize]) -> Vec<Option<(usize, ArithmeticKeys<K>)>> {
        let count = groups.len().saturating_sub(1);
        if self.len() / count.max(1) < MANY {
            return vec![];
        }
        let even: Vec<_> = match (count, self.chunks.as_slice()) {
            (1, chunks) => {
                let even = ArithmeticKeys::of(chunks.iter().map(|chunk| &**chunk), self.encoding);
                vec![even.map(|even| (0, even))]
            }
            (_, [keys]) => {
                let ends = groups.windows(2);
                let even = ends.map(|ends| {
                    let keys = std::iter::once(&keys[ends[0]..ends[1]]);
                    Some((ends[0], ArithmeticKeys::of(keys, self.encoding)?))
                });
                even.collect()
            }
            _ => vec![],
        };
        if even.iter().any(Option::is_some) {
            even
        } else {
            vec![]
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len() * size_of::<K>()
            + self.chunks.len() * (size_of::<Chunk<K>>() + size_of::<usize>() + size_of::<K>())
            + size_of_val(self.even.as_slice())
    }

    /// The key at a position.
    pub(crate) fn key(&self, position: usize) -> K {
        let chunk = self.starts.partition_point(|start| *start <= position) - 1;
        let bits = self.chunks[chunk][position - self.starts[chunk]];
        self.encoding.encode(bits)
    }

    /// Writes the keys from a position on.
    pub(crate) fn write_from(&self, position: usize, mut to: &mut [K]) {
        let mut chunk = self.starts.partition_point(|start| *start <= position) - 1;
        let mut from = position - self.starts[chunk];
        while !to.is_empty() {
            let bits = &self.chunks[chunk][from..];
            let (here, rest) = to.split_at_mut(bits.len().min(to.len()));
            for (to, bits) in here.iter_mut().zip(bits) {
                *to = self.encoding.encode(*bits);
            }
            (to, from) = (rest, 0);
            chunk += 1;
        }
    }

    /// Leaves the positions whose key compares so with the bound of each row.
    pub(crate) fn narrow(
        &self,
        segments: &mut CandidateRanges,
        comparison: Comparison,
        bounds: &[Column<K>],
        hints: HintsOf,
    ) {
        // A batch's bounds are one column.
        let Some(bounds) = bounds.first() else {
            return;
        };
        // Among few keys nothing is won, and among pieces the first step is short anyway.
        let many = self.len() / hints.groups.max(1) >= MANY && !self.all_even;
        let in_order = many && self.chunks.len() == 1 && mostly_ascend(bounds);
        let hints = in_order.then(|| hints.made());
        match Simd::best() {
            // SAFETY: the machine has these instructions.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => unsafe { self.cut_avx512(segments, comparison, bounds, hints) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => unsafe { self.cut_avx2(segments, comparison, bounds, hints) },
            _ => self.cut(segments, comparison, bounds, hints),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn cut_avx512(
        &self,
        segments: &mut CandidateRanges,
        comparison: Comparison,
        bounds: &Column<K>,
        hints: Option<&mut [Hint]>,
    ) {
        self.cut(segments, comparison, bounds, hints);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn cut_avx2(
        &self,
        segments: &mut CandidateRanges,
        comparison: Comparison,
        bounds: &Column<K>,
        hints: Option<&mut [Hint]>,
    ) {
        self.cut(segments, comparison, bounds, hints);
    }

    #[inline(always)]
    fn cut(
        &self,
        segments: &mut CandidateRanges,
        comparison: Comparison,
        bounds: &Column<K>,
        hints: Option<&mut [Hint]>,
    ) {
        if comparison.is_before_equal() {
            self.cut_where(segments, comparison, bounds, hints, |key, bound| {
                key < bound
            });
        } else {
            self.cut_where(segments, comparison, bounds, hints, |key, bound| {
                key <= bound
            });
        }
    }

    #[inline(always)]
    fn cut_where(
        &self,
        segments: &mut CandidateRanges,
        comparison: Comparison,
        bounds: &Column<K>,
        mut hints: Option<&mut [Hint]>,
        is_before: impl Fn(K, K) -> bool + Copy,
    ) {
        let chunks: Vec<&[K]> = self.chunks.iter().map(|chunk| &**chunk).collect();
        let (bounds, encoding) = (bounds.bits(), bounds.encoding());
        // Of short ranges the end is found so near to their beginning that nothing is left to better.
        let mut are_near = false;
        let mut tile: Vec<Search<K>> = Vec::with_capacity(TILE);
        for first in (0..bounds.len()).step_by(TILE) {
            tile.clear();
            for row in first..bounds.len().min(first + TILE) {
                let Some(segment) = segments.of(row) else {
                    continue;
                };
                let bound = encoding.encode(bounds[row]);
                if let Some(Some((start, even))) = self.even.get(segments.group(row)) {
                    let place = start + even.before(bound, comparison.is_before_equal());
                    segments.cut(row, comparison, place);
                    continue;
                }
                let mut search = match chunks.as_slice() {
                    [keys] => {
                        let hint = hints.as_mut().map(|h| &mut h[segments.group(row)]);
                        self.begin(keys, segment, bound, hint)
                    }
                    _ => self.begin_in_chunks(&chunks, bound, is_before),
                };
                search.row = row;
                search.first_guess = search.guess;
                let guess = &raw const chunks[search.chunk][search.guess];
                prefetch(guess);
                if are_near {
                    // These are the keys that are counted.
                    prefetch(guess.wrapping_sub(NEAR));
                    prefetch(guess.wrapping_add(2 * NEAR));
                }
                tile.push(search);
            }
            let steps = match hints {
                Some(_) if are_near => 0,
                Some(_) => STEPS_FROM_NEAR,
                None => STEPS,
            };
            // From a key near the bound the next guess is much nearer where keys are spread evenly, as times and positions often are.
            for _ in 0..steps {
                for search in &mut tile {
                    let keys = chunks[search.chunk];
                    let key = self.encoding.encode(keys[search.guess]);
                    search.step(search.guess, search.bound.above(key));
                    let guess = &raw const keys[search.guess];
                    prefetch(guess.wrapping_sub(NEAR));
                    prefetch(guess);
                    prefetch(guess.wrapping_add(NEAR));
                }
            }
            let mut near = 0;
            for search in &tile {
                let keys = chunks[search.chunk];
                let place = search.finish(keys, |bits| {
                    is_before(self.encoding.encode(bits), search.bound)
                });
                if let Some(hints) = &mut hints {
                    hints[segments.group(search.row)].place = number(place);
                    near += usize::from(place.abs_diff(search.first_guess) < NEAR);
                }
                // Among pieces the place was sought among all keys, so it may lie outside of the row's positions.
                segments.cut(search.row, comparison, self.starts[search.chunk] + place);
            }
            are_near = near + FEW_FAR >= tile.len();
        }
    }

    /// A search among some of the only chunk's keys.
    #[inline(always)]
    fn begin(
        &self,
        keys: &[K],
        (low, high): (usize, usize),
        bound: K,
        hint: Option<&mut Hint>,
    ) -> Search<K> {
        let mut search = Search {
            row: 0,
            chunk: 0,
            low,
            high,
            guess: low,
            first_guess: low,
            slope: 0.0,
            bound,
        };
        match hint {
            Some(hint) if !hint.slope.is_nan() => {
                search.slope = f64::from(hint.slope);
                search.guess = (hint.place as usize).clamp(low, high - 1);
            }
            hint => {
                let first = self.encoding.encode(keys[low]);
                let last = self.encoding.encode(keys[high - 1]);
                search.slope = slope(high - low, first, last);
                search.step(low, bound.above(first));
                // Of one key, or of equal ones, nothing is learnt.
                if let Some(hint) = hint.filter(|_| search.slope > 0.0) {
                    #[expect(clippy::cast_possible_truncation, reason = "about")]
                    let slope = search.slope as f32;
                    hint.slope = slope;
                }
            }
        }
        search
    }

    /// The last chunk whose first key is before the bound, or the first chunk.
    #[inline(always)]
    fn chunk_before(&self, bound: K, is_before: impl Fn(K, K) -> bool) -> usize {
        /// How far from a good guess the chunk is at most.
        const NEAR: usize = 2;
        let firsts = &self.firsts[..self.chunks.len()];
        let last = firsts.len() - 1;
        let guess = guess(0, bound.above(firsts[0]), self.chunk_slope).min(last);
        let (from, to) = (guess.saturating_sub(NEAR), (guess + NEAR).min(last));
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

    /// A search in the chunk that has the place.
    #[inline(always)]
    fn begin_in_chunks(
        &self,
        chunks: &[&[K]],
        bound: K,
        is_before: impl Fn(K, K) -> bool,
    ) -> Search<K> {
        let chunk = self.chunk_before(bound, is_before);
        let high = chunks[chunk].len();
        let first = self.firsts[chunk];
        let mut search = Search {
            row: 0,
            chunk,
            low: 0,
            high,
            guess: 0,
            first_guess: 0,
            slope: slope(high, first, self.firsts[chunk + 1]),
            bound,
        };
        search.step(0, bound.above(first));
        search
    }
}

impl<K: Number> Search<K> {
    /// Guesses where a bound stands that is so much above the key at a place.
    #[inline(always)]
    fn step(&mut self, from: usize, above: f64) {
        self.guess = guess(from, above, self.slope).clamp(self.low, self.high - 1);
    }

    /// The place sought: where the keys that are before the bound end.
    #[inline(always)]
    fn finish(&self, keys: &[K], is_before: impl Fn(K) -> bool) -> usize {
        // Counting is faster than branches that nobody can foresee, and of a fixed number it is a few vectors.
        let from = self.guess.saturating_sub(NEAR).max(self.low);
        let from = from.min(self.high.saturating_sub(2 * NEAR).max(self.low));
        let Some(near) = keys[from..self.high].first_chunk::<{ 2 * NEAR }>() else {
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

    /// The same in growing steps from the guess.
    fn gallop(&self, keys: &[K], is_before: impl Fn(K) -> bool) -> usize {
        let (mut low, mut high) = (self.low, self.high);
        let mut step = 1;
        if is_before(keys[self.guess]) {
            low = self.guess + 1;
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
            high = self.guess;
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

/// Where a bound stands that is so much above the key at a place.
#[inline(always)]
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a guess, and what is no number becomes 0"
)]
fn guess(from: usize, above: f64, slope: f64) -> usize {
    (from as f64 + above * slope) as usize
}

/// About how many places there are to a key's distance.
#[inline(always)]
#[expect(clippy::cast_precision_loss, reason = "about")]
fn slope<K: Number>(places: usize, first: K, last: K) -> f64 {
    let distance = last.above(first);
    if distance > 0.0 {
        places as f64 / distance
    } else {
        0.0
    }
}

/// Whether bounds come in order, but for few.
fn mostly_ascend<K: Number>(bounds: &Column<K>) -> bool {
    let (bits, encoding) = (bounds.bits(), bounds.encoding());
    let nexts = bits.get(1..).unwrap_or_default();
    let falls = bits.iter().zip(nexts);
    let falls = falls.filter(|(bound, next)| encoding.encode(**bound) > encoding.encode(**next));
    falls.count() <= bits.len() / 16
}

/// Whether keys that come in these pieces are sorted.
pub(crate) fn are_sorted<'a, K: Number>(
    chunks: impl Iterator<Item = &'a [K]>,
    encoding: Encoding<K>,
) -> bool {
    let mut last = None;
    for chunk in chunks {
        let (Some(first), Some(end)) = (chunk.first(), chunk.last()) else {
            continue;
        };
        let first = encoding.encode(*first);
        if last.is_some_and(|last| last > first) || !is_sorted(chunk, encoding) {
            return false;
        }
        last = Some(encoding.encode(*end));
    }
    true
}

/// Whether keys are sorted.
pub(crate) fn is_sorted<K: Number>(keys: &[K], encoding: Encoding<K>) -> bool {
    /// So many are looked at before it is asked whether to go on.
    const STRIDE: usize = 512;
    let nexts = keys.get(1..).unwrap_or_default();
    let pairs = keys.chunks(STRIDE).zip(nexts.chunks(STRIDE));
    pairs.into_iter().all(|(keys, nexts)| {
        let pairs = keys.iter().zip(nexts);
        !pairs.fold(false, |falls, (key, next)| {
            falls | (encoding.encode(*key) > encoding.encode(*next))
        })
    })
}

#[cfg(test)]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "small numbers"
)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sorted::sorted_rows::Comparison;

    fn shared<T: Send + Sync + 'static>(values: Vec<T>) -> SharedSlice<T> {
        Arc::new(values)
    }

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
                    let place = random.usize(..keys.len());
                    keys[place].wrapping_add(random.u64(..3).cast_signed() - 1)
                }
            })
            .collect();
        if ordered {
            bounds.sort_unstable();
        }
        bounds
    }

    fn column(values: &[i64]) -> Column<u64> {
        let bits = values.iter().map(|v| v.cast_unsigned()).collect();
        Column::new(shared(bits), Encoding::signed())
    }

    const COMPARISONS: [Comparison; 4] = [
        Comparison::Above,
        Comparison::AtLeast,
        Comparison::Below,
        Comparison::AtMost,
    ];

    /// What is left of `start..end`, by looking at each key.
    fn counted(
        keys: &[i64],
        (start, end): (usize, usize),
        comparison: Comparison,
        bound: i64,
    ) -> (usize, usize) {
        let place = start
            + keys[start..end]
                .iter()
                .filter(|key| **key < bound || **key == bound && !comparison.is_before_equal())
                .count();
        if comparison.is_lower() {
            (place, end)
        } else {
            (start, place)
        }
    }

    #[test]
    fn pieces_are_searched_as_one_would_be() {
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
                let part = keys[from..to].iter().map(|v| v.cast_unsigned());
                chunks.push(shared(part.collect::<Vec<_>>()));
                from = to;
            }
            let slices = chunks.iter().map(|chunk| (**chunk).as_ref());
            assert!(are_sorted(slices, Encoding::signed()));
            let sorted = Keys::new(chunks, Encoding::signed(), &[0, rows]);
            for (place, key) in keys.iter().enumerate() {
                let key = Encoding::<u64>::signed().encode(key.cast_unsigned());
                assert_eq!(sorted.key(place), key);
            }
            let asked = bounds(random, &keys, 100, round % 2 == 0);
            for comparison in COMPARISONS {
                let mut segments = CandidateRanges::of_all(asked.len(), rows);
                let mut found = LastFound::default();
                let hints = found.of_bound(0, 1);
                sorted.narrow(&mut segments, comparison, &[column(&asked)], hints);
                let ranges = segments.ranges();
                for (row, bound) in asked.iter().enumerate() {
                    let (start, end) = counted(&keys, (0, rows), comparison, *bound);
                    let expected = (start as i64, end as i64 - 1);
                    let found = (ranges.left()[row], ranges.right()[row]);
                    assert_eq!(found, expected, "round {round}, {comparison:?} {bound}");
                }
            }
        }
    }

    #[test]
    fn groups_are_searched_from_the_last_place_as_from_none() {
        let random = &mut fastrand::Rng::with_seed(88_172_645_463_325_252);
        for round in 0..60 {
            // Large enough that places are remembered.
            let mut all = vec![];
            let mut starts = vec![0];
            for group in 0..3 {
                let rows = MANY + random.usize(..200);
                all.append(&mut keys(random, rows, round + group));
                starts.push(all.len());
            }
            let bits = all.iter().map(|v| v.cast_unsigned()).collect::<Vec<_>>();
            let sorted = Keys::new(vec![shared(bits)], Encoding::signed(), &starts);
            for comparison in COMPARISONS {
                let mut found = LastFound::default();
                // The places of one batch serve the next.
                for batch in 0..4 {
                    let asked = bounds(random, &all, 150, batch != 2);
                    let groups: Vec<u32> = asked.iter().map(|_| random.u64(..3) as u32).collect();
                    let mut segments = CandidateRanges::of_groups(groups.clone(), &starts);
                    let hints = found.of_bound(1, 3);
                    sorted.narrow(&mut segments, comparison, &[column(&asked)], hints);
                    let remembered = !found.0[1].is_empty();
                    assert!(remembered || batch == 2, "round {round}, batch {batch}");
                    let ranges = segments.ranges();
                    for (row, (bound, group)) in asked.iter().zip(&groups).enumerate() {
                        let group = *group as usize;
                        let whole = (starts[group], starts[group + 1]);
                        let (start, end) = counted(&all, whole, comparison, *bound);
                        let expected = (start as i64, end as i64 - 1);
                        let found = (ranges.left()[row], ranges.right()[row]);
                        assert_eq!(found, expected, "round {round}, {comparison:?} {bound}");
                    }
                }
            }
        }
    }

    #[test]
    fn falls_are_seen_wherever_they_are() {
        for rows in [2, 3, 511, 512, 513, 514, 1025] {
            for fall in 1..rows {
                let mut keys: Vec<u32> = (0..rows as u32).map(|i| 2 * i).collect();
                assert!(is_sorted(&keys, Encoding::unsigned()));
                keys[fall] = keys[fall - 1] - u32::from(fall > 1);
                assert_eq!(is_sorted(&keys, Encoding::unsigned()), fall == 1);
                let (left, right) = keys.split_at(fall);
                let parts = [left, &[], right];
                assert_eq!(
                    are_sorted(parts.into_iter(), Encoding::unsigned()),
                    fall == 1
                );
            }
        }
    }
}
