//! Answers ranges of a column that is not in memory, by the extremes of its chunks and by few rows that are read.
//!
//! ```text
//!   rows      |  chunk 0  |  chunk 1  |  chunk 2  |  chunk 3  |
//!   range            l-----------------------------r
//!                    left edge   whole chunks      right edge
//! ```
//!
//! 1. The index of the extremes finds the best of all chunks that the range has rows of, the leftmost of equals. If the
//!    row of this extreme is in the range, it is the answer. So it is for nearly all ranges of many chunks.
//! 2. Of the other ranges, the rows of both edges are read. Edges are sorted, and rows that several need are read once.
//! 3. The best of the edges and of the whole chunks is the answer, the leftmost of equals.
//!
//! Memory: the extreme of each chunk and two bytes for its row, and the index of the extremes: some 1.6 MB for 10^9
//! values of 32 bits.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, UInt16Array, UInt64Array, new_empty_array, new_null_array,
};
use arrow::compute::{concat, interleave};
use arrow::datatypes::{DataType, Int64Type, UInt16Type, UInt64Type};
use datafusion_common::{Result, exec_err, internal_datafusion_err};

use crate::common::ranges::Ranges;
use crate::index::key_index::{Answer, KeyIndex};
use crate::index::sort_keys::Chunks;
use rmq_engine::Extreme;

/// Rows of a chunk: fewer than a page of a Parquet file has, so that an edge is seldom read from several pages.
pub const CHUNK_ROWS: usize = 1 << 12;

/// Rows that are read and indexed together.
pub const BLOCK_ROWS: usize = 16 * CHUNK_ROWS;

/// What an index of chunk extremes knows of the rows, which are in files.
#[derive(Debug)]
pub struct ChunkExtremes {
    /// The row of the extreme in each chunk; 0 in a chunk without a value.
    offsets: Vec<u16>,
    /// The number of rows up to the end of each file.
    pub file_ends: Arc<[usize]>,
    /// The bytes that an index of all rows would have had to fit into.
    pub budget: usize,
}

/// Rows that are read and indexed together, and the ranges that are asked of them.
#[derive(Debug, Default)]
pub struct Block {
    /// Their positions in the column, ascending. Some of these ranges may be empty.
    pub rows: Vec<Range<usize>>,
    /// Inclusive ranges of the rows of this block.
    pub ranges: Vec<(i64, i64)>,
}

impl Block {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.iter().map(Range::len).sum()
    }

    /// The blocks of a whole column, whose ranges are its chunks.
    pub fn of_column(rows: usize) -> Vec<Self> {
        let starts = (0..rows).step_by(BLOCK_ROWS);
        let blocks = starts.map(|start| {
            let end = rows.min(start + BLOCK_ROWS);
            let chunks = (0..end - start).step_by(CHUNK_ROWS);
            let chunks = chunks.map(|first| {
                let last = (first + CHUNK_ROWS).min(end - start) - 1;
                (position(first), position(last))
            });
            Self {
                rows: std::iter::once(start..end).collect(),
                ranges: chunks.collect(),
            }
        });
        blocks.collect()
    }
}

/// A position as range functions return it.
fn position(row: usize) -> i64 {
    // No column has 2^63 rows.
    i64::try_from(row).unwrap_or(i64::MAX)
}

impl ChunkExtremes {
    /// Of the answers of [`Block::of_column`]. Also returns the extremes, one array for each block.
    ///
    /// # Errors
    /// An internal error for answers without values or positions.
    pub fn new(
        answers: Vec<Answer>,
        file_ends: Arc<[usize]>,
        budget: usize,
    ) -> Result<(Self, Vec<ArrayRef>)> {
        let (mut offsets, mut extremes) = (vec![], vec![]);
        for answer in answers {
            let (values, rows) = parts(answer)?;
            // A block begins with a chunk, so that the remainder is the row in the chunk. It has 12 bits.
            let row = |row: Option<i64>| row.unwrap_or(0) % position(CHUNK_ROWS);
            let row = |found| u16::try_from(row(found)).unwrap_or(0);
            offsets.extend(rows.iter().map(row));
            extremes.push(values);
        }
        let chunks = Self {
            offsets,
            file_ends,
            budget,
        };
        Ok((chunks, extremes))
    }

    /// Three arrays, which [`Self::from_arrays`] reads. `extremes` are those of the chunks, of this type.
    ///
    /// # Errors
    /// Arrow's.
    pub fn to_arrays(&self, extremes: &[ArrayRef], value_type: &DataType) -> Result<Vec<ArrayRef>> {
        let ends = self.file_ends.iter().map(|end| *end as u64);
        let extremes: Vec<&dyn Array> = extremes.iter().map(AsRef::as_ref).collect();
        let extremes = if extremes.is_empty() {
            new_empty_array(value_type)
        } else {
            concat(&extremes)?
        };
        Ok(vec![
            Arc::new(UInt64Array::from_iter_values(ends)),
            Arc::new(UInt16Array::from(self.offsets.clone())),
            extremes,
        ])
    }

