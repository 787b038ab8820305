//! Scans of ranges over a column in chunks, without an index.

use std::sync::Arc;

use crate::column::{Column, Validity};
use crate::cpu::huge_page_buf::HugePageBuf;
use crate::cpu::rmq::cpu_key::CpuKey;
use crate::cpu::simd::prefetch::prefetch;
use crate::crossings::{Crossings, ListLimits, RangeEnd, RowList};
use crate::error::EngineError;
use crate::key::Encoding;
use crate::outputs::Answers;

/// Ranges whose first rows are prefetched while the tile before is scanned.
const RANGES_AT_ONCE: usize = 64;

/// Ranges of at most this many rows are scanned without branches.
const SHORT: usize = 4;

/// A column in chunks; none is empty.
pub(crate) struct ChunkedColumn<K> {
    columns: Vec<Column<K>>,
    /// The first row of each chunk, and the end of the last.
    starts: Vec<usize>,
    /// Average chunks per row.
    slope: f64,
    /// Whether no chunk has a validity bitmap.
    no_nulls: bool,
}

impl<K: CpuKey> ChunkedColumn<K> {
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn new(columns: Vec<Column<K>>) -> Self {
        let columns = columns.into_iter().filter(|column| !column.is_empty());
        let columns: Vec<_> = columns.collect();
        let mut starts = vec![0];
        let mut end = 0;
        for column in &columns {
            end += column.len();
            starts.push(end);
        }
        Self {
            slope: columns.len() as f64 / end.max(1) as f64,
            no_nulls: columns.iter().all(|c| c.validity().is_none()),
            columns,
            starts,
        }
    }

    /// Number of chunks.
    pub(crate) fn count(&self) -> usize {
        self.columns.len()
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns the chunk that has a row.
    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn chunk_of(&self, row: usize) -> usize {
        // Most chunks have one length, so that the estimate is right or one too high.
        let estimate = ((row as f64 * self.slope) as usize).min(self.columns.len() - 1);
        let holds = |chunk: usize| self.starts[chunk] <= row && row < self.starts[chunk + 1];
        if holds(estimate) {
            estimate
        } else if estimate > 0 && holds(estimate - 1) {
            estimate - 1
        } else {
            self.starts.partition_point(|start| *start <= row) - 1
        }
    }

    /// Answers a batch as [`RangeIndex::answer`](crate::RangeIndex::answer) does; the slices have been checked.
    pub(crate) fn answer(
        &self,
        left: &[i64],
        right: &[i64],
        mut out: Answers<'_, K>,
    ) -> Result<(), EngineError> {
        let scan = self.scan()?;
        let tiles = left
            .chunks(RANGES_AT_ONCE)
            .zip(right.chunks(RANGES_AT_ONCE));
        let mut next = tiles.clone();
        let mut prefetched = [RangeStart::EMPTY; RANGES_AT_ONCE];
        let mut prefetch_next = |starts: &mut [RangeStart; RANGES_AT_ONCE]| {
            let (left, right) = next.next().unwrap_or_default();
            for ((slot, left), right) in starts.iter_mut().zip(left).zip(right) {
                *slot = scan.start(*left, *right);
            }
        };
        prefetch_next(&mut prefetched);
        out.valid.fill(0);
        for (tile, (left, _)) in tiles.enumerate() {
            let starts = prefetched;
            prefetch_next(&mut prefetched);
            for (start, query) in starts[..left.len()].iter().zip(tile * RANGES_AT_ONCE..) {
                let (key, at) = scan.minimum(*start);
                if let Some(values) = &mut out.values {
                    values[query] = scan.encoding.decode(key);
                }
                if let Some(positions) = &mut out.positions {
                    positions[query] = at.map_or(0, |at| at as i64);
                }
                out.valid[query / 64] |= u64::from(at.is_some()) << (query % 64);
            }
        }
        Ok(())
    }

    /// Finds rows as [`RangeIndex::crossings`](crate::RangeIndex::crossings) does; the slices have been checked.
    pub(crate) fn crossings(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        end: RangeEnd,
        out: &mut Crossings<'_>,
    ) -> Result<(), EngineError> {
        let scan = self.scan()?;
        out.valid.fill(0);
        let bounds = left.iter().zip(right).zip(thresholds);
        for (query, ((left, right), threshold)) in bounds.enumerate() {
            let rows = clipped(*left, *right, self.len());
            let at = rows.and_then(|(first, rows)| scan.crossing(first, rows, *threshold, end));
            out.positions[query] = at.map_or(0, |at| at as i64);
            out.valid[query / 64] |= u64::from(at.is_some()) << (query % 64);
        }
        Ok(())
    }

    /// Lists rows as [`RangeIndex::list_at_most`](crate::RangeIndex::list_at_most) does; the slices have been checked,
    /// and `out` is empty.
    pub(crate) fn list_at_most(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        limits: ListLimits,
        out: &mut RowList,
    ) -> Result<(), EngineError> {
        let scan = self.scan()?;
        for ((left, right), threshold) in left.iter().zip(right).zip(thresholds) {
            let before = out.positions.len();
            let mut rows = out.begin_range(limits);
            let range = clipped(*left, *right, self.len()).filter(|_| rows.has_room());
            if let Some((first, count)) = range {
                scan.for_each_at_most(first, count, *threshold, |at| rows.add(at as i64));
            }
            if !out.end_range(before, limits) {
                break;
            }
        }
        Ok(())
    }

    /// Counts rows as [`RangeIndex::count_at_most`](crate::RangeIndex::count_at_most) does; the slices have been
    /// checked.
    pub(crate) fn count_at_most(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        counts: &mut [i64],
    ) -> Result<(), EngineError> {
        let scan = self.scan()?;
        let bounds = left.iter().zip(right).zip(thresholds);
        for (((left, right), threshold), count) in bounds.zip(counts) {
            *count = 0;
            if let Some((first, rows)) = clipped(*left, *right, self.len()) {
                scan.for_each_at_most(first, rows, *threshold, |_| {
                    *count += 1;
                    true
                });
            }
        }
        Ok(())
    }

    /// Returns the slices of all chunks.
    ///
    /// # Errors
    /// [`EngineError::ColumnMoved`] if the length of one has changed.
    fn scan(&self) -> Result<Scan<'_, K>, EngineError> {
        let bits: Vec<&[K]> = self.columns.iter().map(Column::bits).collect();
        let lengths = self.starts.windows(2).map(|ends| ends[1] - ends[0]);
        if !bits.iter().map(|bits| bits.len()).eq(lengths) {
            return Err(EngineError::ColumnMoved);
        }
        Ok(Scan {
            chunks: self,
            encoding: self.encoding(),
            bits,
        })
    }

