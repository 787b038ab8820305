//! Where the parts of an index lie in its device's memory, and how kernels see them.

use cudarc::driver::sys::CUdeviceptr;

use super::tuning::{self, Shape};
use super::validity::{MAX_VALID_LEVELS, ValidTree};
use crate::{ColumnSize, EngineError};

const MAX_LEVELS: usize = 8;

/// More than any device holds; sums of bytes stay far from the ends of 64 bits.
pub const MAX_ROWS: u64 = 1 << 40;

/// What every part is aligned to.
const ALIGN: u64 = 256;

/// The twin of `Index` in `kernels/index.cuh`, which says what the fields are. Passed to kernels by value.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Index {
    pub n: u64,
    pub fold: [u64; 2],
    pub flip: [u64; 2],
    pub level: [CUdeviceptr; MAX_LEVELS],
    pub offset: [CUdeviceptr; MAX_LEVELS],
    pub table: CUdeviceptr,
    pub table_at: CUdeviceptr,
    pub table_stride: u64,
    pub valid: [CUdeviceptr; MAX_VALID_LEVELS],
    pub top: u32,
    pub rows: u32,
    pub valid_levels: u32,
    pub keyed: u32,
}

/// A part of the memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Part {
    /// Bytes from the start of the memory.
    pub start: u64,
    /// Bytes in use.
    pub bytes: u64,
    /// Bytes after these that kernels read but don't use.
    pub padding: u64,
}

impl Part {
    /// Where it begins in memory that begins at `base`; nowhere if it is empty.
    pub fn address(self, base: CUdeviceptr) -> CUdeviceptr {
        if self.bytes == 0 {
            0
        } else {
            base + self.start
        }
    }
}

/// All parts of an index of one column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub rows: u64,
    pub shape: Shape,
    /// Entries of a chunk are 2 to this.
    pub shift: u32,
    pub top: usize,
    /// `level[0]` is the column.
    pub level: [Part; MAX_LEVELS],
    pub entries: [u64; MAX_LEVELS],
    /// Of levels 1 and up; empty without positions.
    pub offset: [Part; MAX_LEVELS],
    pub table: Part,
    pub table_at: Part,
    pub table_rows: u32,
    pub valid: ValidTree,
    pub bytes: u64,
}

impl Layout {
    /// The layout for a column, of the best shape where none is given.
    pub fn of(
        size: ColumnSize,
        positions: bool,
        shape: Option<Shape>,
    ) -> Result<Self, EngineError> {
        let best = || tuning::shape(size.rows as u64, size.key_bytes);
        Self::new(size, positions, shape.unwrap_or_else(best))
    }

    fn new(size: ColumnSize, positions: bool, shape: Shape) -> Result<Self, EngineError> {
        let too_long = EngineError::TooLong { rows: size.rows };
        let rows = size.rows as u64;
        if rows >= MAX_ROWS {
            return Err(too_long);
        }
        let key = size.key_bytes as u64;
        let chunk = u64::from(shape.chunk_bytes) / key;
        let shift = chunk.ilog2();

        let mut entries = [0; MAX_LEVELS];
        entries[0] = rows;
        let mut top = 0;
        while top == 0 || (entries[top] > shape.top_entries && top + 1 < MAX_LEVELS) {
            top += 1;
            entries[top] = entries[top - 1].div_ceil(chunk);
        }

        let mut parts = Parts::default();
        let mut level = [Part::default(); MAX_LEVELS];
        let mut offset = [Part::default(); MAX_LEVELS];
        // Levels are in whole chunks.
        let padded = |entries: u64| entries.next_multiple_of(chunk).max(chunk);
        for k in 0..=top {
            level[k] = parts.add(entries[k] * key, padded(entries[k]) * key);
            if positions && k > 0 {
                let width = if k == 1 { 1 } else { 4 };
                offset[k] = parts.add(entries[k] * width, padded(entries[k]) * width);
            }
        }
        let table_rows = entries[top].max(1).ilog2() + 1;
        let table_entries = u64::from(table_rows - 1) * entries[top];
        // No row is read where it was not written.
        let table = parts.add(table_entries * key, table_entries * key);
        let table_at = if positions {
            parts.add(table_entries * 4, table_entries * 4)
        } else {
            Part::default()
        };

        let valid = if size.nulls {
            ValidTree::after(&mut parts, rows)
        } else {
            ValidTree::default()
        };
        Ok(Self {
            rows,
            shape,
            shift,
            top,
            level,
            entries,
            offset,
            table,
            table_at,
            table_rows,
            valid,
            bytes: parts.end,
        })
    }