    /// Of the arrays of [`Self::to_arrays`], of a column of this type in files with these numbers of rows. Also returns
    /// the extremes.
    ///
    /// # Errors
    /// An execution error for arrays of another column.
    pub fn from_arrays(
        arrays: &[ArrayRef],
        file_ends: Arc<[usize]>,
        value_type: &DataType,
        budget: usize,
    ) -> Result<(Self, Vec<ArrayRef>)> {
        let [ends, offsets, extremes] = arrays else {
            return exec_err!("it has {} arrays", arrays.len());
        };
        let (Some(ends), Some(offsets)) = (
            ends.as_primitive_opt::<UInt64Type>(),
            offsets.as_primitive_opt::<UInt16Type>(),
        ) else {
            return exec_err!("its numbers have other types");
        };
        if !ends
            .values()
            .iter()
            .copied()
            .eq(file_ends.iter().map(|end| *end as u64))
        {
            return exec_err!("its files have other numbers of rows");
        }
        let chunks = Self {
            offsets: offsets.values().to_vec(),
            file_ends,
            budget,
        };
        let first_rows = (0..chunks.rows()).step_by(CHUNK_ROWS);
        let is_in_chunk = |(first, offset): (usize, &u16)| {
            usize::from(*offset) < CHUNK_ROWS.min(chunks.rows() - first)
        };
        if first_rows.len() != chunks.len()
            || !first_rows.zip(&chunks.offsets).all(is_in_chunk)
            || extremes.len() != chunks.len()
            || extremes.data_type() != value_type
        {
            return exec_err!("its chunks are those of another column");
        }
        Ok((chunks, vec![Arc::clone(extremes)]))
    }

    /// Number of rows of the column.
    pub fn rows(&self) -> usize {
        self.file_ends.last().copied().unwrap_or(0)
    }

    /// Number of chunks.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Bytes of memory, without the extremes and their index.
    pub fn bytes(&self) -> usize {
        size_of_val(self.offsets.as_slice()) + size_of_val(&*self.file_ends)
    }

    /// The positions of the extremes of these chunks.
    fn positions<'a>(&'a self, chunks: &'a Int64Array) -> impl Iterator<Item = Option<i64>> + 'a {
        chunks.iter().map(|chunk| {
            let chunk = usize::try_from(chunk?).ok()?;
            let offset = self.offsets.get(chunk)?;
            Some(position(chunk * CHUNK_ROWS + usize::from(*offset)))
        })
    }

    /// Answers ranges by `index`, that of the extremes, as far as these tell.
    ///
    /// # Errors
    /// The engine's.
    pub fn answer(&self, index: &KeyIndex, ranges: &Ranges) -> Result<PartialAnswer> {
        let clipped = ranges.iter().map(|(left, right)| {
            let first = usize::try_from(left.max(0)).ok()?;
            let end = usize::try_from(right.saturating_add(1)).ok()?;
            let end = end.min(self.rows());
            (first < end).then_some(first..end)
        });
        let clipped: Vec<Option<Range<usize>>> = clipped.collect();
        let chunks = clipped.iter().map(|range| match range {
            Some(range) => {
                let (first, last) = (range.start / CHUNK_ROWS, (range.end - 1) / CHUNK_ROWS);
                (position(first), position(last))
            }
            None => EMPTY,
        });
        let (values, best) = parts(index.answer(&[chunks.collect()], true, true)?)?;
        let mut positions: Vec<Option<i64>> = self.positions(&best).collect();
        let mut open = vec![];
        for (row, (found, range)) in positions.iter_mut().zip(clipped).enumerate() {
            if let (Some(at), Some(range)) = (*found, range)
                && !(position(range.start)..position(range.end)).contains(&at)
            {
                *found = None;
                open.push(self.open(row, range));
            }
        }
        Ok(PartialAnswer {
            values,
            positions,
            open,
        })
    }

    fn open(&self, row: usize, range: Range<usize>) -> OpenRange {
        let Range { start, end } = range;
        let first = start.div_ceil(CHUNK_ROWS);
        let after = if end == self.rows() {
            self.len()
        } else {
            end / CHUNK_ROWS
        };
        if first > after {
            return OpenRange {
                row,
                edges: [start..end, end..end],
                chunks: EMPTY,
            };
        }
        let left = start..end.min(first * CHUNK_ROWS);
        let right = end.min(after * CHUNK_ROWS)..end;
        OpenRange {
            row,
            edges: [left, right],
            chunks: (position(first), position(after) - 1),
        }
    }

