//! The shape of an index: chunk size, height of the sparse table, width of positions, and who reads it.

/// The shape of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a chunk of the column, which a group of threads reads at once: 128, or also 64 for keys of 4 bytes.
    pub chunk_bytes: u32,
    /// The sparse table is built over the lowest level with at most this many entries.
    pub top_entries: u64,
    /// Whether positions on the device take 64 bits.
    pub wide_positions: bool,
    /// Whether groups of threads read the levels above the column, too, and not each thread for its own query
    /// (`kernels/answer.cu`). Always so where positions are wide; otherwise only chunks of 128 bytes have kernels for
    /// it.
    pub levels_by_groups: bool,
}

/// Columns of 4-byte values use chunks of 128 bytes from this length on. Everything that queries read of a shorter
/// column stays in the L2 cache.
const WIDE_CHUNKS_FROM: u64 = 1 << 24;

/// Groups of threads read the levels of longer columns, whose level 1 has more bytes. A thread alone reads 128 bytes of
/// it in several loads, and waits for the device's memory in each: small ranges of 2^33 values of 4 bytes (1 GiB of
/// level 1) took 0.120 ns, by groups 0.068. With 2^30 values (128 MiB) they took 0.047 ns, by groups 0.053; in the L2
/// cache, threads are faster by a third and more.
const MAX_LEVEL_1_FOR_THREADS: u64 = 128 << 20;

/// The same for wider keys, whose kernels have fewer threads on a multiprocessor to wait for memory: what the L2 cache
/// may hold. Positions of mixed ranges of 2^28 values of 8 bytes (128 MiB) took 0.0576 ns by threads, and 0.0517 by
/// groups; small ranges, 0.0815 and 0.0849. `rmq-bench --measure heat` has both.
const MAX_WIDE_LEVEL_1_FOR_THREADS: u64 = 64 << 20;

impl Shape {
    /// Returns the best shape for a column, as measured on an H200 with ranges of mixed lengths.
    ///
    /// A table over a low level answers most ranges with four loads from two places. A table that is too long misses
    /// the L2 cache and costs more memory than it saves time.
    #[must_use]
    pub fn best(rows: u64, key_bytes: usize) -> Self {
        let small = key_bytes == 4 && rows < WIDE_CHUNKS_FROM;
        let chunk_bytes = if small { 64 } else { 128 };
        let key = key_bytes as u64;
        let level_1 = rows.div_ceil(u64::from(chunk_bytes) / key) * key;
        let most_for_threads = if key_bytes == 4 {
            MAX_LEVEL_1_FOR_THREADS
        } else {
            MAX_WIDE_LEVEL_1_FOR_THREADS
        };
        Self {
            chunk_bytes,
            top_entries: if small || key_bytes == 16 {
                1 << 15
            } else {
                1 << 18
            },
            wide_positions: rows > 1 << 32,
            levels_by_groups: level_1 > most_for_threads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_read_the_levels_of_long_columns() {
        for (key_bytes, rows) in [(4, 1 << 30), (8, 1 << 27), (16, 1 << 25)] {
            assert!(!Shape::best(rows, key_bytes).levels_by_groups);
            assert!(Shape::best(rows + 32, key_bytes).levels_by_groups);
        }
        assert!(!Shape::best(0, 4).levels_by_groups);
    }
}
