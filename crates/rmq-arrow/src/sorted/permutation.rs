//! The permutation that sorts the rows of a build side, and columns permuted by it.
//!
//! A column moves in two passes. Both read and write memory in order, at a few thousand positions at a time:
//!
//! 1. Rows are partitioned by group, and large groups that are not in order by ranges of keys, too: all parts of the
//!    rows at once ([`Partition`]).
//! 2. Within each group, or range of keys, that is not in order rows are arranged. These fit a core's cache.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytemuck::Pod;
use datafusion_common::Result;

use crate::common::errors::engine_error;
use crate::common::workers::{STEP, Workers};
use crate::sorted::group_ids::GroupIds;
use crate::sorted::id_table::{NO_GROUP, number};
use crate::sorted::radix_sort::Scratch;
use rmq_engine::cpu::{CountedPart, HugePageBuf, PartWriter, Partition};
use rmq_engine::{Encoding, PartGroups};

/// The positions of a range to which rows in a given order move first: offsets in it fit into 16 bits.
const ORDERED_ROWS: usize = 1 << 16;

/// A map from rows, in input order, to positions, in sorted order. Rows may be left out.
#[derive(Debug)]
pub struct RowPermutation {
    /// The partition by which rows move first, if they do.
    partition: Option<Partition>,
    /// How rows are arranged after they moved.
    arrangement: Option<Arrangement>,
    /// Number of positions: of the rows that are not left out.
    len: usize,
    /// The row at each position, computed on demand.
    order: OnceLock<Arc<HugePageBuf<u32>>>,
}

/// The order of rows within ranges of positions.
#[derive(Debug)]
pub struct Arrangement {
    /// Ranges that are not in order, ascending.
    pub ranges: Vec<Range<usize>>,
    /// For each position in one of them: where its row is before, from the start of the range on.
    pub sources: Sources,
}

/// Offsets of rows in ranges, in 16 bits where no range is longer.
#[derive(Debug)]
pub enum Sources {
    /// In 16 bits.
    Narrow(HugePageBuf<u16>),
    /// In 32 bits.
    Wide(HugePageBuf<u32>),
}

/// Consecutive rows whose groups were numbered apart from those of other rows.
#[derive(Debug)]
pub struct GroupedRows {
    /// The id of each row, of those that these rows were given.
    pub ids: GroupIds,
    /// The group of each id.
    pub groups: Vec<u32>,
}

impl GroupedRows {
    /// The groups as devices take them.
    pub fn for_devices(&self) -> PartGroups<'_> {
        PartGroups {
            ids: self.ids.ids(),
            groups: Some(&self.groups),
        }
    }
}

impl RowPermutation {
    fn new(partition: Option<Partition>, len: usize) -> Self {
        Self {
            partition,
            arrangement: None,
            len,
            order: OnceLock::new(),
        }
    }

    /// The identity of `len` rows.
    pub fn identity(len: usize) -> Self {
        Self::new(None, len)
    }

    /// Sorts rows by group, stably; rows without a group are left out. Also returns the first position of each group,
    /// and the end of the last. `parts` are all rows in order.
    ///
    /// # Errors
    /// If the query is cancelled.
    pub fn by_group(
        parts: Vec<GroupedRows>,
        groups: usize,
        workers: Workers,
    ) -> Result<(Self, Vec<usize>)> {
        let parts = workers.map(parts, |part: GroupedRows| {
            let counted = CountedPart::new(part.ids.into_ids(), part.groups.len());
            Ok((counted, part.groups))
        })?;
        let partition = Partition::new(parts, groups);
        let starts = partition.starts().to_vec();
        let len = partition.len();
        let partition = (!partition.is_ordered()).then_some(partition);
        Ok((Self::new(partition, len), starts))
    }

    /// Moves rows by a partition, and then arranges them.
    pub fn arranged(partition: Partition, arrangement: Arrangement) -> Self {
        let len = partition.len();
        Self::new(Some(partition), len).then_arrange(arrangement)
    }

    /// Arranges rows after they moved.
    pub fn then_arrange(self, arrangement: Arrangement) -> Self {
        Self {
            arrangement: Some(arrangement),
            ..Self::new(self.partition, self.len)
        }
    }

