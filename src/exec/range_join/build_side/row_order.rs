//! The order in which the rows of a range are returned, where it is not that of the range key: `ORDER BY p.v DESC LIMIT
//! 3` over a range of `p.ts`.
//!
//! 1. The expressions of ORDER BY are one column of bytes (`OrderKeyUdf`), among the sorted columns of the build side.
//!    Of rows with equal bytes, the first in input order comes first, the last one if the order is descending.
//! 2. A range of few rows is sorted as it is, and so are longer ones until they have as many rows as the build side.
//! 3. From then on there are ranks: the number of each row in the order of all rows. No two are equal, and NULLs have
//!    ranks, too. The first `k` rows of a range are found by range minima of the ranks (`KeyIndex::list_smallest`):
//!    O(k log N) however long the range is.
//!
//! The ranks take O(N log N) once, as sorting the build side does.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow::array::{Array, AsArray, BinaryArray, UInt32Array};
use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::range_join::build_side::on_demand::OnDemand;
use rmq_arrow::common::ranges::Ranges;
use rmq_arrow::common::row_number::{row_number, row_numbers};
use rmq_arrow::index::key_index::KeyIndex;
use rmq_arrow::index::rank::rank;
use rmq_arrow::index::sort_keys::Chunks;
use rmq_arrow::range_agg::values::Values;
use rmq_engine::cpu::HugePageBuf;
use rmq_engine::{Extreme, RowList};

/// Ranges with at most this many rows are sorted as they are.
const SORTED_ROWS: usize = 64;

/// Ranges that have at most this many times as many rows as are wanted are sorted, too: a row takes two range minima.
const SORTED_SHARE: usize = 8;

/// The rows of a build side in the order of ORDER BY.
#[derive(Debug)]
pub(crate) struct RowOrder {
    /// The bytes by which rows are ordered, at each position.
    keys: Arc<Values>,
    /// The input row at each position; `None` if the positions are those of the input.
    rows: Option<Arc<HugePageBuf<u32>>>,
    /// The number of positions.
    len: usize,
    descending: bool,
    threads: usize,
    /// An empty reservation.
    memory: MemoryReservation,
    ranks: OnDemand<Ranks>,
}

/// The number of each row in the order of all.
#[derive(Debug)]
struct Ranks {
    by_position: UInt32Array,
    index: KeyIndex,
    /// Registers both.
    memory: MemoryReservation,
}

/// The first rows of several ranges.
#[derive(Debug, Default)]
pub(crate) struct FirstRows {
    pub(crate) positions: Vec<u32>,
    /// The end of the positions of each range.
    pub(crate) ends: Vec<usize>,
}

impl RowOrder {
    /// The order of `len` rows by these keys, and by the input rows at the positions. `memory` is an empty reservation.
    pub(crate) fn new(
        (keys, rows): (Arc<Values>, Option<Arc<HugePageBuf<u32>>>),
        len: usize,
        descending: bool,
        threads: usize,
        memory: MemoryReservation,
    ) -> Self {
        Self {
            keys,
            rows,
            len,
            descending,
            threads,
            memory,
            ranks: OnDemand::default(),
        }
    }

    /// The bytes by which rows are ordered.
    pub(crate) fn keys(&self) -> &Arc<Values> {
        &self.keys
    }

