//! Slices and bitmaps in chunks, read as if they were concatenated.

use std::ops::Range;

use crate::column::word;
use crate::{Column, Key, Validity};

/// The first row of each chunk, and the end of the last one.
#[derive(Debug)]
pub struct Starts(Vec<usize>);

impl Starts {
    pub fn new(lengths: impl Iterator<Item = usize>) -> Self {
        let mut end = 0;
        let mut starts = vec![0];
        starts.extend(lengths.map(|length| {
            end += length;
            end
        }));
        Self(starts)
    }

    pub fn rows(&self) -> usize {
        self.0[self.0.len() - 1]
    }

    /// The chunk that has a row, which exists.
    fn chunk_of(&self, row: usize) -> usize {
        self.0.partition_point(|start| *start <= row) - 1
    }

    /// Calls `visit` for each part of `rows` that is in one chunk, with the chunk and the rows in it.
    pub fn visit(&self, rows: Range<usize>, mut visit: impl FnMut(usize, Range<usize>)) {
        let mut next = rows.start;
        if next >= rows.end {
            return;
        }
        let mut chunk = self.chunk_of(next);
        while next < rows.end {
            let (start, end) = (self.0[chunk], self.0[chunk + 1].min(rows.end));
            if next < end {
                visit(chunk, next - start..end - start);
                next = end;
            }
            chunk += 1;
        }
    }
}

/// Slices that follow each other.
#[derive(Debug)]
pub struct SliceChunks<'a, T> {
    slices: Vec<&'a [T]>,
    starts: Starts,
}

impl<'a, T: Copy> SliceChunks<'a, T> {
    pub fn new(slices: impl IntoIterator<Item = &'a [T]>) -> Self {
        let slices: Vec<_> = slices.into_iter().collect();
        Self {
            starts: Starts::new(slices.iter().map(|slice| slice.len())),
            slices,
        }
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.starts.rows()
    }

    /// Copies the items from `first` on to all of `to`.
    pub fn copy(&self, first: usize, to: &mut [T]) {
        let mut rest = to;
        self.starts
            .visit(first..first + rest.len(), |chunk, items| {
                let (here, behind) = std::mem::take(&mut rest).split_at_mut(items.len());
                here.copy_from_slice(&self.slices[chunk][items]);
                rest = behind;
            });
    }

    /// Calls `visit` with the items from `first` to `end` in order, piece by piece.
    pub fn visit(&self, rows: Range<usize>, mut visit: impl FnMut(&[T])) {
        self.starts
            .visit(rows, |chunk, items| visit(&self.slices[chunk][items]));
    }
}

/// The bits of a column's chunks.
pub fn bits_of<K: Key>(chunks: &[Column<K>]) -> SliceChunks<'_, K> {
    SliceChunks::new(chunks.iter().map(Column::bits))
}

/// Validity bitmaps that follow each other.
#[derive(Debug)]
pub struct BitmapChunks<'a> {
    /// None for a chunk without NULLs.
    bitmaps: Vec<Option<&'a Validity>>,
    starts: Starts,
}

impl<'a> BitmapChunks<'a> {
    /// Returns the validity of a column; `None` if no chunk has a NULL.
    pub fn of_column<K: Key>(chunks: &'a [Column<K>]) -> Option<Self> {
        let has_nulls = |chunk: &Column<K>, bitmap: &Validity| bitmap.null_count(chunk.len()) > 0;
        let bitmaps = chunks
            .iter()
            .map(|chunk| chunk.validity().filter(|bitmap| has_nulls(chunk, bitmap)));
        let bitmaps: Vec<_> = bitmaps.collect();
        bitmaps.iter().any(Option::is_some).then(|| Self {
            bitmaps,
            starts: Starts::new(chunks.iter().map(Column::len)),
        })
    }

    /// Writes the bits of rows from `first` on to all of `to`; bits past the last row are 0.
    pub fn copy(&self, first: usize, to: &mut [u32]) {
        let mut row = first;
        for word in to {
            let end = self.starts.rows().min(row + 32).max(row);
            *word = self.word(row..end);
            row += 32;
        }
    }

    /// The bits of at most 32 rows.
    fn word(&self, rows: Range<usize>) -> u32 {
        let mut bits = 0_u64;
        let mut filled = 0;
        self.starts.visit(rows, |chunk, rows| {
            let here = match self.bitmaps[chunk] {
                Some(bitmap) => word(bitmap.bytes(), bitmap.offset() + rows.start, rows.len()),
                None => (1 << rows.len()) - 1,
            };
            bits |= here << filled;
            filled += rows.len();
        });
        bits as u32
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Encoding;

    #[test]
    fn chunks_read_as_one() {
        let lengths = [3, 0, 70, 1, 33, 0];
        let mut next = 0_u32;
        let mut chunks = vec![];
        let mut valid = vec![];
        for (i, length) in lengths.into_iter().enumerate() {
            let bits: Vec<u32> = (next..).take(length).collect();
            next += length as u32;
            let mut chunk = Column::new(Arc::new(bits), Encoding::unsigned());
            let mut is_valid = vec![true; length];
            if i % 2 == 0 {
                let bytes: Vec<u8> = (0..20_u8).map(|b| b.wrapping_mul(151) ^ 0x5A).collect();
                for (j, valid) in is_valid.iter_mut().enumerate() {
                    *valid = bytes[(j + 5) / 8] >> ((j + 5) % 8) & 1 == 1;
                }
                let validity = Validity::new(Arc::new(bytes), 5);
                chunk = chunk.with_validity(validity).expect("it is long enough");
            }
            chunks.push(chunk);
            valid.extend(is_valid);
        }
        let slices = bits_of(&chunks);
        assert_eq!(slices.len(), next as usize);
        for first in 0..slices.len() {
            for end in [first, first + 1, slices.len()] {
                let mut to = vec![0; end - first];
                slices.copy(first, &mut to);
                assert!(to.iter().copied().eq(first as u32..end as u32));
            }
        }
        let bitmap = BitmapChunks::of_column(&chunks).expect("it has NULLs");
        let mut words = [!0_u32; 5];
        bitmap.copy(0, &mut words);
        for (i, valid) in valid.iter().enumerate() {
            assert_eq!(words[i / 32] >> (i % 32) & 1 == 1, *valid, "{i}");
        }
        assert_eq!(words[3] >> (107 % 32), 0);
        assert_eq!(words[4], 0);
        assert!(BitmapChunks::of_column(&chunks[1..2]).is_none());
    }
}
