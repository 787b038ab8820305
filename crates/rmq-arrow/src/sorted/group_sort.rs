//! Sorts range keys within groups, stably and on all threads.
//!
//! 1. Groups that ascend already are found and left alone. Only one group that has not moved is taken for unsorted.
//! 2. A large group is divided into ranges of keys of about equal size by quantiles of a sample. Rows are partitioned
//!    again, by these ranges.
//! 3. Groups and ranges, which fit a core's cache, are dealt to threads. Each thread sorts them by itself
//!    ([`Scratch`]).
//!
//! For n keys that differ in b bits this takes O(n b), and 4 to 8 bytes per key and 12 per range and thread beside the
//! keys.

use std::ops::Range;

use bytemuck::Pod;
use datafusion_common::{DataFusionError, Result, internal_err};
use datafusion_execution::memory_pool::MemoryReservation;

use crate::common::errors::engine_error;
use crate::common::workers::{STEP, Workers};
use crate::sorted::group_ids::{NARROW_NO_GROUP, id_bytes, to_narrow};
use crate::sorted::id_table::{NO_GROUP, number};
use crate::sorted::permutation::{
    Arrangement, Chunked, RangesOf, RowPermutation, Sources, move_by, split_by_ranges,
};
use crate::sorted::radix_sort::{RadixKey, Scratch};
use crate::sorted::splitters::Splitters;
use rmq_engine::cpu::{CountedPart, HugePageBuf, Partition, RowIdBuf};
use rmq_engine::{Column, Encoding, RowIds};

/// The rows of a range of keys, about: they and what sorting them takes fit the second-level cache.
const RANGE_ROWS: usize = 1 << 15;

/// The most ranges in all, about: values are written to all of them at once.
const MAX_RANGES: usize = 1 << 12;

/// The memory reservation of a sort, and its threads.
#[derive(Clone, Copy)]
pub struct SortContext<'a> {
    /// Grows by what sorting takes.
    pub memory: &'a MemoryReservation,
    /// Sort, and check for cancellation.
    pub workers: Workers<'a>,
}

/// Sorts the keys of rows that `permutation` moves to their groups; `starts` has the first position of each group, and
/// the end of the last. Returns the sorted keys, as the bits of a column, and the permutation that sorts the rows.
/// Memory, that of the keys excepted, is reserved with the context and stays reserved.
///
/// # Errors
/// The context's errors: memory is exhausted, or the work is cancelled.
pub fn sort_groups<K: RadixKey>(
    columns: &[Column<K>],
    encoding: Encoding<K>,
    starts: &[usize],
    permutation: RowPermutation,
    context: SortContext,
) -> Result<(HugePageBuf<K>, RowPermutation)> {
    let SortContext { memory, workers } = context;
    let chunks: Vec<&[K]> = columns.iter().map(Column::bits).collect();
    let chunked = Chunked::new(&chunks);
    let rows = permutation.len();
    let (mut keys, mut unsorted) = (None, vec![0]);
    // One group that has not moved is taken for unsorted: the caller would have left it where it is. It is read from
    // its chunks.
    if !permutation.is_identity() || starts.len() != 2 {
        let moved = permutation.permute(&chunks, workers)?;
        unsorted = unsorted_groups(&moved, encoding, starts, workers)?;
        if unsorted.is_empty() {
            return Ok((moved, permutation));
        }
        keys = Some(moved);
    }
    let key = |position: usize| match &keys {
        Some(keys) => encoding.encode(keys[position]),
        None => encoding.encode(chunked.get(position)),
    };
    let key_ranges = KeyRanges::choose(key, starts, &unsorted);
    // Each part counts its rows of each range, and has the next position of each while it moves values. Where this
    // takes more memory than the rows, as with many groups, large ones stay whole.
    let counts = 3 * workers.threads() * key_ranges.num_ranges();
    let partition = if key_ranges.are_groups() || counts > 4 * rows {
        None
    } else {
        let rows: usize = chunks.iter().map(|chunk| chunk.len()).sum();
        memory.try_grow(rows * id_bytes(key_ranges.are_narrow()) + counts * size_of::<u32>())?;
        let partition = key_ranges.partition(&chunked, encoding, starts, &permutation, workers)?;
        Some(partition)
    };
    let mut keys = match (keys, &partition) {
        (Some(keys), _) => keys,
        (None, Some(_)) => HugePageBuf::zeroed(rows).map_err(engine_error)?,
        (None, None) => permutation.permute(&chunks, workers)?,
    };
    if let Some(partition) = &partition {
        move_by(partition, &chunks, &mut keys, workers)?;
    }
    let ranges = match &partition {
        Some(partition) => key_ranges.unsorted(partition.starts(), &unsorted),
        None => unsorted
            .iter()
            .map(|group| starts[*group]..starts[group + 1])
            .collect(),
    };
    // All offsets within such ranges fit into 16 bits.
    let are_short = ranges.iter().all(|range| range.len() <= 1 << 16);
    memory.try_grow(rows * id_bytes(are_short))?;
    let sources = if are_short {
        Sources::Narrow(sort_ranges(
            &mut keys, encoding, &ranges, to_narrow, workers,
        )?)
    } else {
        Sources::Wide(sort_ranges(
            &mut keys,
            encoding,
            &ranges,
            |offset| offset,
            workers,
        )?)
    };
    let arrangement = Arrangement { ranges, sources };
    let permutation = match partition {
        Some(partition) => RowPermutation::arranged(partition, arrangement),
        None => permutation.then_arrange(arrangement),
    };
    Ok((keys, permutation))
}

