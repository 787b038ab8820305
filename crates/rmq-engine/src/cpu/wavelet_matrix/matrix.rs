//! The matrix and its queries.

use crate::cpu::simd::prefetch::prefetch;
use crate::cpu::wavelet_matrix::bits::{Block, address, blocks, ones_before};
use crate::cpu::wavelet_matrix::build::{Levels, build_levels};
use crate::crossings::check_length;
use crate::engine::RankLevels;
use crate::error::EngineError;

/// Queries that descend together: their two reads per level are on their way at once.
const TILE: usize = 32;

/// The ranks of a column's values in the order of its rows, for order statistics of ranges.
///
/// Ranges are half-open, `starts[i]..ends[i]`, clipped to the rows; one whose start is not below its end is empty.
///
/// ```
/// use rmq_engine::cpu::WaveletMatrix;
///
/// let ranks = [3, 0, 2, 0, 1, 3];
/// let matrix = WaveletMatrix::build(&ranks, 4, 1, &|| false)?;
/// let (mut below, mut medians) = ([0; 2], [0; 2]);
/// matrix.count_below(&[0, 2], &[6, 5], &[2, 1], &mut below)?;
/// matrix.nth_smallest(&[0, 2], &[6, 5], &[2, 1], &mut medians)?;
/// assert_eq!((below, medians), ([3, 1], [1, 1]));
/// # Ok::<(), rmq_engine::EngineError>(())
/// ```
#[derive(Debug)]
pub struct WaveletMatrix {
    rows: u32,
    levels: Levels,
}

/// A query's range on a level, and what it looks for.
#[derive(Debug, Clone, Copy, Default)]
struct Query {
    start: u32,
    end: u32,
    /// A rank, or how many rows are smaller than the one that is looked for.
    target: u32,
    /// Rows counted, or the rank found.
    found: u32,
}

impl WaveletMatrix {
    /// [`Self::nth_smallest`] of a range that has too few rows. No row has this rank.
    pub const NONE: u32 = u32::MAX;

    /// Builds the matrix of ranks below `distinct`, on up to `threads` threads. Takes 8 bytes a row besides while it is
    /// built.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] if a rank is not below `distinct`, [`EngineError::TooLong`] for 2^32 rows or more,
    /// [`EngineError::OutOfMemory`], [`EngineError::Thread`], and [`EngineError::Stopped`] once `stops`
    /// returns true, which is asked before each level.
    pub fn build(
        ranks: &[u32],
        distinct: u32,
        threads: usize,
        stops: &dyn Fn() -> bool,
    ) -> Result<Self, EngineError> {
        let too_long = EngineError::TooLong { rows: ranks.len() };
        let rows = u32::try_from(ranks.len()).map_err(|_| too_long)?;
        if let Some(rank) = ranks.iter().max().filter(|rank| **rank >= distinct) {
            return Err(EngineError::Invalid(format!(
                "a rank is {rank}: ranks of {distinct} distinct values are below {distinct}"
            )));
        }
        let levels = build_levels(ranks, bits(distinct), threads, stops)?;
        Ok(Self { rows, levels })
    }

    /// Bytes of the matrix of this many rows and distinct values.
    #[must_use]
    pub fn bytes_for(rows: usize, distinct: u32) -> usize {
        blocks(rows).saturating_mul(bits(distinct) as usize * size_of::<Block>())
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows as usize
    }

