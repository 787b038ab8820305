//! The size of record batches in rows and bytes.

use std::ops::Add;

use arrow::array::RecordBatch;

use rmq_arrow::common::array_bytes::arrays_bytes;

/// A number of rows and the bytes of their columns.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DataSize {
    pub(crate) rows: usize,
    pub(crate) bytes: usize,
}

impl DataSize {
    pub(crate) fn of_batch(batch: &RecordBatch) -> Self {
        Self {
            rows: batch.num_rows(),
            bytes: arrays_bytes(batch.columns()),
        }
    }

    /// Estimates the peak memory of sorting and indexing: the rows as collected and sorted, their keys, the
    /// permutation, the indexes. If the estimate is too low, building fails and is retried with fewer rows.
    pub(crate) fn build_bytes(self) -> usize {
        3 * self.bytes + 32 * self.rows
    }
}

impl Add for DataSize {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            bytes: self.bytes + other.bytes,
        }
    }
}