    /// Entries of a chunk.
    pub fn chunk(&self) -> u64 {
        1 << self.shift
    }

    /// The parts in memory that begins at `base`, for kernels.
    pub fn index(&self, base: CUdeviceptr, fold: [u64; 2], flip: [u64; 2]) -> Index {
        let at = |part: Part| part.address(base);
        Index {
            n: self.rows,
            fold,
            flip,
            level: self.level.map(at),
            offset: self.offset.map(at),
            table: at(self.table),
            table_at: at(self.table_at),
            table_stride: self.entries[self.top],
            valid: self.valid.parts.map(at),
            top: self.top as u32,
            rows: self.table_rows,
            valid_levels: self.valid.levels as u32,
            keyed: u32::from(self.valid.levels > 0),
        }
    }

    /// What is read past the ends of levels, and the byte that it is filled with. Level 1 is written in whole chunks.
    pub fn paddings(&self) -> impl Iterator<Item = (Part, u8)> + '_ {
        let column = std::iter::once((self.level[0], 0));
        let levels = self.level[2..].iter().map(|part| (*part, 0xFF));
        let offsets = self.offset[2..].iter().map(|part| (*part, 0));
        column.chain(levels).chain(offsets)
    }
}

/// Parts that follow each other.
#[derive(Debug, Default)]
pub struct Parts {
    /// Bytes of all.
    pub end: u64,
}

impl Parts {
    /// Adds one of so many bytes, of `padded` with those that follow it.
    pub fn add(&mut self, bytes: u64, padded: u64) -> Part {
        let start = self.end;
        self.end = (start + padded).next_multiple_of(ALIGN);
        Part {
            start,
            bytes,
            padding: padded - bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As nvcc lays it out: all members are of 8 bytes but the last four.
    #[test]
    fn the_twin_has_the_size_of_the_kernels_struct() {
        assert_eq!(size_of::<Index>(), 8 + 4 * 8 + 16 * 8 + 3 * 8 + 8 * 8 + 16);
        assert_eq!(std::mem::offset_of!(Index, table_stride), 184);
        assert_eq!(std::mem::offset_of!(Index, top), 256);
    }

    #[test]
    fn parts_do_not_overlap_and_levels_shrink_to_the_table() {
        for rows in [1, 2, 31, 32, 33, 1 << 20, (1 << 24) + 1, 1 << 33] {
            for key_bytes in [4, 8, 16] {
                for (nulls, positions) in [(false, false), (true, true)] {
                    let size = ColumnSize {
                        rows,
                        key_bytes,
                        nulls,
                    };
                    let shape = tuning::shape(rows as u64, key_bytes);
                    let layout = Layout::new(size, positions, shape).expect("not too long");
                    let mut parts: Vec<Part> = layout.level.into();
                    parts.extend(layout.offset);
                    parts.extend(layout.valid.parts);
                    parts.extend([layout.table, layout.table_at]);
                    parts.retain(|part| part.bytes > 0);
                    parts.sort_by_key(|part| part.start);
                    for pair in parts.windows(2) {
                        assert!(pair[0].start + pair[0].bytes + pair[0].padding <= pair[1].start);
                    }
                    let last = parts.last().expect("the column");
                    assert!(last.start + last.bytes + last.padding <= layout.bytes);
                    assert!(layout.entries[layout.top] <= shape.top_entries);
                    assert!(layout.top == 1 || layout.entries[layout.top - 1] > shape.top_entries);
                    let index = layout.index(ALIGN, [0; 2], [0; 2]);
                    assert_eq!(index.valid_levels > 0, nulls);
                    assert_eq!(index.offset[1] > 0, positions);
                    assert_eq!(index.offset[0], 0);
                }
            }
        }
    }
}