/// Sorts the keys in each of these ranges. Returns where they were before, as offsets in their range, in the width that
/// `narrow` converts to.
fn sort_ranges<K: RadixKey, S: Pod + Send + Sync>(
    keys: &mut [K],
    encoding: Encoding<K>,
    ranges: &[Range<usize>],
    narrow: impl Fn(u32) -> S + Sync,
    workers: Workers,
) -> Result<HugePageBuf<S>> {
    let mut sources = HugePageBuf::zeroed(keys.len()).map_err(engine_error)?;
    let tasks = split_by_ranges(keys, ranges);
    let tasks = tasks.into_iter().zip(split_by_ranges(&mut sources, ranges));
    workers.map(tasks.collect(), |(task, to): (RangesOf<K>, RangesOf<S>)| {
        let mut scratch = Scratch::default();
        for range in task.ranges {
            let here = range.start - task.first..range.end - task.first;
            let sources = scratch.sort(&mut task.values[here.clone()], encoding);
            for (to, source) in to.values[here].iter_mut().zip(sources) {
                *to = narrow(*source);
            }
        }
        Ok(())
    })?;
    Ok(sources)
}

/// The groups, in order, whose keys do not ascend.
///
/// # Errors
/// An execution error once the query is cancelled.
pub fn unsorted_groups<K: RadixKey>(
    keys: &[K],
    encoding: Encoding<K>,
    starts: &[usize],
    workers: Workers,
) -> Result<Vec<usize>> {
    let steps = (0..keys.len()).step_by(4 * STEP).collect();
    let unsorted = workers.map(steps, |from: usize| {
        let end = keys.len().min(from + 4 * STEP);
        let mut unsorted = vec![];
        let mut group = starts.partition_point(|start| *start <= from) - 1;
        let mut position = from;
        while position < end {
            let stop = starts[group + 1];
            // The next key, too, if it is of the same group.
            if !K::is_sorted(&keys[position..stop.min(end + 1)], encoding) {
                unsorted.push(group);
            }
            position = stop;
            group += 1;
        }
        Ok(unsorted)
    })?;
    let mut unsorted: Vec<usize> = unsorted.into_iter().flatten().collect();
    unsorted.dedup();
    Ok(unsorted)
}

/// Ranges of encoded keys, one or several for each group. Every second range of several contains equal keys.
struct KeyRanges<K> {
    /// What divides the keys of each group that has several ranges.
    splitters: Vec<Splitters<K>>,
    /// The number of groups with several ranges before each group.
    divided_before: Vec<usize>,
    /// The first range of each group, and the number of all.
    first_ranges: Vec<usize>,
}

/// The rows of a part, the group of each as the part numbers them, and the group by that number; `None` if they are the
/// same.
type PartOfRows<'a> = (Range<usize>, RowIds<'a>, Option<&'a [u32]>);