    /// The permutation with these rows at the positions; other rows of `rows` are left out. Rows move to ranges of
    /// positions, and are then arranged within these.
    ///
    /// # Errors
    /// If the memory is not available or the query is cancelled.
    pub fn from_order(order: &[u32], rows: usize, workers: Workers) -> Result<Self> {
        let mut positions = vec![NO_GROUP; rows];
        for (position, row) in order.iter().enumerate() {
            positions[*row as usize] = number(position);
        }
        let ranges = order.len().div_ceil(ORDERED_ROWS);
        let parts = workers.map(workers.ranges(rows, 1), |rows: Range<usize>| {
            let mut ids = GroupIds::new(rows.len());
            for positions in positions[rows].chunks(STEP) {
                ids.add(positions.len(), |ids| {
                    for (id, position) in ids.iter_mut().zip(positions) {
                        *id = match *position {
                            NO_GROUP => NO_GROUP,
                            position => position / number(ORDERED_ROWS),
                        };
                    }
                    Ok(())
                })?;
            }
            ids.finish();
            let groups = (0..number(ranges)).collect();
            Ok(GroupedRows { ids, groups })
        })?;
        let (permutation, starts) = Self::by_group(parts, ranges, workers)?;
        // Rows come to a range in input order.
        let mut sources = HugePageBuf::zeroed(order.len()).map_err(engine_error)?;
        let tasks = sources
            .chunks_mut(ORDERED_ROWS)
            .zip(order.chunks(ORDERED_ROWS));
        workers.map(tasks.collect(), |(sources, rows): (&mut [u16], &[u32])| {
            let mut scratch = Scratch::default();
            let sorted = scratch.sort(&mut rows.to_vec(), Encoding::unsigned());
            for (source, offset) in (0..=u16::MAX).zip(sorted) {
                sources[*offset as usize] = source;
            }
            Ok(())
        })?;
        Ok(permutation.then_arrange(Arrangement {
            ranges: starts.windows(2).map(|ends| ends[0]..ends[1]).collect(),
            sources: Sources::Narrow(sources),
        }))
    }

    /// Number of positions: of the rows that are not left out.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether this is the identity.
    pub fn is_identity(&self) -> bool {
        self.partition.is_none() && self.arrangement.is_none()
    }

    /// The partition by which rows move first, if there is one.
    pub fn partition(&self) -> Option<&Partition> {
        self.partition.as_ref()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let partition = self.partition.as_ref().map_or(0, Partition::bytes);
        let arrangement = self.arrangement.as_ref().map_or(0, Arrangement::bytes);
        let order = self.order.get().map_or(0, |order| order.bytes());
        partition + arrangement + order
    }

    /// Bytes that remain allocated when this is dropped, because others share the order.
    pub fn shared_order_bytes(&self) -> usize {
        let shared = self.order.get().filter(|o| Arc::strong_count(o) > 1);
        shared.map_or(0, |order| order.bytes())
    }

    /// The rows that are left out, ascending.
    pub fn left_out(&self) -> Vec<u32> {
        let mut left_out = vec![];
        let mut next = 0;
        for (groups, numbers) in self.partition.iter().flat_map(Partition::parts) {
            groups.for_each_run(|group, rows| {
                let end = next + number(rows);
                if group as usize >= numbers.len() {
                    left_out.extend(next..end);
                }
                next = end;
            });
        }
        left_out
    }

    /// Bytes that the first call of [`Self::order`] allocates; 0 after it.
    pub fn order_bytes(&self) -> usize {
        if self.is_identity() || self.order.get().is_some() {
            return 0;
        }
        self.len * size_of::<u32>()
    }

    /// The row at each position; `None` for the identity.
    ///
    /// # Errors
    /// If the memory is not available or the query is cancelled.
    pub fn order(&self, workers: Workers) -> Result<Option<&Arc<HugePageBuf<u32>>>> {
        if self.is_identity() {
            return Ok(None);
        }
        if self.order.get().is_none() {
            let mut order = HugePageBuf::zeroed(self.len).map_err(engine_error)?;
            match &self.partition {
                None => {
                    let steps = order.chunks_mut(4 * STEP).enumerate().collect();
                    workers.map(steps, |(step, order): (usize, &mut [u32])| {
                        for (row, i) in order.iter_mut().zip(step * 4 * STEP..) {
                            *row = number(i);
                        }
                        Ok(())
                    })?;
                }
                Some(partition) => {
                    write_parts(partition, &mut order, workers, |rows, writer| {
                        let rows: Vec<u32> = rows.map(number).collect();
                        writer.write(&rows);
                    })?;
                }
            }
            self.arrange(&mut order, workers)?;
            self.order.get_or_init(|| Arc::new(order));
        }
        Ok(self.order.get())
    }