    /// Whether another order is of the same keys in the same direction.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.keys, &other.keys) && self.descending == other.descending
    }

    /// Bytes that are registered for the ranks, if they are built.
    pub(crate) fn bytes(&self) -> usize {
        self.ranks.get().map_or(0, |ranks| ranks.memory.size())
    }

    /// Whether the ranks should be built before the first rows of these ranges are searched. Counts the ranges.
    pub(crate) fn should_build(&self, ranges: &Ranges) -> bool {
        let lens = ranges
            .iter()
            .map(|(l, r)| usize::try_from(r - l + 1).unwrap_or(0));
        let long = lens.filter(|len| *len > SORTED_ROWS);
        let rows = long.fold(0, usize::saturating_add);
        rows > 0 && self.ranks.is_justified(rows, self.len) && !self.ranks.is_decided()
    }

    /// Builds the ranks, unless that has been tried. Blocks.
    pub(crate) fn build(&self, check: &dyn Fn() -> Result<()>) {
        self.ranks
            .build(&"ranks of rows", check, || self.try_build(check));
    }

    fn try_build(&self, check: &dyn Fn() -> Result<()>) -> Result<Option<Ranks>> {
        let Some(keys) = self.keys.whole() else {
            return Ok(None);
        };
        let memory = self.memory.new_empty();
        // The keys again, their order, their ranks, the next number of each, and the position of each row.
        let number_bytes = size_of::<u32>() * self.len;
        memory.try_grow(6 * number_bytes + self.keys.bytes())?;
        check()?;
        let of_keys = rank(&keys.slice(0, self.len))?.ranks;
        check()?;
        let ranks = unique(of_keys, self.rows.as_ref().map(|rows| &rows[..self.len]))?;
        let by_position = UInt32Array::from(ranks);
        let chunks = Chunks::borrowed(vec![Arc::new(by_position.clone())]);
        memory.try_resize(number_bytes + KeyIndex::estimate_on_cpu(&chunks, &DataType::UInt32))?;
        let extreme = if self.descending {
            Extreme::Max
        } else {
            Extreme::Min
        };
        let index = KeyIndex::on_cpu(&chunks, &DataType::UInt32, extreme, self.threads)?;
        memory.try_resize(number_bytes + index.memory_bytes())?;
        Ok(Some(Ranks {
            by_position,
            index,
            memory,
        }))
    }

    /// The first rows of each range, as many as stated.
    pub(crate) fn first_rows(&self, ranges: &[(Range<u32>, usize)]) -> Result<FirstRows> {
        let ranks = self.ranks.get();
        let is_sorted = |(range, count): &(Range<u32>, usize)| {
            ranks.is_none() || range.len() <= SORTED_ROWS.max(count.saturating_mul(SORTED_SHARE))
        };
        let (mut left, mut right, mut counts) = (vec![], vec![], vec![]);
        for searched in ranges.iter().filter(|searched| !is_sorted(searched)) {
            let (range, count) = searched;
            left.push(i64::from(range.start));
            right.push(i64::from(range.end) - 1);
            counts.push(*count);
        }
        let mut listed = RowList::default();
        if let Some(ranks) = ranks.filter(|_| !left.is_empty()) {
            let ranges = Ranges::new(left, right);
            let never = AtomicBool::new(false);
            let index = &ranks.index;
            index.list_smallest(&ranges, &counts, &never, &mut listed)?;
        }
        let mut start = 0;
        let mut ends = listed.ends.iter();
        let mut found = FirstRows::default();
        for range in ranges {
            if is_sorted(range) {
                let (range, count) = range;
                self.sort(range.clone(), *count, &mut found.positions)?;
            } else {
                let Some(end) = ends.next() else {
                    return internal_err!("the first rows of a range have not been listed");
                };
                let of_range = listed.positions[start..*end].iter().copied();
                found.positions.extend(row_numbers(of_range)?);
                start = *end;
            }
            found.ends.push(found.positions.len());
        }
        Ok(found)
    }

    /// Adds the first rows of a range, which it sorts.
    fn sort(&self, range: Range<u32>, count: usize, found: &mut Vec<u32>) -> Result<()> {
        let mut positions: Vec<u32> = range.clone().collect();
        if let Some(ranks) = self.ranks.get() {
            let ranks = ranks.by_position.values();
            let compare = |a: &u32, b: &u32| ranks[*a as usize].cmp(&ranks[*b as usize]);
            first(&mut positions, count, compare, self.descending);
        } else {
            let taken;
            let (keys, offset): (&BinaryArray, u32) = match self.keys.whole() {
                Some(keys) => (keys.as_binary(), 0),
                None => {
                    taken = self.keys.take(&UInt32Array::from(positions.clone()))?;
                    (taken.as_binary(), range.start)
                }
            };
            let key = |position: u32| keys.value((position - offset) as usize);
            let row = |position: u32| match &self.rows {
                Some(rows) => rows[position as usize],
                None => position,
            };
            let compare = |a: &u32, b: &u32| {
                let by_key = key(*a).cmp(key(*b));
                by_key.then_with(|| row(*a).cmp(&row(*b)))
            };
            first(&mut positions, count, compare, self.descending);
        }
        found.append(&mut positions);
        Ok(())
    }
}

/// Sorts the first `count` positions, and drops the others. No two are equal.
fn first(
    positions: &mut Vec<u32>,
    count: usize,
    compare: impl Fn(&u32, &u32) -> Ordering,
    descending: bool,
) {
    let compare = |a: &u32, b: &u32| {
        if descending {
            compare(b, a)
        } else {
            compare(a, b)
        }
    };
    if count == 0 {
        positions.clear();
    } else if count < positions.len() {
        positions.select_nth_unstable_by(count - 1, compare);
        positions.truncate(count);
    }
    positions.sort_unstable_by(compare);
}

/// The number of each position among all: by these ranks, then by the input row at the position.
fn unique(mut ranks: Vec<u32>, rows: Option<&[u32]>) -> Result<Vec<u32>> {
    let distinct = ranks.iter().max().map_or(0, |most| *most as usize + 1);
    // The next number of each rank, at first that of its first row.
    let mut next = vec![0_u32; distinct + 1];
    for rank in &ranks {
        next[*rank as usize + 1] += 1;
    }
    for rank in 1..next.len() {
        next[rank] += next[rank - 1];
    }
    let mut number = |rank: &mut u32| {
        let number = &mut next[*rank as usize];
        *rank = *number;
        *number += 1;
    };
    let Some(rows) = rows else {
        ranks.iter_mut().for_each(number);
        return Ok(ranks);
    };
    let most = rows.iter().max().map_or(0, |most| *most as usize + 1);
    let mut positions = vec![None; most];
    for (position, row) in rows.iter().enumerate() {
        positions[*row as usize] = Some(row_number(position)?);
    }
    for position in positions.into_iter().flatten() {
        number(&mut ranks[position as usize]);
    }
    Ok(ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ranks_are_numbered_by_input_rows() {
        let ranks = vec![1, 0, 1, 2, 0];
        assert_eq!(unique(ranks.clone(), None).unwrap(), [2, 0, 3, 4, 1]);
        // The input has a row that is at no position.
        let rows = [5, 3, 1, 0, 2];
        assert_eq!(unique(ranks, Some(&rows)).unwrap(), [3, 1, 2, 4, 0]);
        assert!(unique(vec![], Some(&[])).unwrap().is_empty());
    }
}