    /// Returns whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// What a copy is made of.
    pub(super) fn levels(&self) -> RankLevels<'_> {
        RankLevels {
            rows: self.len(),
            blocks: &self.levels.blocks,
            zeros: &self.levels.zeros,
        }
    }

    /// Bytes of main memory that this matrix owns.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.levels.blocks.bytes()
    }

    /// Writes how many rows of each range have a rank below `ranks[i]` to `counts[i]`.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] if slices differ in length.
    pub fn count_below(
        &self,
        starts: &[usize],
        ends: &[usize],
        ranks: &[u32],
        counts: &mut [u32],
    ) -> Result<(), EngineError> {
        let distinct = 1_u64 << self.levels.zeros.len();
        self.answer(
            starts,
            ends,
            ranks,
            counts,
            |query| {
                // Beyond the highest bit: all rows are below.
                if u64::from(query.target) >= distinct {
                    query.found = query.end - query.start;
                    query.end = query.start;
                }
            },
            |query, level| {
                let is_one = query.target >> level.bit & 1;
                let takes_ones = 0_u32.wrapping_sub(is_one);
                query.found += level.zeros_within() & takes_ones;
                level.descend(query, takes_ones);
            },
        )
    }

    /// Writes the rank of each range's row that has `smaller[i]` rows before it, if the range's rows are sorted by
    /// rank, to `ranks[i]`: 0 for the smallest. [`Self::NONE`] if the range has too few rows.
    ///
    /// # Errors
    /// As [`Self::count_below`].
    pub fn nth_smallest(
        &self,
        starts: &[usize],
        ends: &[usize],
        smaller: &[u32],
        ranks: &mut [u32],
    ) -> Result<(), EngineError> {
        self.answer(
            starts,
            ends,
            smaller,
            ranks,
            |query| {
                if query.target >= query.end - query.start {
                    query.found = Self::NONE;
                }
            },
            |query, level| {
                let zeros = level.zeros_within();
                let takes_ones = 0_u32.wrapping_sub(u32::from(query.target >= zeros));
                query.target = query.target.wrapping_sub(zeros & takes_ones);
                query.found |= takes_ones & 1 << level.bit;
                level.descend(query, takes_ones);
            },
        )
    }

    /// As [`Self::nth_smallest`], of the rows of several ranges together: those with the numbers
    /// `firsts[i]..firsts[i + 1]`. A row that is in several of them counts as often. They may have up to 2^64 rows.
    ///
    /// All ranges descend the levels together, so a group takes as long as its ranges would one by one.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] if slices differ in length, [`EngineError::Invalid`] if `firsts` does not ascend from 0
    /// to the number of ranges.
    pub fn nth_smallest_of_groups(
        &self,
        firsts: &[usize],
        starts: &[usize],
        ends: &[usize],
        smaller: &[u64],
        ranks: &mut [u32],
    ) -> Result<(), EngineError> {
        check_length("the slice of ends", starts.len(), ends.len())?;
        check_length("the slice of firsts", smaller.len() + 1, firsts.len())?;
        check_length("the slice for answers", smaller.len(), ranks.len())?;
        check_groups(firsts, starts.len())?;
        let per_level = blocks(self.len());
        let all: &[Block] = &self.levels.blocks;
        let mut group: Vec<Query> = vec![];
        let mut steps: Vec<Step> = vec![];
        for ((firsts, smaller), found) in firsts.windows(2).zip(smaller).zip(ranks) {
            group.clear();
            let ranges = firsts[0]..firsts[1];
            for (start, end) in starts[ranges.clone()].iter().zip(&ends[ranges]) {
                let query = self.query(*start, *end);
                if query.start < query.end {
                    prefetch_both(all, &query);
                    group.push(query);
                }
            }
            let rows = group.iter().map(|query| u64::from(query.end - query.start));
            let mut target = *smaller;
            if target >= rows.sum() {
                *found = Self::NONE;
                continue;
            }
            *found = 0;
            let levels = all.chunks_exact(per_level).zip(&self.levels.zeros);
            for (number, (blocks, zeros)) in levels.enumerate() {
                let bit = self.levels.zeros.len() - 1 - number;
                let below = &all[((number + 1) * per_level).min(all.len() - per_level)..];
                steps.clear();
                let steps_of = group.iter();
                steps.extend(steps_of.map(|query| Step::new(query, blocks, bit as u32, *zeros)));
                let zeros_within = steps.iter().map(|step| u64::from(step.zeros_within()));
                let zeros_within: u64 = zeros_within.sum();
                let takes_ones = target >= zeros_within;
                if takes_ones {
                    target -= zeros_within;
                    *found |= 1 << bit;
                }
                let takes_ones = 0_u32.wrapping_sub(u32::from(takes_ones));
                for (query, step) in group.iter_mut().zip(&steps) {
                    step.descend(query, takes_ones);
                    prefetch_both(below, query);
                }
                group.retain(|query| query.start < query.end);
            }
        }
        Ok(())
    }

    /// A range, clipped to the rows.
    #[inline(always)]
    fn query(&self, start: usize, end: usize) -> Query {
        // Clipped, so below 2^32.
        let end = end.min(self.len()) as u32;
        Query {
            start: start.min(end as usize) as u32,
            end,
            ..Query::default()
        }
    }

    /// Takes all queries down the levels, a tile at a time.
    #[inline(always)]
    fn answer(
        &self,
        starts: &[usize],
        ends: &[usize],
        targets: &[u32],
        found: &mut [u32],
        begin: impl Fn(&mut Query),
        step: impl Fn(&mut Query, Step),
    ) -> Result<(), EngineError> {
        check_length("the slice of ends", starts.len(), ends.len())?;
        check_length("the slice of targets", starts.len(), targets.len())?;
        check_length("the slice for answers", starts.len(), found.len())?;
        let per_level = blocks(self.len());
        let all: &[Block] = &self.levels.blocks;
        let mut tile = [Query::default(); TILE];
        let ranges = starts.chunks(TILE).zip(ends.chunks(TILE));
        for (((starts, ends), targets), found) in
            ranges.zip(targets.chunks(TILE)).zip(found.chunks_mut(TILE))
        {
            let tile = &mut tile[..starts.len()];
            for (query, ((start, end), target)) in
                tile.iter_mut().zip(starts.iter().zip(ends).zip(targets))
            {
                *query = Query {
                    target: *target,
                    ..self.query(*start, *end)
                };
                begin(query);
                prefetch_both(all, query);
            }
            let levels = all.chunks_exact(per_level).zip(&self.levels.zeros);
            for (number, (blocks, zeros)) in levels.enumerate() {
                let bit = self.levels.zeros.len() - 1 - number;
                let below = &all[((number + 1) * per_level).min(all.len() - per_level)..];
                for query in tile.iter_mut() {
                    let of_query = Step::new(query, blocks, bit as u32, *zeros);
                    step(query, of_query);
                    prefetch_both(below, query);
                }
            }
            for (found, query) in found.iter_mut().zip(tile) {
                *found = query.found;
            }
        }
        Ok(())
    }
}

