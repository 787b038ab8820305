//! The group of each row of a build side, in input order.

use arrow::buffer::NullBuffer;
use datafusion::common::{Result, exec_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::errors::engine_error;
use crate::sorted::id_table::{NO_GROUP, number};
use rmq_engine::cpu::{HugePageBuf, RowGroups};

/// The group id of each row, [`NO_GROUP`] for a row without a group. Rows sorted by their equality keys form long runs of one group,
/// which are run-length encoded: one id per row would be most of their memory.
#[derive(Debug)]
pub(crate) struct GroupIds {
    /// The maximum number of rows.
    rows: usize,
    len: usize,
    ids: Encoding,
}

#[derive(Debug)]
enum Encoding {
    Runs {
        /// The group and the number of rows of each run.
        runs: Vec<(u32, u32)>,
        /// A buffer for the ids of one batch.
        batch: Vec<u32>,
    },
    /// One id per row, after runs turned out to be short.
    Plain(HugePageBuf<u32>),
}

/// Runs of fewer rows than this on average are not encoded.
const MIN_RUN: usize = 16;

/// The first runs may be short without effect.
const IGNORED_RUNS: usize = 64;

impl GroupIds {
    /// No rows yet, of at most `rows`.
    pub(crate) fn new(rows: usize) -> Self {
        let (runs, batch) = (vec![], vec![]);
        Self {
            rows,
            len: 0,
            ids: Encoding::Runs { runs, batch },
        }
    }

    /// `rows` rows with the id 0.
    pub(crate) fn of_one_group(rows: usize) -> Self {
        let mut runs = vec![];
        push(&mut runs, 0, rows);
        let batch = vec![];
        Self {
            rows,
            len: rows,
            ids: Encoding::Runs { runs, batch },
        }
    }

    /// Adds `rows` rows, whose ids `fill` writes.
    ///
    /// # Errors
    /// Those of `fill`; an execution error for more rows than the maximum.
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
        match &mut self.ids {
            Encoding::Plain(ids) => fill(&mut ids[first..first + rows]),
            Encoding::Runs { runs, batch } => {
                batch.resize(rows, NO_GROUP);
                fill(batch)?;
                let mut seen = first;
                for run in batch.chunk_by(|id, next| id == next) {
                    push(runs, run[0], run.len());
                    seen += run.len();
                    if runs.len() > IGNORED_RUNS + seen / MIN_RUN {
                        let mut ids = decode(runs, self.rows)?;
                        ids[first..first + rows].copy_from_slice(batch);
                        self.ids = Encoding::Plain(ids);
                        return Ok(());
                    }
                }
                Ok(())
            }
        }
    }

    /// Estimates the bytes that the ids take.
    pub(crate) fn bytes(&self) -> usize {
        match &self.ids {
            Encoding::Runs { runs, batch } => {
                runs.capacity() * size_of::<(u32, u32)>() + batch.capacity() * size_of::<u32>()
            }
            Encoding::Plain(ids) => ids.bytes(),
        }
    }

    /// Removes the rows with a NULL from their groups. The memory that this takes is reserved in `memory`.
    ///
    /// # Errors
    /// If the memory is not available.
    pub(crate) fn leave_out(self, nulls: &NullBuffer, memory: &MemoryReservation) -> Result<Self> {
        let (rows, len) = (self.rows, self.len);
        let mut ids = self.into_plain(memory)?;
        for (id, valid) in ids.iter_mut().zip(nulls) {
            if !valid {
                *id = NO_GROUP;
            }
        }
        let ids = Encoding::Plain(ids);
        Ok(Self { rows, len, ids })
    }

    /// Returns the group of each row, which is that of its id in `groups`, and [`NO_GROUP`] for rows without one. The memory that this takes is
    /// reserved in `memory`.
    ///
    /// # Errors
    /// If the memory is not available.
    pub(crate) fn into_groups(
        self,
        groups: &[u32],
        memory: &MemoryReservation,
    ) -> Result<HugePageBuf<u32>> {
        let mut ids = self.into_plain(memory)?;
        for id in ids.iter_mut().filter(|id| **id != NO_GROUP) {
            *id = groups[*id as usize];
        }
        Ok(ids)
    }

    /// Decodes to one id per row. The memory that this takes is reserved in `memory`.
    fn into_plain(self, memory: &MemoryReservation) -> Result<HugePageBuf<u32>> {
        match self.ids {
            Encoding::Plain(ids) => Ok(ids),
            Encoding::Runs { runs, .. } => {
                memory.try_grow(self.rows * size_of::<u32>())?;
                decode(&runs, self.rows)
            }
        }
    }

    /// The ids in the form by which rows are partitioned.
    pub(crate) fn into_row_groups(self) -> RowGroups {
        match self.ids {
            Encoding::Plain(ids) => RowGroups::Each(ids, self.len),
            Encoding::Runs { runs, .. } => RowGroups::Runs(runs),
        }
    }
}

