//! Rows sorted by equality keys and a range key, and the search for those between bounds.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::row::Rows;
use datafusion_common::{Result, exec_err, internal_err};

use crate::common::errors::engine_error;
use crate::sorted::groups::Groups;
use crate::sorted::order_keys::OrderKeys;
use rmq_engine::cpu::{CpuKeySearch, HugePageBuf, SearchKey};
use rmq_engine::{CandidateRanges, Column, Comparison};

/// Rows ordered by group (their equality keys), and within a group by range key. Rows with a NULL key match nothing and
/// are not included.
#[derive(Debug)]
pub struct SortedRows {
    groups: Option<Groups>,
    /// The first position of each group, and the end of the last.
    starts: Vec<usize>,
    keys: RangeKeys,
}

/// The range keys of all rows, by group.
#[derive(Debug)]
pub enum RangeKeys {
    /// Of 32 bits.
    W32(CpuKeySearch<u32>),
    /// Of 64 bits.
    W64(CpuKeySearch<u64>),
    /// Of 128 bits.
    W128(CpuKeySearch<u128>),
    /// Keys in input order, and the row at each position; `None` if the rows came sorted.
    Bytes(Rows, Option<Arc<HugePageBuf<u32>>>),
}

impl SortedRows {
    /// Rows of these groups (`None`: of one), whose first positions and the end of the last are `starts`.
    pub fn new(groups: Option<Groups>, starts: Vec<usize>, keys: RangeKeys) -> Self {
        Self {
            groups,
            starts,
            keys,
        }
    }

    /// Number of rows that can match.
    pub fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The first position of each group, and the end of the last. There may be groups without rows.
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Approximate bytes of the keys and the groups, without the order, which is shared.
    pub fn bytes(&self) -> usize {
        let keys = match &self.keys {
            RangeKeys::W32(keys) => keys.memory_bytes(),
            RangeKeys::W64(keys) => keys.memory_bytes(),
            RangeKeys::W128(keys) => keys.memory_bytes(),
            RangeKeys::Bytes(rows, _) => rows.size(),
        };
        let groups = self.groups.as_ref().map_or(0, Groups::bytes);
        keys + groups + size_of_val(self.starts.as_slice())
    }

    /// Returns the candidates of `rows` probe rows before any bound: the positions of the row's group, given its
    /// equality keys.
    ///
    /// # Errors
    /// An execution error for equality keys of other types than the groups have.
    pub fn candidates(&self, rows: usize, equal: &[ArrayRef]) -> Result<CandidateRanges> {
        let Some(groups) = &self.groups else {
            return Ok(CandidateRanges::all(rows, self.len()));
        };
        let groups = groups.find(equal, rows)?;
        Ok(CandidateRanges::of_groups(groups, &self.starts))
    }

    /// Intersects each row's candidates with the positions whose key compares so with each of the row's bounds; a NULL
    /// bound leaves none. Bounds that are searched together share their cache misses.
    ///
    /// # Errors
    /// An execution error for bounds of another type than the key.
    pub fn narrow(
        &self,
        candidates: &mut CandidateRanges,
        bounds: &[(Comparison, ArrayRef)],
    ) -> Result<()> {
        let mut targets = vec![];
        for (comparison, bounds) in bounds {
            let (keys, nulls) = OrderKeys::from_values(bounds)?;
            if let Some(nulls) = nulls {
                candidates.retain_rows(&nulls);
            }
            targets.push((*comparison, keys));
        }
        match &self.keys {
            RangeKeys::W32(keys) => narrow(keys, candidates, &targets, |keys| match keys {
                OrderKeys::W32(columns) => Some(columns),
                _ => None,
            }),
            RangeKeys::W64(keys) => narrow(keys, candidates, &targets, |keys| match keys {
                OrderKeys::W64(columns) => Some(columns),
                _ => None,
            }),
            RangeKeys::W128(keys) => narrow(keys, candidates, &targets, |keys| match keys {
                OrderKeys::W128(columns) => Some(columns),
                _ => None,
            }),
            RangeKeys::Bytes(keys, order) => {
                for (comparison, targets) in &targets {
                    let OrderKeys::Bytes(_, targets) = targets else {
                        return other_type();
                    };
                    for row in 0..candidates.rows() {
                        let Some(range) = candidates.get(row) else {
                            continue;
                        };
                        // Rows of two converters of one type: their bytes compare.
                        let target = targets.row(row).data();
                        let is_before_equal = comparison.is_before_equal();
                        let position = partition_point(range, is_before_equal, |position| {
                            let row = row_at(order.as_ref(), position);
                            keys.row(row).data().cmp(target)
                        });
                        candidates.intersect(row, *comparison, position);
                    }
                }
                Ok(())
            }
        }
    }