/// What a query sees of a level.
#[derive(Clone, Copy)]
struct Step {
    /// The bit of a rank that the level has.
    bit: u32,
    /// Rows of the level whose bit is 0.
    zeros: u32,
    /// Those before the start of the range, and before its end.
    zeros_before: [u32; 2],
}

impl Step {
    /// Of a query at the level of these blocks.
    #[inline(always)]
    fn new(query: &Query, blocks: &[Block], bit: u32, zeros: u32) -> Self {
        let ones = [query.start, query.end].map(|at| ones_before(blocks, at));
        Self {
            bit,
            zeros,
            zeros_before: [query.start - ones[0], query.end - ones[1]],
        }
    }

    /// Rows of the range whose bit is 0.
    #[inline(always)]
    fn zeros_within(self) -> u32 {
        self.zeros_before[1] - self.zeros_before[0]
    }

    /// Takes the query's range to the next level: to the rows whose bit is 1 if all bits of `takes_ones` are, to those
    /// whose bit is 0 if none is.
    #[inline(always)]
    fn descend(&self, query: &mut Query, takes_ones: u32) {
        let [start, end] = self.zeros_before;
        let ones = [query.start - start, query.end - end].map(|ones| self.zeros + ones);
        query.start = (ones[0] & takes_ones) | (start & !takes_ones);
        query.end = (ones[1] & takes_ones) | (end & !takes_ones);
    }
}

#[inline(always)]
fn prefetch_both(blocks: &[Block], query: &Query) {
    prefetch(address(blocks, query.start));
    prefetch(address(blocks, query.end));
}

