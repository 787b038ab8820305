//! What our search reads, counted on the host: the same steps as `kernels/answer.cu` over the levels that the device
//! has.
//!
//! Which lines a search reads depends on the minima it finds. The column is not needed to know them: it is read last.

use rmq_engine::EngineError;
use rmq_engine::cuda::rmq::layout::Layout;

use super::device::{DeviceBounds, DeviceColumn, Lab};
use super::kernel::KernelUnderTest;

/// Reads of 4 bytes for two places of a row of the table, with two neighbouring entries each. One neighbour in eight is
/// in another sector of 32 bytes.
const NEIGHBOURS: f64 = 2.0 + 2.0 / 8.0;

/// The queries that are counted.
const COUNTED: u32 = 1 << 16;

/// The levels above a column of 4-byte keys, and the rows of the sparse table over the highest.
#[derive(Debug, Default)]
pub struct HostIndex {
    pub rows: u64,
    /// The binary logarithm of the entries of a chunk.
    pub shift: u32,
    /// `levels[0]` is empty.
    pub levels: Vec<Vec<u32>>,
    /// `table[0]` is empty; row 0 is the highest level.
    pub table: Vec<Vec<u32>>,
}

/// The reads of one array.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reads {
    /// Its bytes.
    pub bytes: u64,
    /// Single entries of 4 bytes, each read by a thread.
    pub entries: f64,
    /// Half or whole chunks of at most 64 bytes.
    pub halves: f64,
    /// Chunks of which 128 bytes are read.
    pub lines: f64,
}

impl Reads {
    /// The number of reads.
    pub fn count(&self) -> f64 {
        self.entries + self.halves + self.lines
    }
}

/// The reads a query.
#[derive(Debug, Clone, Default)]
pub struct AccessPattern {
    /// Level 0, the column, and those above it.
    pub levels: Vec<Reads>,
    /// The rows of the table; the first is empty.
    pub table: Vec<Reads>,
}

impl AccessPattern {
    /// Starts to count the reads of an index.
    pub fn new(index: &HostIndex) -> Self {
        let array = |entries: u64| Reads {
            bytes: entries * 4,
            ..Reads::default()
        };
        let above = index.levels.iter().skip(1);
        let levels =
            std::iter::once(array(index.rows)).chain(above.map(|level| array(level.len() as u64)));
        Self {
            levels: levels.collect(),
            table: index
                .table
                .iter()
                .map(|row| array(row.len() as u64))
                .collect(),
        }
    }

    /// Divides all counts.
    fn divide(&mut self, by: f64) {
        for reads in self.levels.iter_mut().chain(&mut self.table) {
            reads.entries /= by;
            reads.halves /= by;
            reads.lines /= by;
        }
    }

    /// All arrays.
    pub fn arrays(&self) -> impl Iterator<Item = &Reads> {
        self.levels.iter().chain(&self.table)
    }
}

/// Entries of a chunk that a search reads, and those that are within the range.
#[derive(Debug, Clone, Copy)]
struct Task {
    chunk: u64,
    first: u64,
    last: u64,
    first_is_inner: bool,
    last_is_inner: bool,
}

/// What a search finds in a chunk.
struct Found {
    least: u32,
    first: u32,
    last: u32,
}

impl HostIndex {
    fn row(&self, row: usize) -> &[u32] {
        if row == 0 {
            &self.levels[self.levels.len() - 1]
        } else {
            &self.table[row]
        }
    }

