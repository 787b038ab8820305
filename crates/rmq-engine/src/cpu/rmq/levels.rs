//! The index of a column: block minima at four levels, a sparse table on the last, and the offset of each minimum in
//! its block.
//!
//! Level `k` (1 to 4) holds the smallest key of each aligned run of `16^k` values; padding holds [`Key::MAX`]. The
//! sparse table over level 4 (row `j` holds the minima of `2^j` neighbours) takes two loads for a range of any length.
//! For positions, each run also has the offset of its first smallest value: 4, 8, 12 and 16 bits at the four levels. So
//! one load resolves a run to the position of its minimum, without reading the column.
//!
//! All parts are in one allocation, the small and frequently used ones first.

use bytemuck::Pod;

use crate::cpu::huge_page_buf::{ALIGN, HugePageBytes};
use crate::error::EngineError;
use crate::key::Key;

/// Values in a block: of the column below level 1, of level `k` below level `k + 1`.
pub(crate) const BLOCK: usize = 16;

/// Levels of minima above the column.
pub(crate) const LEVELS: usize = 4;

/// The most lines of [`BLOCK`] keys that a window spans: see [`Kernel::window`](super::simd::Kernel::window).
pub(crate) const WINDOW_LINES: usize = 2;

/// Offsets of the parts of an index in its memory, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    /// Entries of each level, `[0]` is level 1.
    pub(crate) len: [usize; LEVELS],
    level: [usize; LEVELS],
    offset: [usize; LEVELS],
    sparse: usize,
    sparse_blocks: usize,
    /// Rows of the sparse table; row 0 is level 4 again.
    rows: usize,
    positions: bool,
    bytes: usize,
}

impl Layout {
    /// Computes the layout for `rows` values that begin `alignment_offset` values after the start of a block.
    ///
    /// # Errors
    /// [`EngineError::TooLong`] from 2^47 values on.
    pub(crate) fn new<K: Key>(
        rows: usize,
        alignment_offset: usize,
        positions: bool,
    ) -> Result<Self, EngineError> {
        let too_long = EngineError::TooLong { rows };
        // Positions are `i64`, and block numbers of level 4 are stored in 32 bits.
        let total = rows
            .checked_add(alignment_offset)
            .filter(|&total| (total as u64) < 1 << 47)
            .ok_or(too_long)?;
        let mut len = [0; LEVELS];
        let mut below = total;
        for len in &mut len {
            below = below.div_ceil(BLOCK);
            *len = below;
        }
        let top = len[LEVELS - 1];
        let sparse_rows = top.checked_ilog2().map_or(0, |rows| rows as usize + 1);

        let mut end = 0_usize;
        let mut part = |bytes: usize| {
            let start = end;
            end = (end + bytes).next_multiple_of(ALIGN);
            start
        };
        // Frequently used parts first; each level is sixteen times the size of the one above.
        let padded = |len: usize| padded_len(len) * size_of::<K>();
        let mut level = [0; LEVELS];
        let mut offset = [0; LEVELS];
        level[3] = part(padded(len[3]));
        let sparse = part(sparse_rows * top * size_of::<K>());
        let sparse_blocks = part(if positions {
            sparse_rows * top * size_of::<u32>()
        } else {
            0
        });
        level[2] = part(padded(len[2]));
        if positions {
            offset[3] = part(len[3] * 2 + 8);
            offset[2] = part(len[2] * 2 + 8);
            offset[1] = part(len[1] + 8);
            level[1] = part(padded(len[1]));
            offset[0] = part(len[0].div_ceil(2) + 8);
        } else {
            level[1] = part(padded(len[1]));
        }
        level[0] = part(padded(len[0]));
        Ok(Self {
            len,
            level,
            offset,
            sparse,
            sparse_blocks,
            rows: sparse_rows,
            positions,
            bytes: end,
        })
    }

    /// Bytes of the whole index.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Rounds the keys of a level up to whole lines, at least one.
fn padded_len(len: usize) -> usize {
    len.next_multiple_of(BLOCK).max(BLOCK)
}

/// Returns the distance of the column's first value from the start of its cache line, in values.
///
/// Positions within the engine are counted from the start of that line, so that blocks of the column begin at cache
/// lines. A column that begins within a line, as a slice of a larger one does, then takes no second line per block.
pub(crate) fn alignment_offset<K: Key>(column: &[K]) -> usize {
    if size_of::<K>() * BLOCK > 128 {
        return 0; // a block is several lines anyway
    }
    column.as_ptr().addr() % 64 / size_of::<K>()
}

/// The memory of an index and its layout.
#[derive(Debug)]
pub(crate) struct Levels<K> {
    memory: HugePageBytes,
    layout: Layout,
    key: std::marker::PhantomData<K>,
}

impl<K: Key + Pod> Levels<K> {
    /// Allocates zeroed levels.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`].
    pub(crate) fn new(layout: Layout) -> Result<Self, EngineError> {
        Ok(Self {
            memory: HugePageBytes::zeroed(layout.bytes)?,
            layout,
            key: std::marker::PhantomData,
        })
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The keys of level `k + 1`, padding included.
    pub(crate) fn level(&self, k: usize) -> &[K] {
        self.memory
            .slice(self.layout.level[k], padded_len(self.layout.len[k]))
    }

    /// The sparse table over level 4: row `j` begins at `j * len[3]`.
    pub(crate) fn sparse(&self) -> &[K] {
        let len = self.layout.rows * self.layout.len[LEVELS - 1];
        self.memory.slice(self.layout.sparse, len)
    }

    /// The block of level 4 that each entry of the sparse table is the minimum of; empty without positions.
    pub(crate) fn sparse_blocks(&self) -> &[u32] {
        let len = if self.layout.positions {
            self.layout.rows * self.layout.len[LEVELS - 1]
        } else {
            0
        };
        self.memory.slice(self.layout.sparse_blocks, len)
    }

    /// All bytes, for the offsets within blocks, which differ in width (see [`Levels::offset_start`]).
    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.slice(0, self.memory.bytes())
    }

