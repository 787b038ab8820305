//! Moves values to the positions of their rows' groups: a stable counting sort of columns.
//!
//! The rows come in consecutive parts. Rows are counted by part and group, so that each part knows where its rows of
//! each group go, and all parts can be written at once. A value that is stored far from the one before costs a cache
//! line read and written for 8 bytes. So the values of a group are gathered in a line of their own and stored when it
//! is full, past the caches: half the time, while the lines of all groups fit in the second-level cache. (Software
//! write-combining; Polychroniou and Ross, *A Comprehensive Study of Main-Memory Partitioning*, SIGMOD 2014.)

use std::marker::PhantomData;

use bytemuck::Pod;

use crate::cpu::huge_page_buf::HugePageBuf;
use crate::range_join::RowIds;

/// The most groups of a part whose values are gathered in lines: 1 MiB of lines.
const MAX_LINES: usize = 1 << 14;

/// Rows of a part below which lines do not pay: those of rare groups are stored value by value in the end.
const MIN_ROWS_PER_LINE: usize = 32;

/// The bytes of a cache line.
const LINE: usize = 64;

/// [`RowIds`] in memory of their own. A row whose id is not below the number of groups has no group.
#[derive(Debug)]
pub enum RowIdBuf {
    /// One id for each of the first rows of the slice.
    Wide(HugePageBuf<u32>, usize),
    /// The same in 16 bits, for fewer than 2^16 groups.
    Narrow(HugePageBuf<u16>, usize),
    /// Runs of rows with one id: the id, and the number of rows.
    Runs(Vec<(u32, u32)>),
}

impl RowIdBuf {
    /// The ids.
    #[must_use]
    pub fn ids(&self) -> RowIds<'_> {
        match self {
            Self::Wide(ids, len) => RowIds::Wide(&ids[..*len]),
            Self::Narrow(ids, len) => RowIds::Narrow(&ids[..*len]),
            Self::Runs(runs) => RowIds::Runs(runs),
        }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Wide(ids, _) => ids.bytes(),
            Self::Narrow(ids, _) => ids.bytes(),
            Self::Runs(runs) => runs.capacity() * size_of::<(u32, u32)>(),
        }
    }
}

/// A part of the rows, counted by group.
#[derive(Debug)]
pub struct CountedPart {
    ids: RowIdBuf,
    /// The rows of each group, then 0.
    counts: Vec<u32>,
    is_ordered: bool,
}

impl CountedPart {
    /// Counts the rows of each of `num_groups` groups.
    ///
    /// # Panics
    /// If groups in 16 bits are as many as 2^16: the last would be that of rows without a group.
    #[must_use]
    pub fn new(ids: RowIdBuf, num_groups: usize) -> Self {
        let is_narrow = matches!(ids, RowIdBuf::Narrow(..));
        assert!(
            !is_narrow || u16::try_from(num_groups).is_ok(),
            "fewer than 2^16 groups"
        );
        let mut counts = vec![0; num_groups + 1];
        let (mut is_ordered, mut last) = (true, 0);
        ids.ids().for_each_run(|group, rows| {
            is_ordered &= group >= last && (group as usize) < num_groups;
            last = group;
            counts[(group as usize).min(num_groups)] += rows as u32;
        });
        counts[num_groups] = 0;
        Self {
            ids,
            counts,
            is_ordered,
        }
    }

    fn num_groups(&self) -> usize {
        self.counts.len() - 1
    }
}

/// Where the rows of all parts go: by group, and within a group in input order.
#[derive(Debug)]
pub struct Partition {
    parts: Vec<NumberedPart>,
    starts: Vec<usize>,
    is_ordered: bool,
}

#[derive(Debug)]
struct NumberedPart {
    ids: RowIdBuf,
    /// The position of the part's first row of each group, then one that no row has. The positions of a group's rows
    /// are consecutive, and no two parts or groups have common ones.
    firsts: Vec<u32>,
    /// The group of the partition that each group of the part is.
    numbers: Vec<u32>,
}