    /// Reads a chunk of level `k`; of the column, which is given or not, only the minimum.
    fn read(
        &self,
        k: usize,
        task: Task,
        column: Option<&[u32]>,
        pattern: &mut AccessPattern,
    ) -> Found {
        let chunk = 1_u64 << self.shift;
        let reads = &mut pattern.levels[k];
        // Sixteen entries are 64 bytes.
        if task.first / 16 == task.last / 16 {
            reads.halves += 1.0;
        } else {
            reads.lines += 1.0;
        }
        let start = task.chunk * chunk;
        let level = if k == 0 {
            column
        } else {
            Some(&self.levels[k][..])
        };
        let Some(level) = level else {
            return Found {
                least: u32::MAX,
                first: u32::MAX,
                last: u32::MAX,
            };
        };
        let inner =
            task.first + u64::from(!task.first_is_inner)..task.last + u64::from(task.last_is_inner);
        let entry = |at: u64| {
            level
                .get((start + at) as usize)
                .copied()
                .unwrap_or(u32::MAX)
        };
        Found {
            least: inner.map(entry).min().unwrap_or(u32::MAX),
            first: entry(task.first),
            last: entry(task.last),
        }
    }

    /// Searches values `l..=r` and counts what it reads. Returns the minimum if the column is given.
    pub fn search(
        &self,
        l: u64,
        r: u64,
        column: Option<&[u32]>,
        pattern: &mut AccessPattern,
    ) -> u32 {
        let (top, shift) = (self.levels.len() - 1, self.shift);
        let chunk = 1_u64 << shift;
        let at = |position: u64, k: usize| position >> (shift * k as u32);
        let (a, b) = (at(l, top), at(r, top));
        let mut best = u32::MAX;
        let (mut go_left, mut go_right, mut begin) = (false, false, top);
        if b - a >= 2 {
            let row = (b - a - 1).ilog2();
            let minima = self.row(row as usize);
            best = minima[a as usize + 1].min(minima[(b - (1 << row)) as usize]);
            go_left = minima[a as usize] < best;
            go_right = minima[(b + 1 - (1 << row)) as usize] < best;
            let of_row = if row == 0 {
                &mut pattern.levels[top]
            } else {
                &mut pattern.table[row as usize]
            };
            of_row.entries += NEIGHBOURS;
        } else {
            begin = top - 1;
            while begin > 0 && at(r, begin) - at(l, begin) <= 1 {
                begin -= 1;
            }
        }
        for k in (0..top).rev() {
            let (chunk_l, chunk_r) = (at(l, k + 1), at(r, k + 1));
            let here = k == begin;
            let one = here && chunk_l == chunk_r;
            go_left |= here;
            go_right |= here && !one;
            let (entry_l, entry_r) = (at(l, k) % chunk, at(r, k) % chunk);
            let (mut first, mut last) = (u32::MAX, u32::MAX);
            let mut found_least = u32::MAX;
            if go_left {
                let task = Task {
                    chunk: chunk_l,
                    first: entry_l,
                    last: if one { entry_r } else { chunk - 1 },
                    first_is_inner: k == 0,
                    last_is_inner: k == 0 || !one,
                };
                let found = self.read(k, task, column, pattern);
                found_least = found_least.min(found.least);
                if k > 0 {
                    first = found.first;
                    if one {
                        last = found.last;
                    }
                }
            }
            if go_right {
                let task = Task {
                    chunk: chunk_r,
                    first: 0,
                    last: entry_r,
                    first_is_inner: true,
                    last_is_inner: k == 0,
                };
                let found = self.read(k, task, column, pattern);
                found_least = found_least.min(found.least);
                if k > 0 {
                    last = found.last;
                }
            }
            best = best.min(found_least);
            go_right = (go_right || one) && last < best;
            go_left = go_left && first < best;
        }
        best
    }
}