    /// The first byte of the offsets of level `k + 1` in [`Levels::bytes`].
    pub(crate) fn offset_start(&self, k: usize) -> usize {
        self.layout.offset[k]
    }

    pub(crate) fn has_positions(&self) -> bool {
        self.layout.positions
    }

    /// The parts that a build fills block by block, for all blocks of level 4.
    pub(crate) fn parts(&mut self) -> Parts<'_, K> {
        let layout = self.layout;
        let memory = &mut self.memory;
        let mut key_part =
            |k: usize| -> *mut [K] { memory.slice_mut(layout.level[k], padded_len(layout.len[k])) };
        let level = [key_part(0), key_part(1), key_part(2), key_part(3)];
        let offset = layout.positions.then(|| {
            let nibbles: *mut [u8] = memory.slice_mut(layout.offset[0], layout.len[0].div_ceil(2));
            let bytes: *mut [u8] = memory.slice_mut(layout.offset[1], layout.len[1]);
            let words: *mut [u16] = memory.slice_mut(layout.offset[2], layout.len[2]);
            let top: *mut [u16] = memory.slice_mut(layout.offset[3], layout.len[3]);
            (nibbles, bytes, words, top)
        });
        // SAFETY: `Layout::new` assigns distinct bytes to every part, so these references do not overlap, and all
        // borrow `self`.
        unsafe {
            Parts {
                level: level.map(|part| &mut *part),
                offset: offset.map(|(nibbles, bytes, words, top)| Offsets {
                    nibbles: &mut *nibbles,
                    bytes: &mut *bytes,
                    words: &mut *words,
                    top: &mut *top,
                }),
            }
        }
    }

    /// Fills the sparse table from level 4.
    pub(crate) fn fill_sparse(&mut self) {
        let Layout {
            len,
            rows,
            positions,
            ..
        } = self.layout;
        let top = len[LEVELS - 1];
        for row in 0..rows {
            for i in 0..=top - (1 << row) {
                let (key, block) = if row == 0 {
                    // `Layout::new` keeps block numbers of level 4 within 32 bits.
                    (self.level(LEVELS - 1)[i], i as u32)
                } else {
                    let (left, right) =
                        ((row - 1) * top + i, (row - 1) * top + i + (1 << (row - 1)));
                    let keys = self.sparse();
                    let better = if keys[right] < keys[left] {
                        right
                    } else {
                        left
                    };
                    let block = self.sparse_blocks().get(better).copied();
                    (keys[better], block.unwrap_or(0))
                };
                let at = row * top + i;
                self.memory.slice_mut::<K>(self.layout.sparse, rows * top)[at] = key;
                if positions {
                    let start = self.layout.sparse_blocks;
                    self.memory.slice_mut::<u32>(start, rows * top)[at] = block;
                }
            }
        }
    }
}

/// Mutable parts of a run of level-4 blocks, which one thread fills.
pub(crate) struct Parts<'a, K> {
    /// Levels 1 to 4 of these blocks.
    pub(crate) level: [&'a mut [K]; LEVELS],
    pub(crate) offset: Option<Offsets<'a>>,
}

/// The offset of the first smallest value in each block.
pub(crate) struct Offsets<'a> {
    /// Level 1: two blocks per byte, the even one in the low half.
    pub(crate) nibbles: &'a mut [u8],
    /// Level 2.
    pub(crate) bytes: &'a mut [u8],
    /// Level 3: 12 bits used.
    pub(crate) words: &'a mut [u16],
    /// Level 4.
    pub(crate) top: &'a mut [u16],
}

impl<K> Parts<'_, K> {
    /// Splits off the first `blocks` level-4 blocks.
    pub(crate) fn split(self, blocks: usize) -> (Self, Self) {
        fn cut<T>(part: &mut [T], at: usize) -> (&mut [T], &mut [T]) {
            part.split_at_mut(at.min(part.len()))
        }
        let [one, two, three, four] = self.level;
        let one = cut(one, blocks * 16 * 16 * 16);
        let two = cut(two, blocks * 16 * 16);
        let three = cut(three, blocks * 16);
        let four = cut(four, blocks);
        let offsets = self.offset.map(|offset| {
            let nibbles = cut(offset.nibbles, blocks * 16 * 16 * 8);
            let bytes = cut(offset.bytes, blocks * 16 * 16);
            let words = cut(offset.words, blocks * 16);
            let top = cut(offset.top, blocks);
            let first = Offsets {
                nibbles: nibbles.0,
                bytes: bytes.0,
                words: words.0,
                top: top.0,
            };
            let second = Offsets {
                nibbles: nibbles.1,
                bytes: bytes.1,
                words: words.1,
                top: top.1,
            };
            (first, second)
        });
        let (first, second) = offsets.unzip();
        (
            Self {
                level: [one.0, two.0, three.0, four.0],
                offset: first,
            },
            Self {
                level: [one.1, two.1, three.1, four.1],
                offset: second,
            },
        )
    }
}