impl Partition {
    /// Divides fewer than 2^32 rows into `num_groups` groups. With each part goes the group that each of its own groups
    /// is.
    ///
    /// # Panics
    /// If a part has other groups than numbers, a number is not below `num_groups`, or there are 2^32 rows.
    #[must_use]
    pub fn new(parts: Vec<(CountedPart, Vec<u32>)>, num_groups: usize) -> Self {
        let mut starts = vec![0; num_groups + 1];
        for (part, numbers) in &parts {
            assert_eq!(
                part.num_groups(),
                numbers.len(),
                "a number for each group of a part"
            );
            for (number, count) in numbers.iter().zip(&part.counts) {
                starts[1 + *number as usize] += *count as usize;
            }
        }
        for group in 0..num_groups {
            starts[group + 1] += starts[group];
        }
        assert!(
            u32::try_from(starts[num_groups]).is_ok(),
            "fewer than 2^32 rows"
        );
        let ordered = parts.iter().all(|(part, _)| part.is_ordered);
        let numbers = parts.iter().flat_map(|(_, numbers)| numbers);
        let is_ordered = ordered && numbers.is_sorted();
        // The rows of a group are in the order of the parts: from counts to first positions.
        let mut next: Vec<u32> = starts.iter().map(|start| *start as u32).collect();
        let parts = parts.into_iter().map(|(part, numbers)| {
            let CountedPart {
                ids,
                counts: mut firsts,
                ..
            } = part;
            for (number, first) in numbers.iter().zip(&mut firsts) {
                let next = &mut next[*number as usize];
                (*first, *next) = (*next, *next + *first);
            }
            NumberedPart {
                ids,
                firsts,
                numbers,
            }
        });
        Self {
            parts: parts.collect(),
            starts,
            is_ordered,
        }
    }

    /// The first position of each group, and the end of the last.
    #[must_use]
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Number of rows that have a group.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// Whether no row has a group.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all rows have a group and are in the order of their groups, so that none moves.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// The group of each row of each part, as the part numbers them, and the group of the partition by that number.
    pub fn parts(&self) -> impl Iterator<Item = (RowIds<'_>, &[u32])> {
        let parts = self.parts.iter();
        parts.map(|part| (part.ids.ids(), part.numbers.as_slice()))
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let parts = self.parts.iter();
        let parts = parts.map(|part| part.ids.bytes() + 2 * part.firsts.len() * size_of::<u32>());
        parts.sum::<usize>() + self.starts.len() * size_of::<usize>()
    }

    /// One writer for each part, that moves its values to their positions in `to`. Threads may use them at the same
    /// time.
    ///
    /// # Panics
    /// If `to` is shorter than [`Self::len`].
    pub fn writers<'a, T: Pod + Send>(&'a self, to: &'a mut [T]) -> Vec<PartWriter<'a, T>> {
        assert!(to.len() >= self.len(), "room for all rows");
        let to = to.as_mut_ptr();
        let writers = self.parts.iter().map(|part| PartWriter {
            part,
            row: 0,
            run: 0,
            of_run: 0,
            next: part.firsts.clone(),
            lines: Lines::if_useful::<T>(part, to),
            to,
            exclusive: PhantomData,
        });
        writers.collect()
    }
}

/// A cache line of values of one group.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// One line for each group of a part, and one for rows without a group.
struct Lines(Vec<Line>);

impl Lines {
    fn if_useful<T>(part: &NumberedPart, to: *mut T) -> Option<Self> {
        let groups = part.firsts.len();
        let pays = groups <= MAX_LINES && part.ids.ids().rows() >= groups * MIN_ROWS_PER_LINE;
        let fits = LINE.is_multiple_of(size_of::<T>()) && to.addr().is_multiple_of(LINE);
        let in_runs = matches!(part.ids, RowIdBuf::Runs(_));
        (pays && fits && !in_runs).then(|| Self(vec![Line([0; LINE]); groups]))
    }
}