    /// Permutes a column: returns the values of all rows, which are in `chunks`, at their positions.
    ///
    /// # Errors
    /// If the memory is not available or the query is cancelled.
    pub fn permute<T: Pod + Send + Sync>(
        &self,
        chunks: &[&[T]],
        workers: Workers,
    ) -> Result<HugePageBuf<T>> {
        let mut permuted = HugePageBuf::zeroed(self.len).map_err(engine_error)?;
        match &self.partition {
            None => {
                let mut rest = &mut permuted[..];
                let copies = steps(chunks.iter().map(|chunk| chunk.len()));
                let copies = copies.into_iter().map(|(chunk, rows)| {
                    let (here, after) = std::mem::take(&mut rest).split_at_mut(rows.len());
                    rest = after;
                    (&chunks[chunk][rows], here)
                });
                workers.map(copies.collect(), |(values, here): (&[T], &mut [T])| {
                    here.copy_from_slice(values);
                    Ok(())
                })?;
            }
            Some(partition) => move_by(partition, chunks, &mut permuted, workers)?,
        }
        self.arrange(&mut permuted, workers)?;
        Ok(permuted)
    }

    /// Permutes a flag per row, 0 or 1: returns those of all rows, which `flags` returns for each chunk, at their
    /// positions.
    ///
    /// # Errors
    /// As [`Self::permute`].
    pub fn permute_flags<C: Sync>(
        &self,
        chunks: &[C],
        flags: impl Fn(&C) -> Vec<u8> + Sync,
        workers: Workers,
    ) -> Result<HugePageBuf<u8>> {
        let flags = workers.map(chunks.iter().collect(), |chunk: &C| Ok(flags(chunk)))?;
        let flags: Vec<&[u8]> = flags.iter().map(Vec::as_slice).collect();
        self.permute(&flags, workers)
    }

    /// Arranges values that have moved.
    fn arrange<T: Pod + Send + Sync>(&self, values: &mut [T], workers: Workers) -> Result<()> {
        let Some(Arrangement { ranges, sources }) = &self.arrangement else {
            return Ok(());
        };
        match sources {
            Sources::Narrow(sources) => arrange(ranges, sources, values, workers),
            Sources::Wide(sources) => arrange(ranges, sources, values, workers),
        }
    }
}

impl Arrangement {
    fn bytes(&self) -> usize {
        let sources = match &self.sources {
            Sources::Narrow(sources) => sources.bytes(),
            Sources::Wide(sources) => sources.bytes(),
        };
        self.ranges.capacity() * size_of::<Range<usize>>() + sources
    }
}

/// Arranges the values in each of these ranges.
fn arrange<T: Pod + Send + Sync, S: Copy + Into<u32> + Sync>(
    ranges: &[Range<usize>],
    sources: &[S],
    values: &mut [T],
    workers: Workers,
) -> Result<()> {
    let tasks = split_by_ranges(values, ranges);
    workers.map(tasks, |task: RangesOf<T>| {
        let mut before = vec![];
        for range in task.ranges {
            let values = &mut task.values[range.start - task.first..range.end - task.first];
            before.clear();
            before.extend_from_slice(values);
            for (value, source) in values.iter_mut().zip(&sources[range.clone()]) {
                *value = before[(*source).into() as usize];
            }
        }
        Ok(())
    })?;
    Ok(())
}

/// Moves the values of all rows, which are in `chunks`, by a partition.
///
/// # Errors
/// If the query is cancelled.
pub fn move_by<T: Pod + Send + Sync>(
    partition: &Partition,
    chunks: &[&[T]],
    to: &mut [T],
    workers: Workers,
) -> Result<()> {
    let chunks = Chunked::new(chunks);
    write_parts(partition, to, workers, |rows, writer| {
        chunks.pieces(rows).for_each(|values| writer.write(values));
    })
}