/// Appends rows of one group.
fn push(runs: &mut Vec<(u32, u32)>, group: u32, rows: usize) {
    let rows = number(rows);
    match runs.last_mut() {
        Some((last, of_last)) if *last == group => *of_last += rows,
        _ => runs.push((group, rows)),
    }
}

/// Decodes to one id per row, with room for further rows.
fn decode(runs: &[(u32, u32)], rows: usize) -> Result<HugePageBuf<u32>> {
    let mut ids = HugePageBuf::zeroed(rows).map_err(engine_error)?;
    let mut rest = &mut ids[..];
    for (group, rows) in runs {
        let (here, after) = rest.split_at_mut(*rows as usize);
        here.fill(*group);
        rest = after;
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};

    use super::*;

    /// A name, and the group of each row.
    type Case = (&'static str, fn(usize) -> u32);

    #[test]
    fn encoded_and_plain_ids_are_the_same() {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let memory = MemoryConsumer::new("test").register(&pool);
        // Runs long enough to be encoded; too short from the start, or only later; not in order; with rows without a group.
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
            let build = || {
                let mut ids = GroupIds::new(expected.len());
                for batch in expected.chunks(700) {
                    let fill = |to: &mut [u32]| {
                        to.copy_from_slice(batch);
                        Ok(())
                    };
                    ids.add(batch.len(), fill).unwrap();
                }
                ids
            };
            let ids = build();
            let is_short = matches!(ids.ids, Encoding::Plain(_));
            assert_eq!(is_short, name.contains("short"), "{name}");
            let groups = expected.iter().filter(|n| **n != NO_GROUP).max();
            let groups = groups.map_or(0, |last| *last as usize + 1);
            let rows = |ids: GroupIds| {
                let mut rows = vec![];
                let ids = ids.into_row_groups();
                ids.for_each_run(|id, run| rows.extend(std::iter::repeat_n(id, run)));
                rows
            };
            assert_eq!(rows(ids), expected, "{name}");
            let nulls = (0..expected.len()).map(|i| i % 11 > 0);
            let ids = build().leave_out(&nulls.collect(), &memory).unwrap();
            let left = expected.iter().enumerate();
            let left = left.map(|(i, id)| if i % 11 > 0 { *id } else { NO_GROUP });
            assert_eq!(rows(ids), left.collect::<Vec<_>>(), "{name}");
            // Groups numbered backwards.
            let numbers: Vec<u32> = (0..number(groups)).rev().collect();
            let of_groups = build().into_groups(&numbers, &memory).unwrap();
            for (i, group) in of_groups.iter().enumerate() {
                let id = expected[i] as usize;
                let expected = numbers.get(id).copied().unwrap_or(NO_GROUP);
                assert_eq!(*group, expected, "{name}, row {i}");
            }
            let one = GroupIds::of_one_group(70)
                .into_groups(&[5], &memory)
                .unwrap();
            assert!(one.iter().eq([5; 70].iter()));
            let mut full = GroupIds::new(3);
            full.add(3, |_| Ok(())).unwrap();
            assert!(full.add(1, |_| Ok(())).is_err());
        }
    }
}
