//! Order statistics of the ranges of one array, on the CPU.

use std::sync::{Mutex, OnceLock, PoisonError};

use pyo3::prelude::*;
use rmq_engine::cpu::{DistinctCounts, KeyStatistics, RankKey};
use rmq_engine::{Column, EngineError};

use crate::errors::from_engine;
use crate::range_batches::{Found, answer_in_parts};

/// What answers order statistics of an array. Each part is built when it is first needed.
pub struct RangeStatistics<K: RankKey> {
    column: Column<K>,
    threads: usize,
    values: OnceLock<KeyStatistics<K>>,
    distinct: OnceLock<DistinctCounts>,
}

impl<K: RankKey> RangeStatistics<K> {
    /// Those of a column, built and answered on up to `threads` threads.
    pub fn new(column: Column<K>, threads: usize) -> Self {
        Self {
            column,
            threads,
            values: OnceLock::new(),
            distinct: OnceLock::new(),
        }
    }

    /// Bytes of what is built.
    pub fn index_bytes(&self) -> usize {
        let values = self.values.get().map_or(0, KeyStatistics::index_bytes);
        let distinct = self.distinct.get().map_or(0, DistinctCounts::index_bytes);
        values + distinct
    }

    /// The number of values of each range.
    pub fn counts(&self, py: Python<'_>, left: &[i64], right: &[i64]) -> PyResult<Vec<i64>> {
        let values = self.values(py)?;
        self.count(py, left, right, |left, right, _, counts| {
            values.count(left, right, counts)
        })
    }

    /// How many values of each range are below a threshold, given as bits.
    pub fn counts_below(
        &self,
        py: Python<'_>,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
    ) -> PyResult<Vec<i64>> {
        let values = self.values(py)?;
        self.count(py, left, right, |left, right, at, counts| {
            let thresholds = &thresholds[at..at + left.len()];
            values.count_below(left, right, thresholds, counts)
        })
    }

    /// How many distinct values each range has.
    pub fn counts_distinct(
        &self,
        py: Python<'_>,
        left: &[i64],
        right: &[i64],
    ) -> PyResult<Vec<i64>> {
        let distinct = built(py, &self.distinct, |stops| {
            DistinctCounts::build(&self.column, self.threads, stops)
        })?;
        self.count(py, left, right, |left, right, _, counts| {
            distinct.count(left, right, counts)
        })
    }

    /// The value of each range that has `smaller` values before it, if the range's values are sorted.
    pub fn nth_smallest(
        &self,
        py: Python<'_>,
        left: &[i64],
        right: &[i64],
        smaller: &[i64],
    ) -> PyResult<Found<K>> {
        let values = self.values(py)?;
        let lengths = (left.len(), 0);
        answer_in_parts(py, self.threads, left, right, lengths, |at, part| {
            let rows = at..at + part.rows;
            let (left, right) = (&left[rows.clone()], &right[rows.clone()]);
            values.nth_smallest(left, right, &smaller[rows], part.values, part.valid)
        })
    }

    fn values(&self, py: Python<'_>) -> PyResult<&KeyStatistics<K>> {
        built(py, &self.values, |stops| {
            KeyStatistics::build(&self.column, self.threads, stops)
        })
    }

    /// Counts by `count`, which gets the bounds of some ranges, the number of the first and where the counts go.
    fn count(
        &self,
        py: Python<'_>,
        left: &[i64],
        right: &[i64],
        count: impl Fn(&[i64], &[i64], usize, &mut [i64]) -> Result<(), EngineError> + Sync,
    ) -> PyResult<Vec<i64>> {
        let lengths = (0, left.len());
        let found: Found<K> =
            answer_in_parts(py, self.threads, left, right, lengths, |at, part| {
                let rows = at..at + part.rows;
                count(&left[rows.clone()], &right[rows], at, part.positions)
            })?;
        Ok(found.positions)
    }
}

/// What is in the slot, or what `build` returns, which ends early if a signal came. Two threads that need it at a time
/// may both build it.
fn built<'a, T: Send + Sync>(
    py: Python<'_>,
    slot: &'a OnceLock<T>,
    build: impl FnOnce(&dyn Fn() -> bool) -> Result<T, EngineError> + Send,
) -> PyResult<&'a T> {
    if let Some(built) = slot.get() {
        return Ok(built);
    }
    let signal = Mutex::new(None);
    let stops = || {
        let raised = Python::attach(|py| py.check_signals().err());
        let stops = raised.is_some();
        if stops {
            *signal.lock().unwrap_or_else(PoisonError::into_inner) = raised;
        }
        stops
    };
    let result = py.detach(|| build(&stops));
    if let Some(error) = signal.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let result = result.map_err(from_engine)?;
    Ok(slot.get_or_init(|| result))
}
