//! Batches of queries through an engine's interface, from host memory to host memory, on several threads.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rmq_engine::{Answers, EngineError, Key, RangeIndex};

use crate::workload::BoundsRef;

use crate::kinds::ResultKind;

/// Queries of a batch for the CPU: as many as DataFusion's batches have rows.
pub const CPU_BATCH_SIZE: usize = 1 << 13;

/// Queries of a batch for the GPU, which overlaps transfers and search of parts of a batch.
pub const GPU_BATCH_SIZE: usize = 1 << 19;

/// How queries are run.
#[derive(Debug, Clone, Copy)]
pub struct BatchOptions {
    /// What each query is answered with.
    pub result: ResultKind,
    /// Threads that send batches.
    pub threads: usize,
    /// The most queries of a batch.
    pub batch_size: usize,
}

impl BatchOptions {
    /// Returns a size of batches that leaves no thread idle when there are few queries.
    fn batch_size_for(self, queries: usize) -> usize {
        let share = queries.div_ceil(self.threads).next_multiple_of(64);
        self.batch_size.min(share).max(64)
    }

    /// Runs `work` for all batches of `queries`, each on the next thread that is free. Ends early with the first error.
    fn for_each_batch(
        self,
        queries: usize,
        work: impl Fn(Range<usize>) -> Result<(), EngineError> + Sync,
    ) -> Result<(), EngineError> {
        let batch_size = self.batch_size_for(queries);
        let next = AtomicUsize::new(0);
        let failure = Mutex::new(None);
        let run = || {
            loop {
                let first = next.fetch_add(batch_size, Ordering::Relaxed);
                if first >= queries {
                    return;
                }
                if let Err(error) = work(first..queries.min(first + batch_size)) {
                    next.store(queries, Ordering::Relaxed);
                    *failure.lock().expect("no thread panics") = Some(error);
                }
            }
        };
        let threads = self.threads.min(queries.div_ceil(batch_size));
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(run);
            }
            run();
        });
        match failure.into_inner().expect("no thread panics") {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Runs all queries and drops the answers. Those of a batch are written to memory that the index provides, as in
/// DataFusion.
///
/// # Errors
/// Those of the engine.
///
/// # Panics
/// If a thread panics.
pub fn run<K: Key>(
    index: &dyn RangeIndex<K>,
    bounds: BoundsRef<'_>,
    options: BatchOptions,
) -> Result<(), EngineError> {
    let value = options.result == ResultKind::Value;
    options.for_each_batch(bounds.len(), |batch| {
        let mut outputs = index.outputs(batch.len(), value, !value);
        let (left, right) = (&bounds.left[batch.clone()], &bounds.right[batch]);
        index.answer(left, right, outputs.answers())
    })
}

/// The answers to all queries.
#[derive(Debug, PartialEq, Eq)]
pub enum CollectedAnswers<K> {
    /// Smallest values.
    Values(Vec<K>),
    /// Their leftmost positions.
    Positions(Vec<i64>),
}

impl<K: Key> CollectedAnswers<K> {
    /// Counts the answers that differ, up to the shorter of both lengths.
    pub fn count_differences(&self, other: &Self) -> u64 {
        fn count<T: PartialEq>(a: &[T], b: &[T]) -> u64 {
            a.iter().zip(b).filter(|(a, b)| a != b).count() as u64
        }
        match (self, other) {
            (Self::Values(a), Self::Values(b)) => count(a, b),
            (Self::Positions(a), Self::Positions(b)) => count(a, b),
            _ => unreachable!("both are answers to the same queries"),
        }
    }
}

/// Runs all queries and keeps the answers.
///
/// # Errors
/// Those of the engine.
///
/// # Panics
/// If a thread panics.
pub fn collect<K: Key>(
    index: &dyn RangeIndex<K>,
    bounds: BoundsRef<'_>,
    options: BatchOptions,
) -> Result<CollectedAnswers<K>, EngineError> {
    let queries = bounds.len();
    let batch_size = options.batch_size.max(1 << 16);
    let answer = |first: usize, values: Option<&mut [K]>, positions: Option<&mut [i64]>| {
        let batch = first..queries.min(first + batch_size);
        let answers = Answers {
            values,
            positions,
            valid: &mut vec![0; batch.len().div_ceil(64)],
        };
        index.answer(&bounds.left[batch.clone()], &bounds.right[batch], answers)
    };
    match options.result {
        ResultKind::Value => {
            let mut all = vec![K::ZERO; queries];
            for_each_chunk(&mut all, batch_size, options.threads, |first, values| {
                answer(first, Some(values), None)
            })?;
            Ok(CollectedAnswers::Values(all))
        }
        ResultKind::Position => {
            let mut all = vec![0; queries];
            for_each_chunk(&mut all, batch_size, options.threads, |first, positions| {
                answer(first, None, Some(positions))
            })?;
            Ok(CollectedAnswers::Positions(all))
        }
    }
}

/// Runs `work` for all chunks of `items`, with the number of the first item, on several threads. Ends a thread with its
/// first error, and returns one of them.
fn for_each_chunk<T: Send>(
    items: &mut [T],
    chunk: usize,
    threads: usize,
    work: impl Fn(usize, &mut [T]) -> Result<(), EngineError> + Sync,
) -> Result<(), EngineError> {
    let chunks = Mutex::new(items.chunks_mut(chunk).enumerate());
    let run = || {
        loop {
            let next = chunks.lock().expect("no thread panics").next();
            match next {
                Some((number, items)) => work(number * chunk, items)?,
                None => return Ok(()),
            }
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let mut result = run();
        for other in others {
            result = result.and(other.join().expect("no thread panics"));
        }
        result
    })
}

/// Values that [`scan`] reads at most, in all.
const SCANNED_VALUES: usize = 1 << 30;

/// Answers the first queries, as many as 2^30 values in all allow, by reading their ranges.
pub fn scan<K: Key>(
    values: &[K],
    encode: impl Fn(K) -> K,
    bounds: BoundsRef<'_>,
    result: ResultKind,
) -> CollectedAnswers<K> {
    let mut budget = SCANNED_VALUES;
    let ranges = bounds.left.iter().zip(bounds.right);
    let ranges = ranges
        .map(|(l, r)| *l as usize..*r as usize + 1)
        .take_while(|range| {
            let is_within = budget >= range.len();
            budget = budget.saturating_sub(range.len());
            is_within
        });
    match result {
        ResultKind::Value => {
            let min = |range: Range<usize>| {
                let values = values[range].iter().copied();
                values
                    .min_by_key(|value| encode(*value))
                    .unwrap_or_default()
            };
            CollectedAnswers::Values(ranges.map(min).collect())
        }
        ResultKind::Position => {
            let argmin = |range: Range<usize>| {
                let first = range.start;
                let values = values[range].iter().enumerate();
                // Of equal ones the first is kept.
                let min = values.min_by_key(|(_, value)| encode(**value));
                min.map_or(0, |(offset, _)| (first + offset) as i64)
            };
            CollectedAnswers::Positions(ranges.map(argmin).collect())
        }
    }
}