    /// The encoding of all chunks.
    fn encoding(&self) -> Encoding<K> {
        let first = self.columns.first();
        first.map_or_else(Encoding::unsigned, Column::encoding)
    }

    /// Copies the chunks into one column on at most `threads` threads, at least one; a single chunk is not copied.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`], [`EngineError::Thread`], or [`EngineError::ColumnMoved`] if a chunk has become
    /// shorter.
    pub(crate) fn concatenate(&self, threads: usize) -> Result<Column<K>, EngineError> {
        if let [one] = self.columns.as_slice() {
            return Ok(one.clone());
        }
        let mut bits = HugePageBuf::zeroed(self.len())?;
        let ends = self.columns.iter().zip(self.starts.windows(2));
        let chunks = ends.map(|(column, ends)| column.bits().get(..ends[1] - ends[0]));
        let chunks: Option<Vec<&[K]>> = chunks.collect();
        let chunks = chunks.ok_or(EngineError::ColumnMoved)?;
        // Fewer than 2^20 keys are copied faster than a thread starts.
        let threads = threads.min(self.len() >> 20).max(1);
        let mut rest: &mut [K] = &mut bits;
        std::thread::scope(|scope| {
            let mut parts = chunks
                .chunks(chunks.len().div_ceil(threads).max(1))
                .peekable();
            while let Some(part) = parts.next() {
                let len = part.iter().map(|chunk| chunk.len()).sum();
                let (mut here, after) = std::mem::take(&mut rest).split_at_mut(len);
                rest = after;
                let mut copy = move || {
                    for chunk in part {
                        let (to, after) = std::mem::take(&mut here).split_at_mut(chunk.len());
                        to.copy_from_slice(chunk);
                        here = after;
                    }
                };
                if parts.peek().is_none() {
                    copy();
                    break;
                }
                std::thread::Builder::new()
                    .name("rmq-build".to_owned())
                    .spawn_scoped(scope, copy)
                    .map_err(|error| EngineError::Thread(error.to_string()))?;
            }
            Ok(())
        })?;
        let mut valid: Option<Vec<u8>> = None;
        for (column, ends) in self.columns.iter().zip(self.starts.windows(2)) {
            let Some(validity) = column.validity() else {
                continue;
            };
            let valid = valid.get_or_insert_with(|| vec![u8::MAX; self.len().div_ceil(8)]);
            for (row, position) in (ends[0]..ends[1]).enumerate() {
                valid[position / 8] &= !(u8::from(!validity.is_valid(row)) << (position % 8));
            }
        }
        let column = Column::new(Arc::new(bits), self.encoding());
        match valid {
            Some(valid) => column.with_validity(Validity::new(Arc::new(valid), 0)),
            None => Ok(column),
        }
    }
}

/// The chunk and the row in it where a range begins, and the number of its rows: 0 if it is empty.
#[derive(Clone, Copy)]
struct RangeStart {
    chunk: usize,
    at: usize,
    rows: usize,
}

impl RangeStart {
    const EMPTY: Self = Self {
        chunk: 0,
        at: 0,
        rows: 0,
    };
}

/// A batch of ranges that are scanned.
struct Scan<'a, K> {
    chunks: &'a ChunkedColumn<K>,
    bits: Vec<&'a [K]>,
    encoding: Encoding<K>,
}