/// Writes the values of one part. What is written is there when the writer is dropped.
pub struct PartWriter<'a, T: Pod> {
    part: &'a NumberedPart,
    /// The number of rows written, if groups are given for each row.
    row: usize,
    /// If they are given for runs: the current one, and the number of its rows that are written.
    run: usize,
    of_run: usize,
    /// The position of the next row of each group.
    next: Vec<u32>,
    lines: Option<Lines>,
    to: *mut T,
    exclusive: PhantomData<&'a mut [T]>,
}

// SAFETY: writers of one slice write disjoint positions of it, and do not read it.
unsafe impl<T: Pod + Send> Send for PartWriter<'_, T> {}

impl<T: Pod> PartWriter<'_, T> {
    /// Number of rows of the part.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.part.ids.ids().rows()
    }

    /// Moves the values of the next rows to their positions.
    ///
    /// # Panics
    /// If the part has no more rows.
    pub fn write(&mut self, values: &[T]) {
        match self.part.ids.ids() {
            RowIds::Wide(groups) => self.write_rows(groups, values),
            RowIds::Narrow(groups) => self.write_rows(groups, values),
            RowIds::Runs(runs) => {
                let mut values = values;
                while let Some((group, rows)) = runs.get(self.run).filter(|_| !values.is_empty()) {
                    let (here, rest) =
                        values.split_at(values.len().min(*rows as usize - self.of_run));
                    values = rest;
                    self.of_run += here.len();
                    self.write_run(*group, here);
                    if self.of_run == *rows as usize {
                        (self.run, self.of_run) = (self.run + 1, 0);
                    }
                }
                assert!(values.is_empty(), "more values than rows");
            }
        }
    }

    /// Moves the values of the next rows, given the groups of all.
    fn write_rows<G: Copy + Into<u32>>(&mut self, groups: &[G], values: &[T]) {
        let end = self.row + values.len();
        let groups = &groups[self.row..end];
        self.row = end;
        match self.lines.take() {
            Some(mut lines) => {
                self.write_lines(groups, values, &mut lines.0);
                self.lines = Some(lines);
            }
            None => self.write_each(groups, values),
        }
    }

    /// Stores each value at the next position of its group.
    fn write_each<G: Copy + Into<u32>>(&mut self, groups: &[G], values: &[T]) {
        let none = self.next.len() - 1;
        for (group, value) in groups.iter().zip(values) {
            let group = ((*group).into() as usize).min(none);
            if group < none {
                let next = &mut self.next[group];
                // SAFETY: this row of the part was counted as one of the group's and is written once, so the position
                // is one of those that only this writer has, which are all below `Partition::len`, which is at most the
                // length of `to`.
                unsafe { self.to.add(*next as usize).write(*value) };
                *next += 1;
            }
        }
    }

    /// Stores values of one group at its next positions.
    fn write_run(&mut self, group: u32, values: &[T]) {
        let group = group as usize;
        if group >= self.next.len() - 1 {
            return;
        }
        let next = &mut self.next[group];
        // SAFETY: as in `write_each`, for all rows of the run.
        unsafe {
            let to = self.to.add(*next as usize);
            std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
        }
        *next += values.len() as u32;
    }

    /// Gathers values in the lines of their groups, and stores those that are full.
    fn write_lines<G: Copy + Into<u32>>(&mut self, groups: &[G], values: &[T], lines: &mut [Line]) {
        let per_line = const { LINE / size_of::<T>() };
        let none = self.next.len() - 1;
        for (group, value) in groups.iter().zip(values) {
            let group = ((*group).into() as usize).min(none);
            // SAFETY: `none` is the last index of `next` and of `lines`.
            let (next, line) = unsafe {
                (
                    self.next.get_unchecked_mut(group),
                    lines.get_unchecked_mut(group),
                )
            };
            let position = *next as usize;
            *next = next.wrapping_add(1);
            let within = position % per_line;
            // SAFETY: `within` is below the number of values of a line, which is aligned to its size.
            unsafe {
                let slots = std::ptr::from_mut(line).cast::<T>();
                slots.add(within).write(*value);
            };
            if within + 1 < per_line || group == none {
                continue;
            }
            let first = self.part.firsts[group] as usize;
            let start = position + 1 - per_line;
            // SAFETY: as in `write_each`, for the rows of the group from the greater of `first` and `start` on. `to` is
            // aligned to lines, as is `start`.
            unsafe {
                if start >= first {
                    store_line(self.to.add(start).cast(), line);
                } else {
                    self.store_part(line, first..position + 1);
                }
            }
        }
    }

    /// Stores the values of a line at these positions, which are all of it or some.
    ///
    /// # Safety
    /// No other writer has the positions, and they are within `to`.
    unsafe fn store_part(&self, line: &Line, positions: std::ops::Range<usize>) {
        let per_line = LINE / size_of::<T>();
        for position in positions {
            // SAFETY: within the line, and as the caller promises.
            unsafe {
                let value = std::ptr::from_ref(line).cast::<T>();
                let value = value.add(position % per_line).read();
                self.to.add(position).write(value);
            }
        }
    }
}