    /// Returns the first position in `from..=at` whose key equals that at `at`.
    pub fn first_equal(&self, from: usize, at: usize) -> usize {
        match &self.keys {
            RangeKeys::W32(keys) => first_equal(from, at, |position| keys.key(position)),
            RangeKeys::W64(keys) => first_equal(from, at, |position| keys.key(position)),
            RangeKeys::W128(keys) => first_equal(from, at, |position| keys.key(position)),
            RangeKeys::Bytes(keys, order) => first_equal(from, at, |position| {
                keys.row(row_at(order.as_ref(), position))
            }),
        }
    }
}

/// Returns the row at a position.
pub fn row_at(order: Option<&Arc<HugePageBuf<u32>>>, position: usize) -> usize {
    order.map_or(position, |order| order[position] as usize)
}

/// Intersects candidates with the rows whose key compares so with each bound. `columns` tells those of this width; the
/// bounds of a batch are one column.
fn narrow<K: SearchKey>(
    keys: &CpuKeySearch<K>,
    candidates: &mut CandidateRanges,
    bounds: &[(Comparison, OrderKeys)],
    columns: impl Fn(&OrderKeys) -> Option<&Vec<Column<K>>>,
) -> Result<()> {
    let mut of_width = vec![];
    for (comparison, bounds) in bounds {
        match columns(bounds).map(Vec::as_slice) {
            Some([bounds]) => of_width.push((*comparison, bounds)),
            Some(_) => return internal_err!("the bounds of one batch are in several columns"),
            None => return other_type(),
        }
    }
    K::narrow(keys, candidates, &of_width).map_err(engine_error)
}

fn other_type() -> Result<()> {
    exec_err!("a bound of a range join has another type than its key")
}