impl<K: CpuKey> Scan<'_, K> {
    /// Returns where a range begins, and prefetches its first row.
    #[inline(always)]
    fn start(&self, left: i64, right: i64) -> RangeStart {
        let Some((row, rows)) = clipped(left, right, self.chunks.len()) else {
            return RangeStart::EMPTY;
        };
        let chunk = self.chunks.chunk_of(row);
        let at = row - self.chunks.starts[chunk];
        prefetch(&raw const self.bits[chunk][at]);
        RangeStart { chunk, at, rows }
    }

    /// Returns the smallest key of a range and its first position; `None` if the range has no valid row.
    #[inline(always)]
    fn minimum(&self, start: RangeStart) -> (K, Option<usize>) {
        let RangeStart { chunk, at, rows } = start;
        let Some(bits) = self.bits.get(chunk).and_then(|bits| bits.get(at..)) else {
            return (K::MAX, None);
        };
        if rows > SHORT || rows > bits.len() || !self.chunks.no_nulls {
            return self.minimum_of_long(start);
        }
        // A fixed number of rows, where the last may be repeated: a branch on the number would be mispredicted.
        let last = rows.saturating_sub(1);
        let mut least = (self.encoding.encode(bits[0]), 0);
        for row in 1..SHORT {
            let row = row.min(last);
            let key = self.encoding.encode(bits[row]);
            least = if key < least.0 { (key, row) } else { least };
        }
        if rows == 0 {
            return (K::MAX, None);
        }
        (least.0, Some(self.chunks.starts[chunk] + at + least.1))
    }

    /// Returns the same for ranges of any length, with NULLs and across chunks.
    fn minimum_of_long(&self, start: RangeStart) -> (K, Option<usize>) {
        let RangeStart {
            mut chunk,
            mut at,
            mut rows,
        } = start;
        let mut least = (K::MAX, None);
        while rows > 0 {
            let (bits, start) = (self.bits[chunk], self.chunks.starts[chunk]);
            let validity = self.chunks.columns[chunk].validity();
            let here = rows.min(bits.len() - at);
            for (row, bits) in (at..).zip(&bits[at..at + here]) {
                let key = self.encoding.encode(*bits);
                if (key < least.0 || least.1.is_none())
                    && validity.is_none_or(|validity| validity.is_valid(row))
                {
                    least = (key, Some(start + row));
                }
            }
            (chunk, at, rows) = (chunk + 1, 0, rows - here);
        }
        least
    }

    /// Returns the first or last row whose key is at most `threshold`, of `rows` rows from `first` on.
    fn crossing(&self, first: usize, rows: usize, threshold: K, end: RangeEnd) -> Option<usize> {
        let starts = &self.chunks.starts;
        let (from, to) = (
            self.chunks.chunk_of(first),
            self.chunks.chunk_of(first + rows - 1),
        );
        let in_chunk = |chunk: usize| {
            let (start, stop) = (starts[chunk], starts[chunk + 1]);
            let (from, to) = (first.max(start), (first + rows).min(stop));
            let validity = self.chunks.columns[chunk].validity();
            let bits = &self.bits[chunk][from - start..to - start];
            let qualifies = |(i, bits): (usize, &K)| {
                self.encoding.encode(*bits) <= threshold
                    && validity.is_none_or(|validity| validity.is_valid(from - start + i))
            };
            let mut bits = bits.iter().enumerate();
            let at = match end {
                RangeEnd::First => bits.position(qualifies),
                RangeEnd::Last => bits.rposition(qualifies),
            };
            at.map(|at| from + at)
        };
        match end {
            RangeEnd::First => (from..=to).find_map(in_chunk),
            RangeEnd::Last => (from..=to).rev().find_map(in_chunk),
        }
    }

    /// Calls `visit` with each row whose key is at most `threshold`, of `rows` rows from `first` on, until it returns
    /// false.
    fn for_each_at_most(
        &self,
        first: usize,
        rows: usize,
        threshold: K,
        mut visit: impl FnMut(usize) -> bool,
    ) {
        let mut at = first;
        for chunk in self.chunks.chunk_of(first)..self.bits.len() {
            let start = self.chunks.starts[chunk];
            let end = self.chunks.starts[chunk + 1].min(first + rows);
            let validity = self.chunks.columns[chunk].validity();
            for (row, bits) in (at..end).zip(&self.bits[chunk][at - start..]) {
                let qualifies = self.encoding.encode(*bits) <= threshold
                    && validity.is_none_or(|validity| validity.is_valid(row - start));
                if qualifies && !visit(row) {
                    return;
                }
            }
            at = end;
            if at == first + rows {
                return;
            }
        }
    }
}

/// Clips a range to the column. Returns its first row and the number of rows; `None` if it is empty.
#[inline(always)]
fn clipped(left: i64, right: i64, len: usize) -> Option<(usize, usize)> {
    let (left, right) = (left.max(0), right.min(len as i64 - 1));
    (left <= right).then(|| (left as usize, (right - left + 1) as usize))
}