impl<T: Pod> Drop for PartWriter<'_, T> {
    fn drop(&mut self) {
        let Some(Lines(lines)) = &self.lines else {
            return;
        };
        let per_line = LINE / size_of::<T>();
        let groups = self.next.len() - 1;
        for (group, line) in lines[..groups].iter().enumerate() {
            let (first, next) = (self.part.firsts[group] as usize, self.next[group] as usize);
            let rest = first.max(next - next % per_line)..next;
            // SAFETY: as in `write_each`, for the rows of the group that are still in its line.
            unsafe { self.store_part(line, rest) };
        }
        fence();
    }
}

/// Stores a line without reading what it replaces.
///
/// # Safety
/// The line at `to` can be written and is aligned.
#[inline]
unsafe fn store_line(to: *mut Line, line: &Line) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        let from = std::ptr::from_ref(line).cast::<__m128i>();
        for i in 0..LINE / size_of::<__m128i>() {
            // SAFETY: within both lines; SSE2 is part of x86-64.
            unsafe { _mm_stream_si128(to.cast::<__m128i>().add(i), _mm_loadu_si128(from.add(i))) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as the caller promises.
    unsafe {
        to.write(*line);
    }
}

/// Makes stored lines visible to other threads before what this thread stores from here on.
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::HugePageBuf;

    /// The variants of [`RowIdBuf`].
    #[derive(Debug, Clone, Copy)]
    enum Form {
        Wide,
        Narrow,
        Runs,
    }

    /// Moves the rows of some parts, given the group of each, and compares with a stable sort. Parts have groups below
    /// `groups`, or none.
    fn check<T: Pod + Send + Sync + PartialEq + std::fmt::Debug>(
        parts: &[Vec<u32>],
        groups: usize,
        form: Form,
        of: impl Fn(usize) -> T,
    ) {
        let counted = parts.iter().map(|part| {
            let ids = match form {
                Form::Runs => {
                    let runs = part.chunk_by(|a, b| a == b);
                    RowIdBuf::Runs(runs.map(|run| (run[0], run.len() as u32)).collect())
                }
                Form::Wide => {
                    let mut each = HugePageBuf::zeroed(part.len() + 3).expect("memory");
                    each[..part.len()].copy_from_slice(part);
                    RowIdBuf::Wide(each, part.len())
                }
                Form::Narrow => {
                    let mut narrow = HugePageBuf::zeroed(part.len() + 3).expect("memory");
                    for (to, group) in narrow.iter_mut().zip(part) {
                        *to = *group as u16;
                    }
                    RowIdBuf::Narrow(narrow, part.len())
                }
            };
            assert_eq!(ids.ids().rows(), part.len());
            CountedPart::new(ids, groups)
        });
        // Each part numbers the groups backwards.
        let numbers: Vec<u32> = (0..groups as u32).rev().collect();
        let counted = counted.map(|part| (part, numbers.clone()));
        let partition = Partition::new(counted.collect(), groups);
        let mut expected: Vec<(u32, usize)> = vec![];
        for (row, group) in parts.iter().flatten().enumerate() {
            if (*group as usize) < groups {
                expected.push((groups as u32 - 1 - group, row));
            }
        }
        expected.sort_by_key(|(group, _)| *group);
        assert_eq!(partition.len(), expected.len());
        let mut counts = vec![0; groups];
        for (group, _) in &expected {
            counts[*group as usize] += 1;
        }
        let ends = partition.starts().windows(2);
        assert!(ends.map(|ends| ends[1] - ends[0]).eq(counts));
        let values: Vec<T> = (0..parts.iter().map(Vec::len).sum()).map(&of).collect();
        let mut moved = HugePageBuf::zeroed(partition.len()).expect("memory");
        let writers = partition.writers(&mut moved);
        std::thread::scope(|scope| {
            let mut rest = &values[..];
            for (mut writer, part) in writers.into_iter().zip(parts) {
                let (here, after) = rest.split_at(part.len());
                rest = after;
                assert_eq!(writer.rows(), part.len());
                scope.spawn(move || {
                    for values in here.chunks(700) {
                        writer.write(values);
                    }
                });
            }
        });
        let expected: Vec<T> = expected.iter().map(|(_, row)| of(*row)).collect();
        assert!(moved[..] == expected[..], "{groups} groups, {form:?}");
    }

    #[test]
    fn values_of_all_widths_go_to_their_groups() {
        let seed = 0x853C_49E6_748F_EA9B_u64;
        println!("seed {seed:#x}");
        let mut random = seed;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 20) as usize % below
        };
        for groups in [0, 1, 2, 9, 500, 20_000] {
            for rows in [0, 1, 100, 5000, 40_000] {
                for run in [1, 30] {
                    let parts = [rows / 3, 0, rows - rows / 3].map(|rows| {
                        let mut part: Vec<u32> = vec![];
                        while part.len() < rows {
                            // One more than there are: rows without a group, as those of `u32::MAX`.
                            let group = match next(groups + 2) {
                                group if group > groups => u32::MAX,
                                group => group as u32,
                            };
                            let run = (1 + next(run)).min(rows - part.len());
                            part.extend(std::iter::repeat_n(group, run));
                        }
                        part
                    });
                    for form in [Form::Wide, Form::Narrow, Form::Runs] {
                        check(&parts, groups, form, |row| row as u8);
                        check(&parts, groups, form, |row| row as u32);
                        check(&parts, groups, form, |row| row as u64);
                        check(&parts, groups, form, |row| (row as u128) << 50);
                    }
                }
            }
        }
    }

    #[test]
    fn rows_in_the_order_of_their_groups_stay() {
        let partition = |parts: &[&[(u32, u32)]], numbers: &[Vec<u32>]| {
            let parts = parts.iter().zip(numbers).map(|(runs, numbers)| {
                let part = CountedPart::new(RowIdBuf::Runs(runs.to_vec()), numbers.len());
                (part, numbers.clone())
            });
            Partition::new(parts.collect(), 3).is_ordered()
        };
        let numbers = [vec![0, 1], vec![1, 2]];
        assert!(partition(&[&[(0, 5), (1, 3)], &[(0, 2), (1, 2)]], &numbers));
        assert!(!partition(&[&[(1, 5), (0, 3)], &[(0, 2)]], &numbers));
        assert!(!partition(&[&[(0, 5), (u32::MAX, 3)], &[(0, 2)]], &numbers));
        let numbers = [vec![1, 2], vec![0, 1]];
        assert!(!partition(&[&[(0, 5)], &[(0, 2)]], &numbers));
    }
}
