//! The layout of an index in device memory, and the struct that kernels get of it.

use cudarc::driver::sys::CUdeviceptr;

use super::shape::Shape;
use crate::{ColumnSize, EngineError};

const MAX_LEVELS: usize = 8;

/// The most levels of a validity tree.
pub const MAX_VALIDITY_LEVELS: usize = 8;

/// The limit of a column's length, above what fits on any device. Byte counts of shorter columns do not overflow 64
/// bits.
pub const MAX_ROWS: u64 = 1 << 40;

/// The alignment of regions in bytes.
const ALIGN: u64 = 256;

/// Mirrors `Index` in `kernels/index.cuh`, which documents the fields. Passed to kernels by value.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceIndex {
    pub n: u64,
    pub fold: [u64; 2],
    pub flip: [u64; 2],
    pub level: [CUdeviceptr; MAX_LEVELS],
    pub offset: [CUdeviceptr; MAX_LEVELS],
    pub table: CUdeviceptr,
    pub table_at: CUdeviceptr,
    pub table_stride: u64,
    pub valid: [CUdeviceptr; MAX_VALIDITY_LEVELS],
    pub top: u32,
    pub rows: u32,
    pub valid_levels: u32,
    pub keyed: u32,
}

/// A region of device memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Region {
    /// Bytes from the start of the memory.
    pub start: u64,
    /// Bytes in use.
    pub bytes: u64,
    /// Bytes after these that kernels read and ignore.
    pub padding: u64,
}

impl Region {
    /// Returns its address in memory that begins at `base`; null if it is empty.
    #[must_use]
    pub fn address(self, base: CUdeviceptr) -> CUdeviceptr {
        if self.bytes == 0 {
            0
        } else {
            base + self.start
        }
    }
}

/// The regions of the index of one column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub rows: u64,
    pub shape: Shape,
    /// The binary logarithm of the entries of a chunk.
    pub shift: u32,
    /// The highest level, over which the sparse table is built.
    pub top: usize,
    /// `level[0]` is the column.
    pub level: [Region; MAX_LEVELS],
    pub entries: [u64; MAX_LEVELS],
    /// Offsets of minima, for levels 1 and up; empty without positions.
    pub offset: [Region; MAX_LEVELS],
    pub table: Region,
    pub table_at: Region,
    pub table_rows: u32,
    pub validity: ValidityLayout,
    /// Bytes of the whole index, the column included.
    pub bytes: u64,
}

impl Layout {
    /// Lays out the index of a column, with the best shape for it unless `shape` is given.
    ///
    /// # Errors
    /// [`EngineError::TooLong`] from 2^40 rows on.
    pub fn new(
        size: ColumnSize,
        positions: bool,
        shape: Option<Shape>,
    ) -> Result<Self, EngineError> {
        let best = || Shape::best(size.rows as u64, size.key_bytes);
        Self::with_shape(size, positions, shape.unwrap_or_else(best))
    }

