//! Which rows of a build side have matched any row of the probe side.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use datafusion::execution::memory_pool::MemoryReservation;

/// A bitmap over the rows of a build side in sorted order, which all partitions of the probe side mark.
#[derive(Debug)]
pub(crate) struct MatchedRows {
    words: Vec<AtomicU64>,
    rows: usize,
    /// The number of partitions that have marked all their matches.
    finished_partitions: AtomicUsize,
    _memory: MemoryReservation,
}

impl MatchedRows {
    /// The number of bytes for `rows` rows.
    pub(crate) fn bytes(rows: usize) -> usize {
        rows.div_ceil(64) * size_of::<AtomicU64>()
    }

    /// None of `rows` rows has matched yet. `memory` registers [`Self::bytes`].
    pub(crate) fn new(rows: usize, memory: MemoryReservation) -> Self {
        Self {
            words: (0..rows.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            rows,
            finished_partitions: AtomicUsize::new(0),
            _memory: memory,
        }
    }

    /// The number of rows, with those that can't match: they come last.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Whether the row at this position has matched.
    pub(crate) fn is_marked(&self, position: usize) -> bool {
        self.words[position / 64].load(Ordering::Relaxed) & (1 << (position % 64)) != 0
    }

    /// Marks the row at this position.
    pub(crate) fn mark(&self, position: usize) {
        self.words[position / 64].fetch_or(1 << (position % 64), Ordering::Relaxed);
    }

    /// Marks the rows at these positions, 64 at a time.
    pub(crate) fn mark_range(&self, positions: Range<usize>) {
        let Range { mut start, end } = positions;
        while start < end {
            let (word, from) = (start / 64, start % 64);
            let bits = (end - start).min(64 - from);
            let mask = (u64::MAX >> (64 - bits)) << from;
            // Most words of ranges that overlap are marked already.
            if self.words[word].load(Ordering::Relaxed) & mask != mask {
                self.words[word].fetch_or(mask, Ordering::Relaxed);
            }
            start += bits;
        }
    }

    /// Records that a partition has marked all its matches. Returns whether it is the last of `partitions`, which sees
    /// the marks of all others.
    pub(crate) fn finish_partition(&self, partitions: usize) -> bool {
        self.finished_partitions.fetch_add(1, Ordering::AcqRel) + 1 == partitions
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};

    use super::*;

    #[test]
    fn ranges_mark_the_rows_that_single_marks_do() {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let empty = || MatchedRows::new(200, MemoryConsumer::new("test").register(&pool));
        for start in [0, 1, 63, 64, 65, 127, 128, 199, 200] {
            for end in [0, 1, 64, 65, 128, 190, 192, 193, 200] {
                let (ranges, single) = (empty(), empty());
                ranges.mark_range(start..end);
                (start..end).for_each(|position| single.mark(position));
                let marks = |rows: &MatchedRows| {
                    (0..rows.rows())
                        .map(|p| rows.is_marked(p))
                        .collect::<Vec<_>>()
                };
                assert_eq!(marks(&ranges), marks(&single), "{start}..{end}");
            }
        }
    }
}