/// Returns the first position of a range whose key is not below the bound or, unless `before_equal`, above it.
fn partition_point(
    (start, end): (usize, usize),
    before_equal: bool,
    compare: impl Fn(usize) -> Ordering,
) -> usize {
    let is_before = |position| match compare(position) {
        Ordering::Less => true,
        Ordering::Equal => !before_equal,
        Ordering::Greater => false,
    };
    let (mut low, mut high) = (start, end);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Returns the first position in `from..=at` whose key equals that at `at`.
fn first_equal<K: Ord>(from: usize, at: usize, key: impl Fn(usize) -> K) -> usize {
    let last = key(at);
    if from == at || key(at - 1) != last {
        return at;
    }
    partition_point((from, at), true, |position| key(position).cmp(&last))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, Int64Array, StringArray};
    use datafusion_execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};

    use super::*;
    use crate::common::ranges::Ranges;
    use crate::common::workers::Workers;
    use crate::sorted::group_sort::SortContext;
    use crate::sorted::sort_rows::{RowsPart, sort_rows};

    #[test]
    #[expect(clippy::too_many_lines, reason = "one loop over all kinds of keys")]
    fn search_finds_the_rows_that_a_scan_finds() {
        let random = &mut fastrand::Rng::with_seed(88_172_645_463_325_252);
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let memory = MemoryConsumer::new("test").register(&pool);
        let context = SortContext {
            memory: &memory,
            workers: Workers::new(2, &|| Ok(())),
        };
        for round in 0..200 {
            let rows = usize::try_from(random.u64(..60)).expect("a small number");
            let spread = [3, 20, 1_000_000][round % 3];
            let maybe = |random: &mut fastrand::Rng, spread| {
                (random.u64(..8) > 0).then(|| random.u64(..spread).cast_signed() - 2)
            };
            let keys: Vec<Option<i64>> = (0..rows).map(|_| maybe(random, spread)).collect();
            let equal: Vec<Option<i64>> = (0..rows).map(|_| maybe(random, 4)).collect();
            let rows_queried: Vec<[Option<i64>; 3]> = (0..40)
                .map(|_| {
                    [
                        maybe(random, 4),
                        maybe(random, spread),
                        maybe(random, spread),
                    ]
                })
                .collect();
            let column = |c: usize| {
                Arc::new(rows_queried.iter().map(|a| a[c]).collect::<Int64Array>()) as ArrayRef
            };
            let as_text = |values: &ArrayRef| {
                // Keeps the order of these numbers.
                let texts = values
                    .as_any()
                    .downcast_ref::<Int64Array>()
                    .expect("BIGINT");
                let texts = texts.iter().map(|v| v.map(|v| format!("{:08}", v + 2)));
                Arc::new(texts.collect::<StringArray>()) as ArrayRef
            };
            let key: ArrayRef = Arc::new(Int64Array::from(keys.clone()));
            let groups: ArrayRef = Arc::new(Int64Array::from(equal.clone()));
            for (grouped, text) in [(false, false), (true, false), (false, true), (true, true)] {
                let kind = |a: ArrayRef| if text { as_text(&a) } else { a };
                let columns = if grouped {
                    vec![kind(groups.clone())]
                } else {
                    vec![]
                };
                let key = kind(key.clone());
                let types: Vec<_> = columns.iter().map(|c| c.data_type().clone()).collect();
                // Some in one part, some in two.
                let mut parts: Vec<RowsPart> = vec![];
                for (from, to) in [(0, rows / 3), (rows / 3, rows)] {
                    let slice = |a: &ArrayRef| a.slice(from, to - from);
                    let equal: Vec<_> = columns.iter().map(slice).collect();
                    if parts.is_empty() || round % 2 == 0 && !text {
                        parts.push(RowsPart::try_new(rows, &types, key.data_type()).unwrap());
                    }
                    let part = parts.last_mut().unwrap();
                    part.add(&equal, &slice(&key)).unwrap();
                }
                let (sorted, permutation) = sort_rows(parts, context).unwrap();
                let order = permutation.order(context.workers).unwrap();
                let row_at = |position| row_at(order, position);
                let order: Vec<usize> = (0..sorted.len()).map(row_at).collect();
                for lower in [Comparison::Above, Comparison::AtLeast] {
                    for upper in [Comparison::Below, Comparison::AtMost] {
                        let bounds = [(lower, kind(column(1))), (upper, kind(column(2)))];
                        let row_groups = if grouped {
                            vec![kind(column(0))]
                        } else {
                            vec![]
                        };
                        let mut candidates = sorted.candidates(40, &row_groups).unwrap();
                        // Together, or one after the other.
                        let at_once = 1 + random.usize(..2);
                        for bounds in bounds.chunks(at_once) {
                            sorted.narrow(&mut candidates, bounds).unwrap();
                        }
                        let ranges = Ranges::from(candidates);
                        for (i, [group, low, high]) in rows_queried.iter().enumerate() {
                            let within = |row: &usize| {
                                let (Some(k), Some(low), Some(high)) = (keys[*row], low, high)
                                else {
                                    return false;
                                };
                                let from = if lower.is_strict() {
                                    k > *low
                                } else {
                                    k >= *low
                                };
                                let to = if upper.is_strict() {
                                    k < *high
                                } else {
                                    k <= *high
                                };
                                let same = equal[*row].is_some() && equal[*row] == *group;
                                from && to && (same || !grouped)
                            };
                            let mut expected: Vec<usize> = (0..rows).filter(within).collect();
                            expected.sort_by_key(|row| (keys[*row], *row));
                            let (l, r) = (ranges.left()[i], ranges.right()[i]);
                            let found: Vec<usize> = (l..=r)
                                .map(|p| order[usize::try_from(p).unwrap()])
                                .collect();
                            assert_eq!(found, expected, "round {round}, {lower:?}, {upper:?}");
                        }
                    }
                }
            }
        }
    }
}
