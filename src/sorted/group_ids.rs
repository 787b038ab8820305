//! The group of each row of a build side, as the rows come.

use crate::common::errors::engine_error;
use arrow::buffer::NullBuffer;
use datafusion::common::{Result, exec_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::sorted::groups::NO_GROUP;
use crate::sorted::permutation::number;
use rmq_engine::cpu::Numbers;

/// The number of each row's group, [`NO_GROUP`] for a row of none. Rows sorted by their equality keys come in long runs of one group,
/// which are kept as such: one number a row would be most of the memory that they take.
#[derive(Debug)]
pub(crate) struct GroupIds {
    /// How many rows there are to be, at most.
    rows: usize,
    len: usize,
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    Runs {
        runs: Vec<Run>,
        /// The numbers of one batch.
        batch: Vec<u32>,
    },
    /// One a row, as runs were short.
    Each(Numbers<u32>),
}

/// Rows of one group, one after another.
#[derive(Debug, Clone, Copy)]
struct Run {
    number: u32,
    rows: u32,
}

/// Runs of fewer rows than this, on the average, are kept row by row.
const SHORT: usize = 16;

/// So many runs may be short: it takes some rows to tell.
const SOME: usize = 64;

impl GroupIds {
    /// None yet, of so many rows at most.
    pub(crate) fn new(rows: usize) -> Self {
        let (runs, batch) = (vec![], vec![]);
        Self {
            rows,
            len: 0,
            kept: Kept::Runs { runs, batch },
        }
    }

    /// Adds so many rows, whose numbers `fill` writes.
    pub(crate) fn add(
        &mut self,
        rows: usize,
        fill: impl FnOnce(&mut [u32]) -> Result<()>,
    ) -> Result<()> {
        let first = self.len;
        if rows > self.rows - first {
            return exec_err!("a range join got more rows than it was told of");
        }
        self.len += rows;
        match &mut self.kept {
            Kept::Each(numbers) => fill(&mut numbers[first..first + rows]),
            Kept::Runs { runs, batch } => {
                batch.resize(rows, NO_GROUP);
                fill(batch)?;
                let mut seen = first;
                for run in batch.chunk_by(|number, next| number == next) {
                    push(runs, run[0], run.len());
                    seen += run.len();
                    if runs.len() > SOME + seen / SHORT {
                        let mut numbers = spread(runs, self.rows)?;
                        numbers[first..first + rows].copy_from_slice(batch);
                        self.kept = Kept::Each(numbers);
                        return Ok(());
                    }
                }
                Ok(())
            }
        }
    }

    /// About how many bytes they take.
    pub(crate) fn bytes(&self) -> usize {
        match &self.kept {
            Kept::Runs { runs, batch } => {
                runs.capacity() * size_of::<Run>() + batch.capacity() * size_of::<u32>()
            }
            Kept::Each(numbers) => numbers.bytes(),
        }
    }

    /// How many rows each of so many groups has, and whether the rows come in the order of their groups, each of them in one.
    pub(crate) fn counts(&self, groups: usize) -> (Vec<usize>, bool) {
        let mut counts = vec![0; groups];
        let (mut ordered, mut last) = (true, 0);
        let mut count = |number: u32, rows: usize| {
            ordered &= number >= last && number != NO_GROUP;
            last = number;
            if number != NO_GROUP {
                counts[number as usize] += rows;
            }
        };
        match &self.kept {
            Kept::Runs { runs, .. } => {
                for run in runs {
                    count(run.number, run.rows as usize);
                }
            }
            Kept::Each(numbers) => {
                // Rows of one group may come together all the same: each such run is counted at once.
                let runs = numbers[..self.len].chunk_by(|number, next| number == next);
                runs.for_each(|run| count(run[0], run.len()));
            }
        }
        (counts, ordered)
    }

    /// These, but no group where there is a NULL. The memory that takes is registered with `memory`.
    pub(crate) fn leave_out(self, nulls: &NullBuffer, memory: &MemoryReservation) -> Result<Self> {
        let (rows, len) = (self.rows, self.len);
        let mut numbers = self.into_each(memory)?;
        for (number, valid) in numbers.iter_mut().zip(nulls) {
            if !valid {
                *number = NO_GROUP;
            }
        }
        let kept = Kept::Each(numbers);
        Ok(Self { rows, len, kept })
    }

    /// One number a row. The memory that takes is registered with `memory`.
    pub(crate) fn into_each(self, memory: &MemoryReservation) -> Result<Numbers<u32>> {
        match self.kept {
            Kept::Each(numbers) => Ok(numbers),
            Kept::Runs { runs, .. } => {
                memory.try_grow(self.rows * size_of::<u32>())?;
                spread(&runs, self.rows)
            }
        }
    }
}

/// Adds rows of one group.
fn push(runs: &mut Vec<Run>, group: u32, rows: usize) {
    let rows = number(rows);
    match runs.last_mut() {
        Some(last) if last.number == group => last.rows += rows,
        _ => runs.push(Run {
            number: group,
            rows,
        }),
    }
}

/// One number a row, and room for those of further rows.
fn spread(runs: &[Run], rows: usize) -> Result<Numbers<u32>> {
    let mut numbers = Numbers::zeroed(rows).map_err(engine_error)?;
    let mut rest = &mut numbers[..];
    for run in runs {
        let (here, after) = rest.split_at_mut(run.rows as usize);
        here.fill(run.number);
        rest = after;
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};

    use super::*;

    /// What rows are like, and the number of each.
    type Case = (&'static str, fn(usize) -> u32);

    #[test]
    fn runs_and_single_rows_are_the_same_numbers() {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let memory = MemoryConsumer::new("test").register(&pool);
        // Runs so long that they are kept; so short that they are not, at once and only later; in no order; with rows of no group.
        let cases: [Case; 5] = [
            ("long", |i| number(i / 100)),
            ("short", |i| number(i / 3)),
            ("long, then short", |i| {
                number((i / 100).max(i.saturating_sub(4000)))
            }),
            ("in no order", |i| number(i / 50 % 7)),
            (
                "of no group",
                |i| if i / 90 % 5 == 3 { NO_GROUP } else { 0 },
            ),
        ];
        for (name, of) in cases {
            let expected: Vec<u32> = (0..6000).map(of).collect();
            let mut numbers = GroupIds::new(expected.len());
            for batch in expected.chunks(700) {
                let fill = |to: &mut [u32]| {
                    to.copy_from_slice(batch);
                    Ok(())
                };
                numbers.add(batch.len(), fill).unwrap();
            }
            let is_short = matches!(numbers.kept, Kept::Each(_));
            assert_eq!(is_short, name.contains("short"), "{name}");
            let groups = expected.iter().filter(|n| **n != NO_GROUP).max();
            let groups = groups.map_or(0, |last| *last as usize + 1);
            let (counts, ordered) = numbers.counts(groups);
            for (group, count) in counts.iter().enumerate() {
                let all = expected.iter().filter(|n| **n as usize == group);
                assert_eq!(*count, all.count(), "{name}, group {group}");
            }
            let is_ordered = expected.is_sorted() && !expected.contains(&NO_GROUP);
            assert_eq!(ordered, is_ordered, "{name}");
            let nulls = (0..expected.len()).map(|i| i % 11 > 0);
            let nulls: NullBuffer = nulls.collect();
            let left = numbers.leave_out(&nulls, &memory).unwrap();
            let left = left.into_each(&memory).unwrap();
            for (i, number) in left.iter().enumerate() {
                let there = if i % 11 > 0 { expected[i] } else { NO_GROUP };
                assert_eq!(*number, there, "{name}, row {i}");
            }
            let mut full = GroupIds::new(3);
            full.add(3, |_| Ok(())).unwrap();
            assert!(full.add(1, |_| Ok(())).is_err());
        }
    }
}