/// Checks that the groups `firsts[i]..firsts[i + 1]` divide this many ranges.
pub(super) fn check_groups(firsts: &[usize], ranges: usize) -> Result<(), EngineError> {
    let ends = (firsts.first(), firsts.last());
    if firsts.is_sorted() && ends == (Some(&0), Some(&ranges)) {
        return Ok(());
    }
    Err(EngineError::Invalid(format!(
        "the first ranges of groups go from {:?} to {:?}: they ascend from 0 to the number of ranges, {ranges}",
        ends.0, ends.1
    )))
}

/// Bits of ranks below `distinct`, at least one.
fn bits(distinct: u32) -> u32 {
    (u32::BITS - distinct.saturating_sub(1).leading_zeros()).max(1)
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;
    use crate::cpu::wavelet_matrix::previous_rows;

    fn build(ranks: &[u32], distinct: u32, threads: usize) -> WaveletMatrix {
        WaveletMatrix::build(ranks, distinct, threads, &|| false).expect("memory")
    }

    /// Ranges of `rows` rows, some of them empty, reversed or beyond the rows.
    fn ranges(rng: &mut Rng, rows: usize, queries: usize) -> (Vec<usize>, Vec<usize>) {
        let bound = |_| rng.usize(0..rows + 3);
        (0..2 * queries)
            .map(bound)
            .collect::<Vec<_>>()
            .chunks(2)
            .map(|pair| (pair[0], pair[1]))
            .unzip()
    }

    fn compare(ranks: &[u32], distinct: u32, threads: usize, rng: &mut Rng) {
        let matrix = build(ranks, distinct, threads);
        let bytes = WaveletMatrix::bytes_for(ranks.len(), distinct);
        assert_eq!((matrix.len(), matrix.memory_bytes()), (ranks.len(), bytes));
        let previous = previous_rows(ranks, distinct);
        let of_previous = build(&previous, ranks.len() as u32 + 1, threads);

        let queries = 1 + rng.usize(..100);
        let (starts, ends) = ranges(rng, ranks.len(), queries);
        let targets: Vec<u32> = (0..queries)
            .map(|_| match rng.u32(..8) {
                0 => u32::MAX - rng.u32(..2),
                1 => distinct,
                _ => rng.u32(..distinct.max(ranks.len() as u32) + 2),
            })
            .collect();
        let firsts: Vec<u32> = starts.iter().map(|start| *start as u32 + 1).collect();
        let (mut below, mut nth) = (vec![7; queries], vec![7; queries]);
        let mut distinct = vec![7; queries];
        matrix
            .count_below(&starts, &ends, &targets, &mut below)
            .expect("lengths");
        matrix
            .nth_smallest(&starts, &ends, &targets, &mut nth)
            .expect("lengths");
        of_previous
            .count_below(&starts, &ends, &firsts, &mut distinct)
            .expect("lengths");
        for i in 0..queries {
            let end = ends[i].min(ranks.len());
            let mut rows = ranks[starts[i].min(end)..end].to_vec();
            rows.sort_unstable();
            let smaller = rows.iter().filter(|rank| **rank < targets[i]).count();
            let expected = rows.get(targets[i] as usize).copied();
            rows.dedup();
            let what = format!(
                "{}..{} of {}, {}",
                starts[i],
                ends[i],
                ranks.len(),
                targets[i]
            );
            assert_eq!(below[i] as usize, smaller, "{what}");
            assert_eq!(nth[i], expected.unwrap_or(WaveletMatrix::NONE), "{what}");
            assert_eq!(distinct[i] as usize, rows.len(), "{what}");
        }
    }

    #[test]
    fn groups_of_ranges_are_their_rows_together() {
        let mut rng = Rng::with_seed(3);
        for case in 0..200 {
            let rows = [0, 1, 192, rng.usize(..2000)][case % 4];
            let distinct = 1 + [0, 2, 255, 5000][rng.usize(..4)];
            let ranks: Vec<u32> = (0..rows).map(|_| rng.u32(..distinct)).collect();
            let matrix = build(&ranks, distinct, 1);
            let lengths: Vec<usize> = (0..rng.usize(..40)).map(|_| rng.usize(..6)).collect();
            let (starts, ends) = ranges(&mut rng, rows, lengths.iter().sum());
            let mut firsts = vec![0];
            firsts.extend(lengths.iter().scan(0, |sum, length| {
                *sum += length;
                Some(*sum)
            }));
            let smaller: Vec<u64> = lengths.iter().map(|_| rng.u64(..4000)).collect();
            let mut found = vec![7; lengths.len()];
            matrix
                .nth_smallest_of_groups(&firsts, &starts, &ends, &smaller, &mut found)
                .expect("lengths");
            for (i, group) in firsts.windows(2).enumerate() {
                let mut together: Vec<u32> = vec![];
                for range in group[0]..group[1] {
                    let end = ends[range].min(rows);
                    together.extend(&ranks[starts[range].min(end)..end]);
                }
                together.sort_unstable();
                let expected = together.get(smaller[i] as usize).copied();
                let expected = expected.unwrap_or(WaveletMatrix::NONE);
                assert_eq!(found[i], expected, "group {i} of case {case}");
            }
        }
    }

    #[test]
    fn answers_are_those_of_sorted_rows() {
        let mut rng = Rng::with_seed(1);
        for case in 0..400 {
            let rows = [0, 1, 191, 192, 193, 384, rng.usize(..2000)][case % 7];
            let distinct = 1 + [0, 1, 2, 3, 255, 256, 1 << 20, u32::MAX - 1][rng.usize(..8)];
            let most = rng.u32(..distinct);
            let ranks: Vec<u32> = (0..rows).map(|_| rng.u32(..=most)).collect();
            // A table of the last row of each rank is as large as there are ranks.
            let distinct = if distinct > 1 << 21 {
                most.min(1 << 21) + 1
            } else {
                distinct
            };
            let ranks: Vec<u32> = ranks.iter().map(|rank| rank % distinct).collect();
            compare(&ranks, distinct, 1, &mut rng);
        }
    }

    #[test]
    fn any_number_of_threads_builds_the_same() {
        let mut rng = Rng::with_seed(2);
        let ranks: Vec<u32> = (0..900_001).map(|_| rng.u32(..1000)).collect();
        let one = build(&ranks, 1000, 1);
        for threads in [2, 3, 6] {
            let many = build(&ranks, 1000, threads);
            assert_eq!(one.levels.zeros, many.levels.zeros);
            let bytes = |matrix: &WaveletMatrix| {
                bytemuck::cast_slice::<_, u8>(&matrix.levels.blocks).to_vec()
            };
            assert!(bytes(&one) == bytes(&many), "{threads} threads");
        }
        compare(&ranks, 1000, 3, &mut rng);
    }

    #[test]
    fn bad_input_is_an_error() {
        let error = WaveletMatrix::build(&[0, 4], 4, 1, &|| false).expect_err("a rank of 4");
        assert_eq!(
            error.to_string(),
            "a rank is 4: ranks of 4 distinct values are below 4"
        );
        let matrix = build(&[0, 1], 2, 1);
        assert!(matrix.count_below(&[0], &[], &[0], &mut [0]).is_err());
        assert!(matrix.count_below(&[0], &[1], &[], &mut [0]).is_err());
        assert!(matrix.nth_smallest(&[0], &[1], &[0], &mut []).is_err());
        let of_groups = |firsts: &[usize], smaller: &[u64]| {
            let mut found = vec![0; smaller.len()];
            matrix.nth_smallest_of_groups(firsts, &[0, 1], &[1, 2], smaller, &mut found)
        };
        assert!(of_groups(&[0, 2], &[0]).is_ok());
        for firsts in [&[0, 1][..], &[1, 2], &[2, 0], &[0, 0, 2], &[]] {
            assert!(of_groups(firsts, &[0]).is_err(), "{firsts:?}");
        }
        let stopped = WaveletMatrix::build(&[0, 1], 2, 1, &|| true);
        assert_eq!(stopped.err(), Some(EngineError::Stopped));
    }
}
