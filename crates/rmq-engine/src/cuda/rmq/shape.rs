//! What was found by measuring, in one place.

/// The shape of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a chunk of the column, 128, or 64 where keys have 4: of what is read at once.
    pub chunk_bytes: u32,
    /// The sparse table stands on the first level with at most so many entries.
    pub top_entries: u64,
    /// Whether positions on the device take 64 bits.
    pub wide_positions: bool,
}

/// For columns of at least so many values of 4 bytes: below, all that queries read stays in the L2 cache.
const WIDE_CHUNKS_FROM: u64 = 1 << 24;

/// The best shape for a column, as measured on an H200 with ranges of mixed lengths.
///
/// A table on a low level answers most ranges in four loads; one too long misses the L2 cache and takes more memory than it is
/// worth.
pub fn shape(rows: u64, key_bytes: usize) -> Shape {
    let narrow = key_bytes == 4 && rows < WIDE_CHUNKS_FROM;
    Shape {
        chunk_bytes: if narrow { 64 } else { 128 },
        top_entries: if narrow || key_bytes == 16 {
            1 << 15
        } else {
            1 << 18
        },
        wide_positions: rows > 1 << 32,
    }
}

/// The highest level of the paper's index has at most so many entries: a search that arrives there reads all that is left of
/// its range.
pub const PAPER_CUTOFF: u64 = 64;

/// Queries that go to a device at once. A larger batch is cut, so that the copies of one part overlap with the work on
/// others; a part is small enough for its bounds to stay in a core's cache on their way.
pub const BATCH: usize = 1 << 18;

/// Batches under way on a device at most; further callers wait.
pub const SLOTS: usize = 32;

/// Bytes of a column that go to a device at once.
pub const SLICE: usize = 4 << 20;

/// Threads that fill slices: together they read memory faster than the bus takes it.
pub const UPLOADERS: usize = 8;
