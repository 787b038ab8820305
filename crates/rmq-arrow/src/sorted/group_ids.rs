//! The group of each row of a build side, in input order.

use std::iter::zip;

use arrow::buffer::NullBuffer;
use bytemuck::Pod;
use datafusion_common::{Result, exec_err};
use datafusion_execution::memory_pool::MemoryReservation;

use crate::common::errors::engine_error;
use crate::sorted::id_table::{NO_GROUP, number};
use rmq_engine::RowIds;
use rmq_engine::cpu::{HugePageBuf, RowIdBuf};

/// The group id of each row, [`NO_GROUP`] for a row without a group. Rows sorted by their equality keys form long runs
/// of one group, which are run-length encoded: one id per row would be most of their memory. Other ids take 16 bits
/// while there are few groups.
#[derive(Debug)]
pub struct GroupIds {
    /// The maximum number of rows.
    rows: usize,
    len: usize,
    /// Runs at first; one id per row after these turned out to be short, in 32 bits after there turned out to be many
    /// groups.
    ids: RowIdBuf,
    /// A buffer for the ids of one batch.
    batch: Vec<u32>,
}

/// [`NO_GROUP`] in 16 bits. All other ids of 16 bits are below it.
pub const NARROW_NO_GROUP: u16 = u16::MAX;

/// Runs of fewer rows than this on average are not encoded.
const MIN_RUN: usize = 16;

/// The first runs may be short without effect.
const IGNORED_RUNS: usize = 64;

impl GroupIds {
    /// No rows yet, of at most `rows`.
    pub fn new(rows: usize) -> Self {
        Self {
            rows,
            len: 0,
            ids: RowIdBuf::Runs(vec![]),
            batch: vec![],
        }
    }

    /// `rows` rows with the id 0.
    pub fn of_one_group(rows: usize) -> Self {
        Self::of_groups(&[number(rows)])
    }

    /// The rows of one group after another, of which there are so many each.
    pub fn of_groups(counts: &[u32]) -> Self {
        let mut runs = vec![];
        for (group, count) in counts.iter().enumerate() {
            push(&mut runs, number(group), *count as usize);
        }
        let rows = counts.iter().map(|count| *count as usize).sum();
        Self {
            rows,
            len: rows,
            ids: RowIdBuf::Runs(runs),
            batch: vec![],
        }
    }

    /// Adds `rows` rows, whose ids `fill` writes.
    ///
    /// # Errors
    /// Those of `fill`; an execution error for more rows than the maximum.
    pub fn add(&mut self, rows: usize, fill: impl FnOnce(&mut [u32]) -> Result<()>) -> Result<()> {
        let first = self.len;
        if rows > self.rows - first {
            return exec_err!("a range join got more rows than it was told of");
        }
        self.len += rows;
        if let RowIdBuf::Wide(ids, len) = &mut self.ids {
            *len += rows;
            return fill(&mut ids[first..first + rows]);
        }
        self.batch.resize(rows, NO_GROUP);
        fill(&mut self.batch)?;
        if let RowIdBuf::Runs(runs) = &mut self.ids {
            let mut seen = first;
            let mut are_long = true;
            for run in self.batch.chunk_by(|id, next| id == next) {
                push(runs, run[0], run.len());
                seen += run.len();
                are_long = runs.len() <= IGNORED_RUNS + seen / MIN_RUN;
                if !are_long {
                    break;
                }
            }
            if are_long {
                return Ok(());
            }
            self.ids = decode(runs, self.rows)?;
        }
        if let RowIdBuf::Narrow(ids, len) = &mut self.ids {
            *len = self.len;
            if narrow(&self.batch, &mut ids[first..first + rows]) {
                return Ok(());
            }
            self.ids = RowIdBuf::Wide(widen(&ids[..first], self.rows)?, 0);
        }
        if let RowIdBuf::Wide(ids, len) = &mut self.ids {
            *len = self.len;
            ids[first..first + rows].copy_from_slice(&self.batch);
            self.batch = vec![];
        }
        Ok(())
    }

    /// Estimates the bytes that the ids take.
    pub fn bytes(&self) -> usize {
        self.ids.bytes() + self.batch.capacity() * size_of::<u32>()
    }

    /// Frees what only adding rows needs.
    pub fn finish(&mut self) {
        self.batch = vec![];
    }

    /// Removes the rows with a NULL from their groups. The memory that this takes is reserved in `memory`.
    ///
    /// # Errors
    /// If the memory is not available.
    pub fn leave_out(mut self, nulls: &NullBuffer, memory: &MemoryReservation) -> Result<Self> {
        if let RowIdBuf::Runs(runs) = &self.ids {
            memory.try_grow(self.rows * id_bytes(are_narrow(runs)))?;
            self.ids = decode(runs, self.rows)?;
        }
        match &mut self.ids {
            RowIdBuf::Runs(_) => {}
            RowIdBuf::Narrow(ids, _) => leave_out(ids, nulls, NARROW_NO_GROUP),
            RowIdBuf::Wide(ids, _) => leave_out(ids, nulls, NO_GROUP),
        }
        Ok(self)
    }

