//! Batches through an engine's interface, from memory of the host to memory of the host, on several threads.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rmq_engine::{Answers, EngineError, Key, RangeIndex};

use crate::args::Wanted;
use crate::workload::Bounds;

/// Queries of a batch on the CPU: as many rows as DataFusion's batches have.
pub const ON_CPU: usize = 1 << 13;

/// Queries of a batch on the GPU: two parts of it overlap.
pub const ON_GPU: usize = 1 << 19;

/// How a batch is put.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    pub wanted: Wanted,
    pub threads: usize,
    /// Queries that a thread asks at once.
    pub batch: usize,
}

impl Way {
    /// So that all threads have something to do where there are few queries.
    fn batch_of(self, queries: usize) -> usize {
        let share = queries.div_ceil(self.threads).next_multiple_of(64);
        self.batch.min(share).max(64)
    }

    /// Hands out pieces of `queries` to threads until none is left.
    fn pieces(
        self,
        queries: usize,
        work: impl Fn(Range<usize>) -> Result<(), EngineError> + Sync,
    ) -> Result<(), EngineError> {
        let batch = self.batch_of(queries);
        let next = AtomicUsize::new(0);
        let failure = Mutex::new(None);
        let run = || {
            loop {
                let first = next.fetch_add(batch, Ordering::Relaxed);
                if first >= queries {
                    return;
                }
                if let Err(error) = work(first..queries.min(first + batch)) {
                    next.store(queries, Ordering::Relaxed);
                    *failure.lock().expect("no thread panics") = Some(error);
                }
            }
        };
        let needed = self.threads.min(queries.div_ceil(batch));
        std::thread::scope(|scope| {
            for _ in 1..needed {
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

/// Asks all queries; each batch's answers land in memory that the index gives for it, as in a query of DataFusion.
pub fn ask<K: Key>(
    index: &dyn RangeIndex<K>,
    bounds: Bounds<'_>,
    way: Way,
) -> Result<(), EngineError> {
    way.pieces(bounds.len(), |piece| {
        let (value, position) = (way.wanted == Wanted::Value, way.wanted == Wanted::Position);
        let mut outputs = index.outputs(piece.len(), value, position);
        let (left, right) = (&bounds.left[piece.clone()], &bounds.right[piece]);
        index.answer(left, right, outputs.answers())
    })
}

/// What an engine answered.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<K> {
    Values(Vec<K>),
    Positions(Vec<i64>),
}

impl<K: Key> Found<K> {
    /// How many differ from the others, of as many as both have.
    pub fn differ(&self, other: &Self) -> u64 {
        fn count<T: PartialEq>(a: &[T], b: &[T]) -> u64 {
            a.iter().zip(b).filter(|(a, b)| a != b).count() as u64
        }
        match (self, other) {
            (Self::Values(a), Self::Values(b)) => count(a, b),
            (Self::Positions(a), Self::Positions(b)) => count(a, b),
            _ => unreachable!("both were asked the same"),
        }
    }
}

/// Asks all queries and keeps the answers.
pub fn collect<K: Key>(
    index: &dyn RangeIndex<K>,
    bounds: Bounds<'_>,
    way: Way,
) -> Result<Found<K>, EngineError> {
    let queries = bounds.len();
    let mut found = match way.wanted {
        Wanted::Value => Found::Values(vec![K::ZERO; queries]),
        Wanted::Position => Found::Positions(vec![0; queries]),
    };
    let mut first = 0;
    // A batch after another: correctness is not timed.
    let batch = way.batch.max(1 << 16);
    while first < queries {
        let piece = first..queries.min(first + batch);
        let mut valid = vec![0; piece.len().div_ceil(64)];
        let (left, right) = (&bounds.left[piece.clone()], &bounds.right[piece.clone()]);
        let (values, positions) = match &mut found {
            Found::Values(values) => (Some(&mut values[piece]), None),
            Found::Positions(positions) => (None, Some(&mut positions[piece])),
        };
        let answers = Answers {
            values,
            positions,
            valid: &mut valid,
        };
        index.answer(left, right, answers)?;
        first += batch;
    }
    Ok(found)
}

/// Values that scans for comparison may read in all.
const SCANNED: usize = 1 << 30;

/// The first answers again, by reading their ranges from end to end.
pub fn scan<K: Key>(
    values: &[K],
    encode: impl Fn(K) -> K,
    bounds: Bounds<'_>,
    wanted: Wanted,
) -> Found<K> {
    let mut left = SCANNED;
    let ranges = bounds.left.iter().zip(bounds.right);
    let ranges = ranges
        .map(|(l, r)| *l as usize..*r as usize + 1)
        .take_while(|range| {
            let enough = left >= range.len();
            left = left.saturating_sub(range.len());
            enough
        });
    match wanted {
        Wanted::Value => {
            let least = |range: Range<usize>| {
                let of = values[range].iter().copied();
                of.min_by_key(|value| encode(*value)).unwrap_or_default()
            };
            Found::Values(ranges.map(least).collect())
        }
        Wanted::Position => {
            let least = |range: Range<usize>| {
                let first = range.start;
                let of = values[range].iter().enumerate();
                // Of equal ones the first is kept.
                let at = of.min_by_key(|(_, value)| encode(**value));
                at.map_or(0, |(at, _)| (first + at) as i64)
            };
            Found::Positions(ranges.map(least).collect())
        }
    }
}
