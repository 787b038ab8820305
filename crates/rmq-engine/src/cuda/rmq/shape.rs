//! The shape of an index: chunk size, height of the sparse table, width of positions.

/// The shape of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a chunk of the column, which a group of threads reads at once: 128, or also 64 for keys of 4 bytes.
    pub chunk_bytes: u32,
    /// The sparse table is built over the lowest level with at most this many entries.
    pub top_entries: u64,
    /// Whether positions on the device take 64 bits.
    pub wide_positions: bool,
}

/// Columns of 4-byte values use chunks of 128 bytes from this length on. Everything that queries read of a shorter column stays in the
/// L2 cache.
const WIDE_CHUNKS_FROM: u64 = 1 << 24;

impl Shape {
    /// Returns the best shape for a column, as measured on an H200 with ranges of mixed lengths.
    ///
    /// A table over a low level answers most ranges with four loads. A table that is too long misses the L2 cache and costs more memory
    /// than it saves time.
    #[must_use]
    pub fn best(rows: u64, key_bytes: usize) -> Self {
        let small = key_bytes == 4 && rows < WIDE_CHUNKS_FROM;
        Self {
            chunk_bytes: if small { 64 } else { 128 },
            top_entries: if small || key_bytes == 16 {
                1 << 15
            } else {
                1 << 18
            },
            wide_positions: rows > 1 << 32,
        }
    }
}