    /// The ids.
    pub fn ids(&self) -> RowIds<'_> {
        self.ids.ids()
    }

    /// The ids, by which rows are partitioned.
    pub fn into_ids(self) -> RowIdBuf {
        self.ids
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
fn decode(runs: &[(u32, u32)], rows: usize) -> Result<RowIdBuf> {
    /// Writes each run's id to its rows, in the width that `id` converts to.
    fn each<T: Pod>(
        runs: &[(u32, u32)],
        rows: usize,
        id: impl Fn(u32) -> T,
    ) -> Result<HugePageBuf<T>> {
        let mut ids = HugePageBuf::zeroed(rows).map_err(engine_error)?;
        let mut rest = &mut ids[..];
        for (group, rows) in runs {
            let (here, after) = rest.split_at_mut(*rows as usize);
            here.fill(id(*group));
            rest = after;
        }
        Ok(ids)
    }
    let len = runs.iter().map(|(_, rows)| *rows as usize).sum();
    Ok(if are_narrow(runs) {
        RowIdBuf::Narrow(each(runs, rows, to_narrow)?, len)
    } else {
        RowIdBuf::Wide(each(runs, rows, |id| id)?, len)
    })
}

/// The bytes of an id that is narrow or not.
pub fn id_bytes(is_narrow: bool) -> usize {
    if is_narrow {
        size_of::<u16>()
    } else {
        size_of::<u32>()
    }
}

/// Whether the ids of all runs fit into 16 bits.
fn are_narrow(runs: &[(u32, u32)]) -> bool {
    runs.iter().all(|(id, _)| is_narrow(*id))
}

/// Whether an id fits into 16 bits.
fn is_narrow(id: u32) -> bool {
    id < NARROW_NO_GROUP.into() || id == NO_GROUP
}

/// An id of 16 bits; [`NARROW_NO_GROUP`] for [`NO_GROUP`].
#[expect(
    clippy::cast_possible_truncation,
    reason = "the low bits of NO_GROUP are NARROW_NO_GROUP"
)]
pub fn to_narrow(id: u32) -> u16 {
    id as u16
}

/// Writes ids in 16 bits. Returns whether all fit.
fn narrow(ids: &[u32], to: &mut [u16]) -> bool {
    let mut all_fit = true;
    for (id, to) in zip(ids, to) {
        all_fit &= is_narrow(*id);
        *to = to_narrow(*id);
    }
    all_fit
}

/// Copies ids to 32 bits, with room for further rows.
fn widen(narrow: &[u16], rows: usize) -> Result<HugePageBuf<u32>> {
    let mut ids = HugePageBuf::zeroed(rows).map_err(engine_error)?;
    for (narrow, id) in zip(narrow, &mut ids[..]) {
        *id = match *narrow {
            NARROW_NO_GROUP => NO_GROUP,
            narrow => narrow.into(),
        };
    }
    Ok(ids)
}

/// Replaces the ids of rows with a NULL.
fn leave_out<T: Copy>(ids: &mut [T], nulls: &NullBuffer, no_group: T) {
    for (id, valid) in zip(ids, nulls) {
        if !valid {
            *id = no_group;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion_execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};

    use super::*;

    /// A name, and the group of each row.
    type Case = (&'static str, fn(usize) -> u32);

    #[test]
    fn encoded_and_plain_ids_are_the_same() {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let memory = MemoryConsumer::new("test").register(&pool);
        // Runs long enough to be encoded; too short from the start, or only later; not in order; with rows without a
        // group; with ids of more than 16 bits from the start, or only later.
        let cases: [Case; 8] = [
            ("long", |i| number(i / 100)),
            ("short", |i| number(i / 3)),
            ("short, wide", |i| number(65_000 + i / 3)),
            ("short, then wide", |i| match i {
                ..3000 => number(65_533 + i % 2),
                3100 => NO_GROUP,
                _ => number(65_535 + i % 2),
            }),
            ("short, of no group", |i| {
                if i % 3 > 0 { NO_GROUP } else { number(i) }
            }),
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
            let is_short = !matches!(ids.ids, RowIdBuf::Runs(_));
            assert_eq!(is_short, name.contains("short"), "{name}");
            let is_wide = matches!(ids.ids, RowIdBuf::Wide(..));
            assert_eq!(is_wide, name.contains("wide"), "{name}");
            let devices_take: Vec<u32> = match ids.ids() {
                RowIds::Wide(ids) => ids.to_vec(),
                RowIds::Narrow(ids) => ids
                    .iter()
                    .map(|id| match *id {
                        u16::MAX => NO_GROUP,
                        id => id.into(),
                    })
                    .collect(),
                RowIds::Runs(runs) => runs
                    .iter()
                    .flat_map(|(id, rows)| vec![*id; *rows as usize])
                    .collect(),
            };
            assert_eq!(devices_take, expected, "{name}");
            let rows = |ids: GroupIds| {
                let mut rows = vec![];
                let ids = ids.into_ids();
                let is_narrow = matches!(ids, RowIdBuf::Narrow(..));
                ids.ids().for_each_run(|id, run| {
                    let is_none = is_narrow && id == u32::from(NARROW_NO_GROUP);
                    let id = if is_none { NO_GROUP } else { id };
                    rows.extend(std::iter::repeat_n(id, run));
                });
                rows
            };
            assert_eq!(rows(ids), expected, "{name}");
            let nulls = (0..expected.len()).map(|i| i % 11 > 0);
            let ids = build().leave_out(&nulls.collect(), &memory).unwrap();
            let left = expected.iter().enumerate();
            let left = left.map(|(i, id)| if i % 11 > 0 { *id } else { NO_GROUP });
            assert_eq!(rows(ids), left.collect::<Vec<_>>(), "{name}");
            let mut full = GroupIds::new(3);
            full.add(3, |_| Ok(())).unwrap();
            assert!(full.add(1, |_| Ok(())).is_err());
        }
    }
}