    fn with_shape(size: ColumnSize, positions: bool, shape: Shape) -> Result<Self, EngineError> {
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

        let mut regions = RegionAllocator::default();
        let mut level = [Region::default(); MAX_LEVELS];
        let mut offset = [Region::default(); MAX_LEVELS];
        // Levels are padded to whole chunks.
        let padded = |entries: u64| entries.next_multiple_of(chunk).max(chunk);
        for k in 0..=top {
            level[k] = regions.add(entries[k] * key, padded(entries[k]) * key);
            if positions && k > 0 {
                let width = if k == 1 { 1 } else { 4 };
                offset[k] = regions.add(entries[k] * width, padded(entries[k]) * width);
            }
        }
        let table_rows = entries[top].max(1).ilog2() + 1;
        let table_entries = u64::from(table_rows - 1) * entries[top];
        // Only written entries of a row are read, so it needs no padding.
        let table = regions.add(table_entries * key, table_entries * key);
        let table_at = if positions {
            regions.add(table_entries * 4, table_entries * 4)
        } else {
            Region::default()
        };

        let validity = if size.nulls {
            ValidityLayout::new(&mut regions, rows)
        } else {
            ValidityLayout::default()
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
            validity,
            bytes: regions.end,
        })
    }

    /// The number of entries of a chunk.
    #[must_use]
    pub fn chunk(&self) -> u64 {
        1 << self.shift
    }

    /// Returns the index in memory that begins at `base`, as kernels get it. `fold` and `flip` are those of the
    /// column's encoding.
    #[must_use]
    pub fn index(&self, base: CUdeviceptr, fold: [u64; 2], flip: [u64; 2]) -> DeviceIndex {
        let at = |region: Region| region.address(base);
        DeviceIndex {
            n: self.rows,
            fold,
            flip,
            level: self.level.map(at),
            offset: self.offset.map(at),
            table: at(self.table),
            table_at: at(self.table_at),
            table_stride: self.entries[self.top],
            valid: self.validity.levels.map(at),
            top: self.top as u32,
            rows: self.table_rows,
            valid_levels: self.validity.depth as u32,
            keyed: u32::from(self.validity.depth > 0),
        }
    }

    /// Returns the regions whose padding must be filled before the build, each with the fill byte. Level 1 needs none:
    /// it is written in whole chunks.
    pub fn paddings(&self) -> impl Iterator<Item = (Region, u8)> + '_ {
        let column = std::iter::once((self.level[0], 0));
        let levels = self.level[2..].iter().map(|region| (*region, 0xFF));
        let offsets = self.offset[2..].iter().map(|region| (*region, 0));
        column.chain(levels).chain(offsets)
    }
}

/// The regions of a validity tree: a bitmap of the rows that are not NULL, and above it levels in which a bit tells
/// whether a word of the level below has a bit set. Without levels if the column has no NULLs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ValidityLayout {
    pub levels: [Region; MAX_VALIDITY_LEVELS],
    /// Words of 32 bits of each level.
    pub words: [u64; MAX_VALIDITY_LEVELS],
    /// The number of levels.
    pub depth: usize,
}

impl ValidityLayout {
    fn new(regions: &mut RegionAllocator, rows: u64) -> Self {
        let mut tree = Self::default();
        let mut bits = rows;
        while tree.depth == 0 || bits > 1 {
            bits = bits.div_ceil(32);
            tree.words[tree.depth] = bits;
            tree.levels[tree.depth] = regions.add(bits * 4, bits * 4);
            tree.depth += 1;
        }
        tree
    }
}

/// Appends regions one after another.
#[derive(Debug, Default)]
struct RegionAllocator {
    /// Bytes of all regions.
    end: u64,
}

impl RegionAllocator {
    /// Appends a region of `bytes` bytes, which takes `padded` bytes with its padding.
    fn add(&mut self, bytes: u64, padded: u64) -> Region {
        let start = self.end;
        self.end = (start + padded).next_multiple_of(ALIGN);
        Region {
            start,
            bytes,
            padding: padded - bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout that nvcc gives the struct: all members have 8 bytes but the last four, which have 4.
    #[test]
    fn device_index_matches_the_struct_of_the_kernels() {
        assert_eq!(
            size_of::<DeviceIndex>(),
            8 + 4 * 8 + 16 * 8 + 3 * 8 + 8 * 8 + 16
        );
        assert_eq!(std::mem::offset_of!(DeviceIndex, table_stride), 184);
        assert_eq!(std::mem::offset_of!(DeviceIndex, top), 256);
    }

    #[test]
    fn regions_do_not_overlap_and_levels_shrink_to_the_table() {
        for rows in [1, 2, 31, 32, 33, 1 << 20, (1 << 24) + 1, 1 << 33] {
            for key_bytes in [4, 8, 16] {
                for (nulls, positions) in [(false, false), (true, true)] {
                    let size = ColumnSize {
                        rows,
                        key_bytes,
                        nulls,
                    };
                    let shape = Shape::best(rows as u64, key_bytes);
                    let layout = Layout::with_shape(size, positions, shape).expect("not too long");
                    let mut regions: Vec<Region> = layout.level.into();
                    regions.extend(layout.offset);
                    regions.extend(layout.validity.levels);
                    regions.extend([layout.table, layout.table_at]);
                    regions.retain(|region| region.bytes > 0);
                    regions.sort_by_key(|region| region.start);
                    for pair in regions.windows(2) {
                        assert!(pair[0].start + pair[0].bytes + pair[0].padding <= pair[1].start);
                    }
                    let last = regions.last().expect("the column");
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