impl<K: RadixKey> KeyRanges<K> {
    /// Divides the large ones among the groups that are not in order.
    fn choose(key: impl Fn(usize) -> K, starts: &[usize], unsorted: &[usize]) -> Self {
        let rows = |group: usize| starts[group + 1] - starts[group];
        let all: usize = unsorted.iter().map(|group| rows(*group)).sum();
        let rows_of_range = RANGE_ROWS.max(all / MAX_RANGES);
        let mut next_unsorted = unsorted.iter().peekable();
        let mut ranges = Self {
            splitters: vec![],
            divided_before: vec![],
            first_ranges: vec![0],
        };
        for (group, first) in starts[..starts.len() - 1].iter().enumerate() {
            let is_unsorted = next_unsorted.next_if(|next| **next == group).is_some();
            let mut of_group = 1;
            ranges.divided_before.push(ranges.splitters.len());
            if is_unsorted && rows(group) > 2 * rows_of_range {
                let count = rows(group).div_ceil(rows_of_range);
                let key = |i: usize| key(first + i);
                let splitters = Splitters::sample(count, rows(group), key);
                of_group = splitters.ranges();
                ranges.splitters.push(splitters);
            }
            ranges
                .first_ranges
                .push(ranges.first_ranges[group] + of_group);
        }
        ranges
    }

    /// Whether each group is one range.
    fn are_groups(&self) -> bool {
        self.splitters.is_empty()
    }

    fn num_ranges(&self) -> usize {
        self.first_ranges[self.first_ranges.len() - 1]
    }

    /// Whether the numbers of ranges fit into 16 bits.
    fn are_narrow(&self) -> bool {
        self.num_ranges() <= usize::from(NARROW_NO_GROUP)
    }

    /// The range of a key of a group.
    #[inline]
    fn range(&self, group: usize, key: K) -> u32 {
        let ranges = self.first_ranges[group]..self.first_ranges[group + 1];
        if ranges.len() == 1 {
            return number(ranges.start);
        }
        let splitters = &self.splitters[self.divided_before[group]];
        number(ranges.start + splitters.range(key))
    }

    /// Partitions the rows by range. `permutation` moves them to their groups.
    fn partition(
        &self,
        chunks: &Chunked<K>,
        encoding: Encoding<K>,
        starts: &[usize],
        permutation: &RowPermutation,
        workers: Workers,
    ) -> Result<Partition> {
        let in_place: Vec<Vec<(u32, u32)>>;
        let parts: Vec<(RowIds, Option<&[u32]>)> = match permutation.partition() {
            Some(partition) => {
                let parts = partition.parts();
                parts
                    .map(|(groups, numbers)| (groups, Some(numbers)))
                    .collect()
            }
            None if permutation.is_identity() => {
                let parts = workers.ranges(permutation.len(), 1).into_iter();
                in_place = parts.map(|rows| groups_of(rows, starts)).collect();
                let runs = in_place.iter().map(|runs| RowIds::Runs(runs));
                runs.map(|groups| (groups, None)).collect()
            }
            None => return internal_err!("rows to sort have not been moved to their groups"),
        };
        let mut next = 0;
        let parts = parts.into_iter().map(|(groups, numbers)| {
            let first = next;
            next += groups.rows();
            (first..next, groups, numbers)
        });
        let parts = workers.map(parts.collect(), |part: PartOfRows| {
            let rows = part.0.len();
            let ranges = if self.are_narrow() {
                let ranges = self.ranges_of_rows(part, chunks, encoding, to_narrow, workers)?;
                RowIdBuf::Narrow(ranges, rows)
            } else {
                let ranges = self.ranges_of_rows(part, chunks, encoding, |id| id, workers)?;
                RowIdBuf::Wide(ranges, rows)
            };
            let counted = CountedPart::new(ranges, self.num_ranges());
            Ok((counted, (0..number(self.num_ranges())).collect()))
        })?;
        Ok(Partition::new(parts, self.num_ranges()))
    }