/// Writes all parts of a partition; `write` is called with a step of rows and the writer of their part.
fn write_parts<T: Pod + Send>(
    partition: &Partition,
    to: &mut [T],
    workers: Workers,
    write: impl Fn(Range<usize>, &mut PartWriter<T>) + Sync,
) -> Result<()> {
    let mut next = 0;
    let writers = partition.writers(to).into_iter().map(|writer| {
        let first = next;
        next += writer.rows();
        (first..next, writer)
    });
    workers.map(
        writers.collect(),
        |(rows, mut writer): (Range<usize>, PartWriter<T>)| {
            for start in rows.clone().step_by(STEP) {
                workers.check()?;
                write(start..rows.end.min(start + STEP), &mut writer);
            }
            Ok(())
        },
    )?;
    Ok(())
}

/// A column in chunks, with access by row.
pub struct Chunked<'a, T> {
    chunks: &'a [&'a [T]],
    /// The first row of each chunk.
    firsts: Vec<usize>,
}

impl<'a, T: Copy> Chunked<'a, T> {
    /// Reads from these chunks in turn.
    pub fn new(chunks: &'a [&'a [T]]) -> Self {
        let firsts = chunks.iter().scan(0, |next, chunk| {
            let first = *next;
            *next += chunk.len();
            Some(first)
        });
        Self {
            firsts: firsts.collect(),
            chunks,
        }
    }

    /// The chunk that has a row, and the row within it.
    fn find(&self, row: usize) -> (usize, usize) {
        let chunk = self.firsts.partition_point(|first| *first <= row) - 1;
        (chunk, row - self.firsts[chunk])
    }

    /// The value of a row, which must exist.
    pub fn get(&self, row: usize) -> T {
        let (chunk, row) = self.find(row);
        self.chunks[chunk][row]
    }

    /// The values of rows, which must exist, in slices.
    pub fn pieces(&self, rows: Range<usize>) -> impl Iterator<Item = &'a [T]> {
        let (mut chunk, mut row) = if rows.is_empty() {
            (0, 0)
        } else {
            self.find(rows.start)
        };
        let mut left = rows.len();
        let chunks = self.chunks;
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let piece = &chunks[chunk][row..];
            let piece = &piece[..piece.len().min(left)];
            (chunk, row) = (chunk + 1, 0);
            left -= piece.len();
            Some(piece)
        })
    }
}

/// Consecutive ranges of positions that one thread works on, and the values from the first of them to the end of the
/// last.
pub struct RangesOf<'a, 'r, T> {
    /// Without gaps between them.
    pub ranges: &'r [Range<usize>],
    /// The position of the first value.
    pub first: usize,
    /// Those of all ranges.
    pub values: &'a mut [T],
}

/// Divides values by ascending ranges of positions into tasks of about a step.
pub fn split_by_ranges<'a, 'r, T>(
    values: &'a mut [T],
    ranges: &'r [Range<usize>],
) -> Vec<RangesOf<'a, 'r, T>> {
    let mut tasks = vec![];
    let (mut rest, mut rest_first) = (values, 0);
    let mut ranges = ranges;
    while let Some(first) = ranges.first() {
        let within = |range: &Range<usize>| range.end - first.start <= 4 * STEP;
        let (here, after) = ranges.split_at(ranges.partition_point(within).max(1));
        let end = here[here.len() - 1].end;
        let (until, after_values) = std::mem::take(&mut rest).split_at_mut(end - rest_first);
        tasks.push(RangesOf {
            ranges: here,
            first: first.start,
            values: &mut until[first.start - rest_first..],
        });
        (rest, rest_first, ranges) = (after_values, end, after);
    }
    tasks
}

/// Divides chunks of these lengths into steps that threads take: the chunk, and rows within it.
pub fn steps(chunks: impl IntoIterator<Item = usize>) -> Vec<(usize, Range<usize>)> {
    let mut steps = vec![];
    for (chunk, len) in chunks.into_iter().enumerate() {
        for start in (0..len).step_by(4 * STEP) {
            steps.push((chunk, start..len.min(start + 4 * STEP)));
        }
    }
    steps
}