impl Lab {
    /// Copies the levels and the table of our index for values of 4 bytes to the host.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If `ours` is not the engine's kernel for values of this column.
    pub fn host_index(
        &self,
        column: &DeviceColumn,
        ours: &KernelUnderTest,
    ) -> Result<HostIndex, EngineError> {
        let layout = Layout::new(column.size(), false, None)?;
        let before = layout.level[1].start;
        assert!(column.key_bytes == 4 && layout.bytes - before == ours.index_bytes());
        let array = |start: u64, entries: u64| {
            let offset = (start - before) as usize;
            self.words_from(&ours.memory, offset, entries as usize)
        };
        let mut index = HostIndex {
            rows: column.rows,
            shift: layout.shift,
            levels: vec![Vec::new()],
            table: vec![Vec::new()],
        };
        for k in 1..=layout.top {
            let level = array(layout.level[k].start, layout.entries[k])?;
            index.levels.push(level);
        }
        let entries = layout.entries[layout.top];
        for row in 1..u64::from(layout.table_rows) {
            let start = layout.table.start + (row - 1) * entries * 4;
            // The build writes no entry that would reach past the last one of the level.
            index.table.push(array(start, entries + 1 - (1 << row))?);
        }
        Ok(index)
    }

    /// Counts what our kernel reads a query for values of 4 bytes, on a sample of the queries.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// As [`Self::host_index`].
    pub fn count_reads(
        &self,
        column: &DeviceColumn,
        ours: &KernelUnderTest,
        bounds: &DeviceBounds,
    ) -> Result<AccessPattern, EngineError> {
        let index = self.host_index(column, ours)?;
        let count = COUNTED.min(bounds.count) as usize;
        let words_each = if column.wide_positions { 2 } else { 1 };
        let left = self.words(&bounds.left, count * words_each)?;
        let right = self.words(&bounds.right, count * words_each)?;
        let bound = |words: &[u32], i: usize| {
            let words = words[i * words_each..(i + 1) * words_each].iter().rev();
            words.fold(0, |bound, word| bound << 32 | u64::from(*word))
        };
        let mut pattern = AccessPattern::new(&index);
        for i in 0..count {
            index.search(bound(&left, i), bound(&right, i), None, &mut pattern);
        }
        pattern.divide(count as f64);
        Ok(pattern)
    }
}

#[cfg(test)]
mod tests {
    use rmq_bench::data::{Data, column};
    use rmq_bench::workload::Workload;

    use super::*;

    /// Builds the levels and the table from a column.
    fn host_index(values: &[u32], shift: u32, top_entries: usize) -> HostIndex {
        let mut levels = vec![Vec::new()];
        let mut below = values.to_vec();
        while levels.len() == 1 || below.len() > top_entries {
            let minima = below
                .chunks(1 << shift)
                .map(|chunk| *chunk.iter().min().unwrap());
            below = minima.collect();
            levels.push(below.clone());
        }
        let mut table = vec![Vec::new()];
        let mut row = below;
        let mut half = 1;
        while half < row.len() {
            let next: Vec<u32> = row
                .iter()
                .zip(&row[half..])
                .map(|(a, b)| *a.min(b))
                .collect();
            table.push(next.clone());
            row = next;
            half *= 2;
        }
        HostIndex {
            rows: values.len() as u64,
            shift,
            levels,
            table,
        }
    }

    #[test]
    fn counted_searches_find_the_minimum() {
        for (n, shift, top_entries) in [
            (1, 5, 8),
            (31, 4, 1),
            (70_000, 5, 100),
            (20_000, 4, 3),
            (5_000, 5, 4_000),
        ] {
            for data in Data::ALL {
                let values = column::<u32>(data, n);
                let index = host_index(&values, shift, top_entries);
                let mut pattern = AccessPattern::new(&index);
                let bounds = Workload::Mixed.bounds(n, 300);
                for (l, r) in bounds.left.iter().zip(&bounds.right) {
                    let found = index.search(*l as u64, *r as u64, Some(&values), &mut pattern);
                    let expected = values[*l as usize..=*r as usize].iter().min();
                    assert_eq!(Some(&found), expected, "{data:?}, n {n}, {l}..={r}");
                }
                let reads: f64 = pattern.arrays().map(Reads::count).sum();
                assert!(
                    (300.0..=300.0 * 12.0).contains(&reads),
                    "{data:?}, n {n}: {reads}"
                );
            }
        }
    }
}