    /// The range of each row of a part, in the width that `id` converts to.
    fn ranges_of_rows<G: Pod>(
        &self,
        (rows, groups, numbers): PartOfRows,
        chunks: &Chunked<K>,
        encoding: Encoding<K>,
        id: impl Fn(u32) -> G,
        workers: Workers,
    ) -> Result<HugePageBuf<G>> {
        let mut ranges = HugePageBuf::zeroed(rows.len()).map_err(engine_error)?;
        let mut keys = chunks.pieces(rows).flat_map(|piece| piece.chunks(STEP));
        let (mut keys_here, mut rest): (&[K], _) = (&[], &mut ranges[..]);
        groups.try_for_each_run(|group, mut rows| {
            let group = match numbers {
                Some(numbers) => numbers.get(group as usize).copied(),
                None => Some(group),
            };
            while rows > 0 {
                if keys_here.is_empty() {
                    workers.check()?;
                    let Some(next) = keys.next() else {
                        return internal_err!("a part of the rows has fewer keys than rows");
                    };
                    keys_here = next;
                }
                let len = rows.min(keys_here.len());
                let (keys, other_keys) = keys_here.split_at(len);
                let (to, other_to) = std::mem::take(&mut rest).split_at_mut(len);
                (keys_here, rest) = (other_keys, other_to);
                rows -= len;
                match group {
                    None => to.fill(id(NO_GROUP)),
                    Some(group) => {
                        for (range, bits) in to.iter_mut().zip(keys) {
                            *range = id(self.range(group as usize, encoding.encode(*bits)));
                        }
                    }
                }
            }
            Ok::<_, DataFusionError>(())
        })?;
        Ok(ranges)
    }

    /// The ranges of positions that are to be sorted, given the first position of each range of keys.
    fn unsorted(&self, starts: &[usize], unsorted: &[usize]) -> Vec<Range<usize>> {
        let ranges = unsorted.iter().flat_map(|group| {
            let ranges = self.first_ranges[*group]..self.first_ranges[group + 1];
            ranges
                .step_by(2)
                .map(|range| starts[range]..starts[range + 1])
        });
        ranges.filter(|range| range.len() > 1).collect()
    }
}