    /// Adds to an answer the open ranges, by the rows that were read for them: `read` are the answers of the blocks.
    ///
    /// # Errors
    /// The engine's, and Arrow's.
    pub fn finish(
        &self,
        index: &KeyIndex,
        extreme: Extreme,
        partial: PartialAnswer,
        edges: &Edges,
        read: Vec<Answer>,
    ) -> Result<Answer> {
        let PartialAnswer {
            values,
            mut positions,
            open,
        } = partial;
        if open.is_empty() {
            return Ok(answer(values, positions));
        }
        let (mut of_edges, mut rows) = (vec![], vec![]);
        for answer in read {
            let (values, found) = parts(answer)?;
            of_edges.push(values);
            rows.extend(found.iter());
        }
        let of_edges: Vec<&dyn Array> = of_edges.iter().map(AsRef::as_ref).collect();
        let of_edges = concat(&of_edges)?;
        let rows: Vec<Option<i64>> = rows
            .iter()
            .zip(&edges.shifts)
            .map(|(row, shift)| row.map(|row| row + shift))
            .collect();

        let chunks = open.iter().map(|range| range.chunks);
        let (of_chunks, best) = parts(index.answer(&[chunks.collect()], true, true)?)?;
        let in_chunks: Vec<Option<i64>> = self.positions(&best).collect();

        // Three candidates for each range, in the order of their positions.
        let none = new_null_array(values.data_type(), 1);
        let (mut sources, mut candidates) = (vec![], vec![]);
        for (i, [left, right]) in edges.answers.iter().enumerate() {
            for edge in [*left, None, *right].into_iter().enumerate() {
                let (source, position) = match edge {
                    (1, _) => ((1, i), in_chunks[i]),
                    (_, Some(edge)) => ((0, edge), rows[edge]),
                    (_, None) => ((2, 0), None),
                };
                sources.push(source);
                candidates.push(position);
            }
        }
        let column = Chunks {
            arrays: vec![interleave(
                &[of_edges.as_ref(), of_chunks.as_ref(), none.as_ref()],
                &sources,
            )?],
            owned_elsewhere: true,
        };
        let best = KeyIndex::on_cpu(&column, values.data_type(), extreme, 1)?;
        let ranges = (0..open.len()).map(|i| (position(3 * i), position(3 * i + 2)));
        let (best, of_candidates) = parts(best.answer(&[ranges.collect()], true, true)?)?;

        let mut sources: Vec<(usize, usize)> = (0..values.len()).map(|row| (0, row)).collect();
        for (i, (range, candidate)) in open.iter().zip(&of_candidates).enumerate() {
            sources[range.row] = (1, i);
            let candidate = candidate.and_then(|c| usize::try_from(c).ok());
            positions[range.row] = candidate.and_then(|candidate| candidates[candidate]);
        }
        let values = interleave(&[values.as_ref(), best.as_ref()], &sources)?;
        Ok(answer(values, positions))
    }
}

/// An empty range.
const EMPTY: (i64, i64) = (0, -1);

/// The answers of the ranges that extremes of chunks answer, and the others.
#[derive(Debug)]
pub struct PartialAnswer {
    /// Arbitrary for open ranges.
    values: ArrayRef,
    positions: Vec<Option<i64>>,
    open: Vec<OpenRange>,
}

/// A range some of whose rows have to be read.
#[derive(Debug)]
struct OpenRange {
    /// Its number.
    row: usize,
    /// The rows before and after the whole chunks. One edge has all rows of a range within a chunk.
    edges: [Range<usize>; 2],
    /// The whole chunks, inclusive.
    chunks: (i64, i64),
}

/// The edges of open ranges, in the order of their positions.
#[derive(Debug, Default)]
pub struct Edges {
    /// For each open range the number of its edges, if they have rows.
    answers: Vec<[Option<usize>; 2]>,
    /// For each edge the position of a row, less the number of the row in its block.
    shifts: Vec<i64>,
}

