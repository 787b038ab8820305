//! A column in the pieces it came in: ranges are scanned, row by row, where their rows lie.

use std::sync::Arc;

use crate::column::{Column, Validity};
use crate::cpu::huge_page_buf::Numbers;
use crate::cpu::rmq::cpu_key::CpuKey;
use crate::cpu::simd::prefetch::prefetch;
use crate::error::EngineError;
use crate::key::Encoding;
use crate::outputs::Answers;

/// Ranges whose rows are asked of memory while those before are looked at.
const TILE: usize = 64;

/// Ranges of so many rows take all the same time.
const SHORT: usize = 4;

/// A column in the pieces it came in. None is empty.
pub(crate) struct ChunkedColumn<K> {
    columns: Vec<Column<K>>,
    /// Where each begins, and the end of the last.
    starts: Vec<usize>,
    /// About how many pieces there are to a row.
    slope: f64,
    /// Whether nothing is NULL.
    is_plain: bool,
}

impl<K: CpuKey> ChunkedColumn<K> {
    #[expect(clippy::cast_precision_loss, reason = "about")]
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
            is_plain: columns.iter().all(|c| c.validity().is_none()),
            columns,
            starts,
        }
    }

    /// How many pieces there are.
    pub(crate) fn count(&self) -> usize {
        self.columns.len()
    }

    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The piece that has a row.
    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "a guess")]
    fn piece_of(&self, row: usize) -> usize {
        // Most are of one length, so that the guess is right or one off.
        let guess = ((row as f64 * self.slope) as usize).min(self.columns.len() - 1);
        let holds = |piece: usize| self.starts[piece] <= row && row < self.starts[piece + 1];
        if holds(guess) {
            guess
        } else if guess > 0 && holds(guess - 1) {
            guess - 1
        } else {
            self.starts.partition_point(|start| *start <= row) - 1
        }
    }

    /// As [`RangeIndex::answer`](crate::RangeIndex::answer), of slices that fit each other.
    pub(crate) fn answer(
        &self,
        left: &[i64],
        right: &[i64],
        mut out: Answers<'_, K>,
    ) -> Result<(), EngineError> {
        let bits: Vec<&[K]> = self.columns.iter().map(Column::bits).collect();
        let lengths = self.starts.windows(2).map(|ends| ends[1] - ends[0]);
        if !bits.iter().map(|bits| bits.len()).eq(lengths) {
            return Err(EngineError::ColumnMoved);
        }
        let scan = Scan {
            pieces: self,
            encoding: self.encoding(),
            bits,
        };
        let tiles = left.chunks(TILE).zip(right.chunks(TILE));
        let mut next = tiles.clone();
        let mut asked = [Begin::NOWHERE; TILE];
        let mut ask = |asked: &mut [Begin; TILE]| {
            let (left, right) = next.next().unwrap_or_default();
            for ((slot, left), right) in asked.iter_mut().zip(left).zip(right) {
                *slot = scan.ask(*left, *right);
            }
        };
        ask(&mut asked);
        out.valid.fill(0);
        for (tile, (left, _)) in tiles.enumerate() {
            let begins = asked;
            ask(&mut asked);
            for (begin, query) in begins[..left.len()].iter().zip(tile * TILE..) {
                let (key, at) = scan.least(*begin);
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

    /// How bits become keys, in all pieces alike.
    fn encoding(&self) -> Encoding<K> {
        let first = self.columns.first();
        first.map_or_else(Encoding::unsigned, Column::encoding)
    }

    /// The column in one piece.
    pub(crate) fn put_together(&self) -> Result<Column<K>, EngineError> {
        if let [one] = self.columns.as_slice() {
            return Ok(one.clone());
        }
        let mut bits = Numbers::zeroed(self.len())?;
        let mut valid: Option<Vec<u8>> = None;
        for (column, ends) in self.columns.iter().zip(self.starts.windows(2)) {
            let Some(from) = column.bits().get(..ends[1] - ends[0]) else {
                return Err(EngineError::ColumnMoved);
            };
            bits[ends[0]..ends[1]].copy_from_slice(from);
            let Some(validity) = column.validity() else {
                continue;
            };
            let valid = valid.get_or_insert_with(|| vec![u8::MAX; self.len().div_ceil(8)]);
            for (row, place) in (ends[0]..ends[1]).enumerate() {
                valid[place / 8] &= !(u8::from(!validity.is_valid(row)) << (place % 8));
            }
        }
        let column = Column::new(Arc::new(bits), self.encoding());
        match valid {
            Some(valid) => column.with_validity(Validity::new(Arc::new(valid), 0)),
            None => Ok(column),
        }
    }
}

/// Where a range begins: in which piece, at which of its rows; and how many rows it has, none if it is empty.
#[derive(Clone, Copy)]
struct Begin {
    piece: usize,
    at: usize,
    rows: usize,
}

impl Begin {
    const NOWHERE: Self = Self {
        piece: 0,
        at: 0,
        rows: 0,
    };
}

/// A scan of ranges.
struct Scan<'a, K> {
    pieces: &'a ChunkedColumn<K>,
    bits: Vec<&'a [K]>,
    encoding: Encoding<K>,
}

impl<K: CpuKey> Scan<'_, K> {
    /// Where a range begins, whose first row is asked of memory.
    #[inline(always)]
    fn ask(&self, left: i64, right: i64) -> Begin {
        let Some((row, rows)) = clipped(left, right, self.pieces.len()) else {
            return Begin::NOWHERE;
        };
        let piece = self.pieces.piece_of(row);
        let at = row - self.pieces.starts[piece];
        prefetch(&raw const self.bits[piece][at]);
        Begin { piece, at, rows }
    }

    /// The smallest key of a range, and where the first stands that has it, if any has.
    #[inline(always)]
    fn least(&self, begin: Begin) -> (K, Option<usize>) {
        let Begin { piece, at, rows } = begin;
        let Some(bits) = self.bits.get(piece).and_then(|bits| bits.get(at..)) else {
            return (K::MAX, None);
        };
        if rows > SHORT || rows > bits.len() || !self.pieces.is_plain {
            return self.least_of_many(begin);
        }
        // Always so many, of which the last may be looked at again: nobody can foresee how many there are.
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
        (least.0, Some(self.pieces.starts[piece] + at + least.1))
    }

    /// The same of any range.
    fn least_of_many(&self, begin: Begin) -> (K, Option<usize>) {
        let Begin {
            mut piece,
            mut at,
            mut rows,
        } = begin;
        let mut least = (K::MAX, None);
        while rows > 0 {
            let (bits, start) = (self.bits[piece], self.pieces.starts[piece]);
            let validity = self.pieces.columns[piece].validity();
            let here = rows.min(bits.len() - at);
            for (row, bits) in (at..).zip(&bits[at..at + here]) {
                let key = self.encoding.encode(*bits);
                if (key < least.0 || least.1.is_none())
                    && validity.is_none_or(|validity| validity.is_valid(row))
                {
                    least = (key, Some(start + row));
                }
            }
            (piece, at, rows) = (piece + 1, 0, rows - here);
        }
        least
    }
}

/// Where a range begins and how many rows it has, of those that there are.
#[inline(always)]
fn clipped(left: i64, right: i64, len: usize) -> Option<(usize, usize)> {
    let (left, right) = (left.max(0), right.min(len as i64 - 1));
    (left <= right).then(|| (left as usize, (right - left + 1) as usize))
}
