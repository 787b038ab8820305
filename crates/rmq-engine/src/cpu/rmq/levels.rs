//! The index of a column: chunk minima at four levels, a sparse table on the last, and where each minimum stands.
//!
//! Level `k` (1 to 4) holds the smallest key of each aligned run of `16^k` values; padding holds [`Key::MAX`]. The sparse
//! table over level 4 (row `j` holds the minima of `2^j` neighbours) makes the top two loads whatever the range. For
//! positions, each run also has the offset of its first smallest value: 4, 8, 12 and 16 bits at the four levels. So
//! a run that is known to hold the answer gives its position with one load, and no line of the column is read for it.
//!
//! Everything lies in one piece of memory, the small and hot parts first.

use bytemuck::Pod;

use crate::cpu::huge_page_buf::{ALIGN, HugePageBytes};
use crate::error::EngineError;
use crate::key::Key;

/// Values in a block: of the column at level 0, of level `k` above.
pub(crate) const BLOCK: usize = 16;

/// Levels of minima above the column.
pub(crate) const LEVELS: usize = 4;

/// Lines of [`BLOCK`] keys that a window spans at most: see [`Kernel::window`](super::simd::Kernel::window).
pub(crate) const WINDOW_LINES: usize = 2;

/// Where the parts of an index lie in its memory, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    /// Entries of each level, `[0]` is level 1.
    pub(crate) len: [usize; LEVELS],
    level: [usize; LEVELS],
    offset: [usize; LEVELS],
    sparse: usize,
    sparse_place: usize,
    /// Rows of the sparse table; row 0 is level 4 again.
    rows: usize,
    positions: bool,
    bytes: usize,
}

impl Layout {
    /// The layout for `rows` values, `alignment_offset` of the first block missing (see [`alignment_offset`]).
    pub(crate) fn new<K: Key>(
        rows: usize,
        alignment_offset: usize,
        positions: bool,
    ) -> Result<Self, EngineError> {
        let too_long = EngineError::TooLong { rows };
        // Positions are `i64`, and level 4's block numbers are kept in 32 bits.
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
        // Hot parts first; of the lower levels each is sixteen times the one above.
        let padded = |len: usize| padded_len(len) * size_of::<K>();
        let mut level = [0; LEVELS];
        let mut offset = [0; LEVELS];
        level[3] = part(padded(len[3]));
        let sparse = part(sparse_rows * top * size_of::<K>());
        let sparse_place = part(if positions {
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
            sparse_place,
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

/// Keys of a level in whole lines, one at least.
fn padded_len(len: usize) -> usize {
    len.next_multiple_of(BLOCK).max(BLOCK)
}

/// How many values of the first block are missing so that blocks of the column begin at cache lines.
///
/// Positions are counted from the start of that line within the engine. A column that begins within a line, as a slice
/// of a larger one does, so costs no second line a block.
pub(crate) fn alignment_offset<K: Key>(column: &[K]) -> usize {
    if size_of::<K>() * BLOCK > 128 {
        return 0; // a block is several lines anyway
    }
    column.as_ptr().addr() % 64 / size_of::<K>()
}

/// The parts of an index that the minima of whole blocks are written to, or read from.
#[derive(Debug)]
pub(crate) struct Levels<K> {
    memory: HugePageBytes,
    layout: Layout,
    key: std::marker::PhantomData<K>,
}

impl<K: Key + Pod> Levels<K> {
    /// Empty levels.
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

    /// Level `k` (0 is level 1) with its padding.
    pub(crate) fn level(&self, k: usize) -> &[K] {
        self.memory
            .slice(self.layout.level[k], padded_len(self.layout.len[k]))
    }

    /// The sparse table over level 4: row `j` begins at `j * len[3]`.
    pub(crate) fn sparse(&self) -> &[K] {
        let len = self.layout.rows * self.layout.len[LEVELS - 1];
        self.memory.slice(self.layout.sparse, len)
    }

    /// The block of level 4 that each entry of the sparse table stems from; empty without positions.
    pub(crate) fn sparse_place(&self) -> &[u32] {
        let len = if self.layout.positions {
            self.layout.rows * self.layout.len[LEVELS - 1]
        } else {
            0
        };
        self.memory.slice(self.layout.sparse_place, len)
    }

    /// All bytes, for the offsets within blocks, which differ in width (see [`Levels::offset_start`]).
    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.slice(0, self.memory.bytes())
    }

    /// Where the offsets of level `k + 1` begin in [`Levels::bytes`].
    pub(crate) fn offset_start(&self, k: usize) -> usize {
        self.layout.offset[k]
    }

    pub(crate) fn has_positions(&self) -> bool {
        self.layout.positions
    }

    /// The parts that a build fills block by block, all of level 4's blocks at once.
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
        // SAFETY: `Layout::new` gives every part bytes of its own, so these references do not overlap, and all borrow
        // `self` for as long as they live.
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
                let (key, place) = if row == 0 {
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
                    let place = self.sparse_place().get(better).copied();
                    (keys[better], place.unwrap_or(0))
                };
                let at = row * top + i;
                self.memory.slice_mut::<K>(self.layout.sparse, rows * top)[at] = key;
                if positions {
                    let start = self.layout.sparse_place;
                    self.memory.slice_mut::<u32>(start, rows * top)[at] = place;
                }
            }
        }
    }
}

/// Mutable views of a run of level-4 blocks, to be filled by one thread.
pub(crate) struct Parts<'a, K> {
    /// Levels 1 to 4 of these blocks.
    pub(crate) level: [&'a mut [K]; LEVELS],
    pub(crate) offset: Option<Offsets<'a>>,
}

/// Where, in each block, its first smallest value stands.
pub(crate) struct Offsets<'a> {
    /// Level 1: two blocks a byte, the even one in the low half.
    pub(crate) nibbles: &'a mut [u8],
    /// Level 2.
    pub(crate) bytes: &'a mut [u8],
    /// Level 3: 12 bits used.
    pub(crate) words: &'a mut [u16],
    /// Level 4.
    pub(crate) top: &'a mut [u16],
}

impl<K> Parts<'_, K> {
    /// The first `blocks` level-4 blocks, and the rest.
    pub(crate) fn split(self, blocks: usize) -> (Self, Self) {
        fn cut<T>(part: &mut [T], at: usize) -> (&mut [T], &mut [T]) {
            part.split_at_mut(at.min(part.len()))
        }
        let [one, two, three, four] = self.level;
        let one = cut(one, blocks * 16 * 16 * 16);
        let two = cut(two, blocks * 16 * 16);
        let three = cut(three, blocks * 16);
        let four = cut(four, blocks);
        let offset = self.offset.map(|offset| {
            (
                cut(offset.nibbles, blocks * 16 * 16 * 8),
                cut(offset.bytes, blocks * 16 * 16),
                cut(offset.words, blocks * 16),
                cut(offset.top, blocks),
            )
        });
        let (first, second) = match offset {
            Some((nibbles, bytes, words, top)) => (
                Some(Offsets {
                    nibbles: nibbles.0,
                    bytes: bytes.0,
                    words: words.0,
                    top: top.0,
                }),
                Some(Offsets {
                    nibbles: nibbles.1,
                    bytes: bytes.1,
                    words: words.1,
                    top: top.1,
                }),
            ),
            None => (None, None),
        };
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
