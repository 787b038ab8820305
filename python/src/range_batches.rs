//! Batches of ranges, answered in parts on several threads.

use std::thread;

use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rmq_engine::{EngineError, Key};

use crate::errors::from_engine;

/// Ranges that are answered before signals are looked at.
const STEP: usize = 1 << 22;

/// Ranges that are worth a thread.
const RANGES_PER_THREAD: usize = 1 << 15;

/// Which ranges have no value; None if all have one.
pub type Missing<'py> = Option<Bound<'py, PyArray1<bool>>>;

/// The answers of a batch: values or positions, and a bitmap of the ranges that have one.
pub struct Found<K> {
    pub values: Vec<K>,
    pub positions: Vec<i64>,
    pub valid: Vec<u64>,
}

/// Answers parts of a batch on several threads, and looks for signals between steps. `lengths` are those of the
/// values and of the positions, one of which is 0.
pub fn answer_in_parts<K: Key>(
    py: Python<'_>,
    most_threads: usize,
    left: &[i64],
    right: &[i64],
    lengths: (usize, usize),
    answer: impl Fn(usize, Part<'_, K>) -> Result<(), EngineError> + Sync,
) -> PyResult<Found<K>> {
    if left.len() != right.len() {
        let text = format!("{} left bounds and {} right ones", left.len(), right.len());
        return Err(PyValueError::new_err(text));
    }
    let mut found = Found {
        values: vec![K::ZERO; lengths.0],
        positions: vec![0; lengths.1],
        valid: vec![0; left.len().div_ceil(64)],
    };
    let mut rest = Part {
        rows: left.len(),
        values: &mut found.values,
        positions: &mut found.positions,
        valid: &mut found.valid,
    };
    let mut at = 0;
    while rest.rows > 0 {
        py.check_signals()?;
        let mut step = rest.take(STEP);
        let rows = step.rows;
        let threads = threads_for(rows, RANGES_PER_THREAD, most_threads);
        let per_thread = rows.div_ceil(threads).next_multiple_of(64);
        py.detach(|| {
            thread::scope(|scope| {
                let (mut start, mut others) = (at, vec![]);
                while step.rows > per_thread {
                    let part = step.take(per_thread);
                    let (from, answer) = (start, &answer);
                    start += part.rows;
                    let thread = thread::Builder::new();
                    let thread = thread.spawn_scoped(scope, move || answer(from, part));
                    others.push(thread.map_err(|why| EngineError::Thread(why.to_string()))?);
                }
                let mine = answer(start, step);
                let others = others.into_iter().map(thread::ScopedJoinHandle::join);
                // A thread's panic goes on here, where PyO3 makes it an exception.
                let others = others
                    .map(|joined| joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
                others.chain([mine]).collect::<Result<(), EngineError>>()
            })
        })
        .map_err(from_engine)?;
        at += rows;
    }
    Ok(found)
}

/// The outputs of consecutive ranges.
pub struct Part<'a, K> {
    pub rows: usize,
    pub values: &'a mut [K],
    pub positions: &'a mut [i64],
    pub valid: &'a mut [u64],
}

impl<'a, K> Part<'a, K> {
    /// Splits off the first rows, a multiple of 64 unless these are all.
    fn take(&mut self, rows: usize) -> Part<'a, K> {
        let rows = rows.min(self.rows);
        self.rows -= rows;
        Part {
            rows,
            values: self
                .values
                .split_off_mut(..rows.min(self.values.len()))
                .unwrap_or_default(),
            positions: self
                .positions
                .split_off_mut(..rows.min(self.positions.len()))
                .unwrap_or_default(),
            valid: self
                .valid
                .split_off_mut(..rows.div_ceil(64))
                .unwrap_or_default(),
        }
    }
}

pub fn threads_for(rows: usize, per_thread: usize, most: usize) -> usize {
    (rows / per_thread).clamp(1, most.max(1))
}

/// Replaces positions without an answer by -1.
pub fn mark_missing(valid: &[u64], positions: &mut [i64]) {
    for (i, position) in positions.iter_mut().enumerate() {
        if valid[i / 64] >> (i % 64) & 1 == 0 {
            *position = -1;
        }
    }
}

/// Which of `rows` ranges have no answer; `None` if all have one.
pub fn missing<'py>(py: Python<'py>, valid: &[u64], rows: usize) -> Missing<'py> {
    let answered: usize = valid.iter().map(|word| word.count_ones() as usize).sum();
    if answered == rows {
        return None;
    }
    let missing = (0..rows).map(|i| valid[i / 64] >> (i % 64) & 1 == 0);
    Some(PyArray1::from_vec(py, missing.collect()))
}