/// The group of each of these rows, which are in the order of the groups, as runs.
fn groups_of(rows: Range<usize>, starts: &[usize]) -> Vec<(u32, u32)> {
    let mut runs = vec![];
    let mut group = starts
        .partition_point(|start| *start <= rows.start)
        .saturating_sub(1);
    let mut row = rows.start;
    while row < rows.end {
        let end = starts[group + 1].min(rows.end);
        if end > row {
            runs.push((number(group), number(end - row)));
        }
        (row, group) = (end, group + 1);
    }
    runs
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use datafusion_common::exec_err;
    use datafusion_execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};

    use super::*;

    /// Makes the key of a row, given its number.
    type KeyOf = fn(&mut fastrand::Rng, u64) -> u64;

    /// Sorts groups of these lengths, and compares with a stable sort.
    fn check<K: RadixKey>(
        bits: &[K],
        encoding: Encoding<K>,
        lengths: &[usize],
        threads: usize,
        name: &str,
    ) {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 30));
        let memory = MemoryConsumer::new("test").register(&pool);
        let context = SortContext {
            memory: &memory,
            workers: Workers::new(threads, &|| Ok(())),
        };
        let mut starts = vec![0];
        for len in lengths {
            starts.push(starts[starts.len() - 1] + len);
        }
        let mut expected: Vec<(K, u32)> = bits.iter().copied().zip(0..).collect();
        for ends in starts.windows(2) {
            expected[ends[0]..ends[1]].sort_by_key(|(bits, _)| encoding.encode(*bits));
        }
        let permutation = RowPermutation::identity(bits.len());
        let column = [Column::new(Arc::new(bits.to_vec()), encoding)];
        let (sorted, permutation) =
            sort_groups(&column, encoding, &starts, permutation, context).unwrap();
        let name = format!("{name}, {lengths:?}, {threads} threads");
        assert!(
            sorted.iter().eq(expected.iter().map(|(bits, _)| bits)),
            "{name}"
        );
        let rows = expected.iter().map(|(_, row)| *row);
        match permutation.order(context.workers).unwrap() {
            Some(order) => assert!(order.iter().copied().eq(rows), "{name}"),
            None => assert!(rows.eq(0..number(bits.len())), "{name}"),
        }
    }

    #[test]
    fn groups_are_sorted_as_by_a_stable_sort() {
        let random = &mut fastrand::Rng::with_seed(88_172_645_463_325_252);
        // Different keys, few, one that most have, backwards, ascending with exceptions, within a small range, some far
        // away.
        let kinds: [(&str, KeyOf); 7] = [
            ("different", |random, _| random.u64(..)),
            ("few", |random, _| random.u64(..5)),
            ("one", |random, _| {
                if random.u64(..4) > 0 {
                    7
                } else {
                    random.u64(..1 << 40)
                }
            }),
            ("backwards", |_, i| u64::MAX / 2 - i),
            (
                "ascending",
                |random, i| if random.u64(..9999) == 0 { 0 } else { i },
            ),
            ("near", |random, _| (1 << 60) + random.u64(..1 << 25)),
            ("some far", |random, i| {
                random.u64(..1 << (20 + i % 100 / 99 * 40))
            }),
        ];
        let many_groups = vec![17; 5000];
        // With this many groups large ones stay whole if there are threads: offsets in 17 bits, and exactly 16.
        let whole = [vec![1; 100_000], vec![(1 << 16) + 1, 1 << 16]].concat();
        // Ranges in more than 16 bits.
        let many_ranges = [vec![1; 70_000], vec![5 * RANGE_ROWS]].concat();
        let lengths: [&[usize]; 8] = [
            &[0, 1, 2, 0, 700],
            &[5000, 0, 3, 30_000, 1100],
            &[2 * RANGE_ROWS + 1],
            &[10, 6 * RANGE_ROWS, 0, 20, 2 * RANGE_ROWS + 7, 2000],
            &[0],
            &many_groups,
            &whole,
            &many_ranges,
        ];
        for (name, key) in kinds {
            for lengths in lengths {
                let rows: usize = lengths.iter().sum();
                let keys: Vec<u64> = (0..rows as u64).map(|i| key(random, i)).collect();
                for threads in [1, 3, 16] {
                    check(&keys, Encoding::signed(), lengths, threads, name);
                }
                let wide: Vec<u128> = keys.iter().map(|key| u128::from(*key) << 50).collect();
                check(&wide, Encoding::unsigned(), lengths, 2, name);
                #[expect(clippy::cast_possible_truncation, reason = "cut on purpose")]
                let narrow: Vec<u32> = keys.iter().map(|key| *key as u32).collect();
                check(&narrow, Encoding::float(), lengths, 2, name);
            }
        }
    }

    #[test]
    fn a_sort_ends_when_it_is_cancelled_or_memory_is_exhausted() {
        let random = &mut fastrand::Rng::with_seed(88_172_645_463_325_252);
        let rows = 8 * RANGE_ROWS;
        let keys: Vec<u64> = (0..rows).map(|_| random.u64(..)).collect();
        let sort = |bytes: usize, threads: usize, check: &(dyn Fn() -> Result<()> + Sync)| {
            let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(bytes));
            let memory = MemoryConsumer::new("test").register(&pool);
            let context = SortContext {
                memory: &memory,
                workers: Workers::new(threads, check),
            };
            let starts = [0, rows];
            let column = [Column::new(Arc::new(keys.clone()), Encoding::unsigned())];
            let permutation = RowPermutation::identity(rows);
            let sorted = sort_groups(&column, Encoding::unsigned(), &starts, permutation, context);
            sorted.map(|_| ())
        };
        for bytes in [0, rows * 2, rows * 4] {
            assert!(sort(bytes, 2, &|| Ok(())).is_err(), "{bytes} bytes");
        }
        let checks = AtomicUsize::new(0);
        let count = || {
            checks.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        sort(usize::MAX, 1, &count).unwrap();
        let all = checks.load(Ordering::Relaxed);
        assert!(all > 2 * rows / STEP, "{all} checks");
        for last in [1, all / 3, all / 2, all - 1] {
            checks.store(0, Ordering::Relaxed);
            let end_early = || match checks.fetch_add(1, Ordering::Relaxed) {
                before if before >= last => exec_err!("the query was cancelled"),
                _ => Ok(()),
            };
            assert!(
                sort(usize::MAX, 1, &end_early).is_err(),
                "after {last} of {all}"
            );
            assert_eq!(checks.load(Ordering::Relaxed), last + 1);
        }
    }
}