impl PartialAnswer {
    /// The blocks of rows that have to be read, and the edges that are their ranges. None without an open range.
    pub fn edges(&self) -> (Vec<Block>, Edges) {
        let mut sorted: Vec<(Range<usize>, usize, usize)> = vec![];
        for (i, open) in self.open.iter().enumerate() {
            let edges = open.edges.iter().enumerate();
            let edges = edges.filter(|(_, edge)| !edge.is_empty());
            sorted.extend(edges.map(|(side, edge)| (edge.clone(), i, side)));
        }
        sorted.sort_unstable_by_key(|(edge, ..)| edge.start);
        let mut edges = Edges {
            answers: vec![[None; 2]; self.open.len()],
            shifts: vec![],
        };
        let mut blocks: Vec<Block> = vec![];
        let mut block = Block::default();
        // The rows that are read of a chunk, and those of the block before these.
        let (mut rows, mut before) = (0..0, 0);
        for (edge, open, side) in sorted {
            if rows.is_empty() || edge.start / CHUNK_ROWS != rows.start / CHUNK_ROWS {
                before += rows.len();
                block.rows.push(std::mem::replace(&mut rows, edge.clone()));
                if before >= BLOCK_ROWS {
                    blocks.push(std::mem::take(&mut block));
                    before = 0;
                }
            }
            rows.end = rows.end.max(edge.end);
            let shift = position(rows.start) - position(before);
            let (first, last) = (position(edge.start), position(edge.end) - 1);
            block.ranges.push((first - shift, last - shift));
            edges.answers[open][side] = Some(edges.shifts.len());
            edges.shifts.push(shift);
        }
        block.rows.push(rows);
        if !block.ranges.is_empty() {
            blocks.push(block);
        }
        (blocks, edges)
    }
}

fn answer(values: ArrayRef, positions: Vec<Option<i64>>) -> Answer {
    Answer {
        values: Some(values),
        positions: Some(Arc::new(Int64Array::from(positions))),
        used_cpu_fallback: false,
    }
}

/// The values and positions of an answer.
fn parts(answer: Answer) -> Result<(ArrayRef, Int64Array)> {
    let parts = answer.values.zip(answer.positions);
    let (values, positions) = parts
        .ok_or_else(|| internal_datafusion_err!("an answer has no values, or no positions"))?;
    Ok((values, positions.as_primitive::<Int64Type>().clone()))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int32Array, StringArray};

    use super::*;

    /// The arrays of a column of these files, whose chunks have their extremes in the first rows.
    fn arrays(ends: &[usize]) -> Vec<ArrayRef> {
        let chunks = ends.last().map_or(0, |rows| rows.div_ceil(CHUNK_ROWS));
        let chunks = ChunkExtremes {
            offsets: vec![0; chunks],
            file_ends: ends.into(),
            budget: 0,
        };
        let extremes = (0..chunks.len()).map(|_| Arc::new(Int32Array::from(vec![7])) as _);
        let extremes: Vec<ArrayRef> = extremes.collect();
        chunks.to_arrays(&extremes, &DataType::Int32).unwrap()
    }

    fn read(arrays: &[ArrayRef], ends: &[usize]) -> Result<(ChunkExtremes, Vec<ArrayRef>)> {
        ChunkExtremes::from_arrays(arrays, ends.into(), &DataType::Int32, 9)
    }

    #[test]
    fn arrays_are_read_as_they_were_written() {
        for ends in [
            &[][..],
            &[0],
            &[1],
            &[4096],
            &[4095, 4097],
            &[10_000, 10_000, 20_000],
        ] {
            let written = arrays(ends);
            let (chunks, extremes) = read(&written, ends).unwrap();
            assert_eq!((&*chunks.file_ends, chunks.budget), (ends, 9));
            assert_eq!(chunks.len(), extremes[0].len());
            assert_eq!(
                chunks.to_arrays(&extremes, &DataType::Int32).unwrap(),
                written
            );
        }
    }

    #[test]
    fn arrays_of_other_columns_are_an_error() {
        let ends = [5_000, 8_193];
        let written = arrays(&ends);
        assert!(read(&written, &ends).is_ok());
        for other in [&[][..], &[8_193], &[5_001, 8_193], &[5_000, 8_194]] {
            assert!(read(&written, other).is_err(), "{other:?}");
        }
        let with = |number: usize, array: ArrayRef| {
            let mut arrays = written.clone();
            arrays[number] = array;
            arrays
        };
        let offsets = |offsets: &[u16]| with(1, Arc::new(UInt16Array::from(offsets.to_vec())));
        assert!(read(&offsets(&[4_095, 4_095, 0]), &ends).is_ok());
        for other in [
            offsets(&[0, 0]),
            offsets(&[0, 0, 0, 0]),
            // The last chunk has one row.
            offsets(&[0, 0, 1]),
            offsets(&[4_096, 0, 0]),
            with(0, Arc::new(Int64Array::from(vec![5_000, 8_193]))),
            with(1, Arc::new(Int32Array::from(vec![0; 3]))),
            with(2, Arc::new(Int32Array::from(vec![0; 4]))),
            with(2, Arc::new(Int64Array::from(vec![0; 3]))),
            with(2, Arc::new(StringArray::from(vec!["0"; 3]))),
            written[..2].to_vec(),
            vec![],
        ] {
            assert!(read(&other, &ends).is_err(), "{other:?}");
        }
    }
}
