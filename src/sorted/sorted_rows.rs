//! Rows sorted by equality keys and a range key: which of them lie between two bounds.

use crate::common::errors::engine_error;
use std::cmp::Ordering;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, NullBufferBuilder};
use arrow::datatypes::DataType;
use arrow::row::Rows;
use datafusion::common::{Result, exec_err};

use crate::index::devices::DeviceEngine;
use crate::sorted::bucket_sort::{STEP, SortContext, sort_in_steps};
use crate::sorted::device_keys::DeviceKeys;
use crate::sorted::group_ids::GroupIds;
use crate::sorted::groups::Groups;
use crate::sorted::order_keys::OrderKeys;
use crate::sorted::permutation::{RowPermutation, number};
use rmq_engine::cpu::{CpuKeySearch, HugePageBuf, SearchKey};
use rmq_engine::{
    BoundHints, CandidateRanges, Column, Comparison, Encoding, EngineError, Key, KeySearch,
    LastFound, SortedKeys,
};

/// Rows in the order of their groups of equal keys, within a group in that of the range key. Rows with a NULL among
/// their keys match nothing and are left out.
#[derive(Debug)]
pub(crate) struct SortedRows {
    groups: Option<Groups>,
    /// Where each group begins, and the end of the last.
    starts: Vec<usize>,
    keys: RangeKeys,
}

/// The range keys of all rows, by group.
#[derive(Debug)]
enum RangeKeys {
    W32(CpuKeySearch<u32>),
    W64(CpuKeySearch<u64>),
    W128(CpuKeySearch<u128>),
    /// Keys in input order, and the row at each position; `None` if the rows came sorted.
    Bytes(Rows, Option<Arc<Vec<u32>>>),
}

/// Rows that come to be sorted, a batch at a time. Of their keys only what sorts and finds them is kept.
#[derive(Debug)]
pub(crate) struct Unsorted {
    groups: Option<Groups>,
    /// The group of each row, if there are groups.
    numbers: GroupIds,
    keys: OrderKeys,
    key_bytes: usize,
    /// Which rows have a range key.
    nulls: NullBufferBuilder,
}

impl Unsorted {
    /// No rows yet, but memory for so many, of equality keys and a range key of these types.
    ///
    /// # Errors
    /// An execution error for 2^32 rows or more.
    pub(crate) fn try_new(rows: usize, equal: &[DataType], key: &DataType) -> Result<Self> {
        if u32::try_from(rows).is_err() {
            return exec_err!(
                "a range join takes at most {} rows on the side that is searched, not {rows}",
                u32::MAX
            );
        }
        let groups = (!equal.is_empty()).then(|| Groups::try_new(equal));
        Ok(Self {
            numbers: GroupIds::new(rows),
            groups: groups.transpose()?,
            keys: OrderKeys::try_new(key)?,
            key_bytes: 0,
            nulls: NullBufferBuilder::new(0),
        })
    }

    /// Adds rows, no more in all than there is memory for, by their equality keys and their range key.
    pub(crate) fn add(&mut self, equal: &[ArrayRef], key: &ArrayRef) -> Result<()> {
        if let Some(groups) = &mut self.groups {
            let fill = |numbers: &mut [u32]| groups.add(equal, numbers);
            self.numbers.add(key.len(), fill)?;
        }
        self.key_bytes += self.keys.append(key)?;
        match key.logical_nulls() {
            Some(nulls) => self.nulls.append_buffer(&nulls),
            None => self.nulls.append_n_non_nulls(key.len()),
        }
        Ok(())
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.nulls.len()
    }

    /// About how many bytes the rows take, keys that are Arrow's memory included.
    pub(crate) fn bytes(&self) -> usize {
        let groups = self.groups.as_ref().map_or(0, Groups::bytes);
        groups + self.numbers.bytes() + self.key_bytes
    }

    /// The rows in their order, and where each went. What that takes beside these rows is registered with the context's memory, and is
    /// so still when this ends.
    pub(crate) fn sort(mut self, context: SortContext) -> Result<(SortedRows, RowPermutation)> {
        let memory = context.memory;
        let rows = self.len();
        let nulls = self.nulls.finish().filter(|n| n.null_count() > 0);
        let (places, starts) = match (&self.groups, nulls) {
            (None, None) => (RowPermutation::as_they_came(rows), vec![0, rows]),
            (None, Some(nulls)) => {
                memory.try_grow(rows * size_of::<u32>())?;
                let places = RowPermutation::of_valid(nulls.iter())?;
                let starts = vec![0, places.len()];
                (places, starts)
            }
            (Some(groups), nulls) => {
                if let Some(nulls) = nulls {
                    self.numbers = self.numbers.leave_out(&nulls, memory)?;
                }
                memory.try_grow((groups.len() + 1) * size_of::<usize>())?;
                RowPermutation::by_group(self.numbers, groups.len(), context)?
            }
        };
        let (keys, places) = match self.keys {
            OrderKeys::W32(columns) => {
                let (keys, places) = sort(columns, &starts, places, context)?;
                (RangeKeys::W32(keys), places)
            }
            OrderKeys::W64(columns) => {
                let (keys, places) = sort(columns, &starts, places, context)?;
                (RangeKeys::W64(keys), places)
            }
            OrderKeys::W128(columns) => {
                let (keys, places) = sort(columns, &starts, places, context)?;
                (RangeKeys::W128(keys), places)
            }
            OrderKeys::Bytes(_, keys) => {
                let places = sort_bytes(&keys, &starts, places, context)?;
                let order = places.order().cloned();
                (RangeKeys::Bytes(keys, order), places)
            }
        };
        let rows = SortedRows {
            groups: self.groups,
            starts,
            keys,
        };
        Ok((rows, places))
    }
}

impl SortedRows {
    /// Number of rows that can match.
    pub(crate) fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// About how many bytes the keys and the groups take, an order that is shared not included.
    pub(crate) fn bytes(&self) -> usize {
        let keys = match &self.keys {
            RangeKeys::W32(keys) => keys.memory_bytes(),
            RangeKeys::W64(keys) => keys.memory_bytes(),
            RangeKeys::W128(keys) => keys.memory_bytes(),
            RangeKeys::Bytes(rows, _) => rows.size(),
        };
        let groups = self.groups.as_ref().map_or(0, Groups::bytes);
        keys + groups + size_of_val(self.starts.as_slice())
    }

    /// For each of `rows` rows, the positions of its group: what bounds are found among.
    pub(crate) fn start(&self, rows: usize, equal: &[ArrayRef]) -> Result<CandidateRanges> {
        let Some(groups) = &self.groups else {
            return Ok(CandidateRanges::all(rows, self.len()));
        };
        Ok(CandidateRanges::of_groups(
            groups.find(equal)?,
            &self.starts,
        ))
    }

    /// Leaves the positions whose key compares so with the bound of each row. The bound is one of several; `last_found` knows by its
    /// number what was found for it before.
    pub(crate) fn narrow(
        &self,
        candidates: &mut CandidateRanges,
        (number, comparison): (usize, Comparison),
        bounds: &ArrayRef,
        last_found: &mut LastFound,
    ) -> Result<()> {
        let (targets, nulls) = OrderKeys::of(bounds)?;
        if let Some(nulls) = nulls {
            candidates.retain_rows(&nulls);
        }
        let hints = last_found.of_bound(number);
        match (&self.keys, targets) {
            (RangeKeys::W32(keys), OrderKeys::W32(bounds)) => {
                narrow(keys, candidates, comparison, &bounds, hints)?;
            }
            (RangeKeys::W64(keys), OrderKeys::W64(bounds)) => {
                narrow(keys, candidates, comparison, &bounds, hints)?;
            }
            (RangeKeys::W128(keys), OrderKeys::W128(bounds)) => {
                narrow(keys, candidates, comparison, &bounds, hints)?;
            }
            (RangeKeys::Bytes(keys, order), OrderKeys::Bytes(_, targets)) => {
                for row in 0..bounds.len() {
                    let Some(range) = candidates.get(row) else {
                        continue;
                    };
                    // Rows of two converters of one type: their bytes compare.
                    let target = targets.row(row).data();
                    let place = split(range, comparison.is_before_equal(), |place| {
                        keys.row(row_at(order.as_ref(), place)).data().cmp(target)
                    });
                    candidates.intersect(row, comparison, place);
                }
            }
            _ => return exec_err!("a bound of a range join has another type than its key"),
        }
        Ok(())
    }

    /// Bytes that the keys take on a device: none where they are too wide for one.
    pub(crate) fn device_bytes(&self) -> usize {
        match &self.keys {
            RangeKeys::W32(keys) => keys.len() * size_of::<u32>(),
            RangeKeys::W64(keys) => keys.len() * size_of::<u64>(),
            RangeKeys::W128(keys) => keys.len() * size_of::<u128>(),
            RangeKeys::Bytes(..) => 0,
        }
    }

    /// The keys on devices; `None` where they are too wide.
    ///
    /// # Errors
    /// What devices fail with.
    pub(crate) fn on_devices(
        &self,
        engine: &dyn DeviceEngine,
        threads: usize,
    ) -> Result<Option<DeviceKeys>, EngineError> {
        fn keys_of<K>(len: usize, fill: &(dyn Fn(usize, &mut [K]) + Sync)) -> SortedKeys<'_, K> {
            SortedKeys { len, fill }
        }
        Ok(Some(match &self.keys {
            RangeKeys::W32(keys) => {
                let fill = |from: usize, to: &mut [u32]| keys.copy_to(from, to);
                DeviceKeys::W32(engine.sorted_u32(keys_of(keys.len(), &fill), threads)?)
            }
            RangeKeys::W64(keys) => {
                let fill = |from: usize, to: &mut [u64]| keys.copy_to(from, to);
                DeviceKeys::W64(engine.sorted_u64(keys_of(keys.len(), &fill), threads)?)
            }
            RangeKeys::W128(keys) => {
                let fill = |from: usize, to: &mut [u128]| keys.copy_to(from, to);
                DeviceKeys::W128(engine.sorted_u128(keys_of(keys.len(), &fill), threads)?)
            }
            RangeKeys::Bytes(..) => return Ok(None),
        }))
    }

    /// The first position in `from..=at` whose key is that at `at`.
    pub(crate) fn first_equal(&self, from: usize, at: usize) -> usize {
        match &self.keys {
            RangeKeys::W32(keys) => first_equal(from, at, |place| keys.key(place)),
            RangeKeys::W64(keys) => first_equal(from, at, |place| keys.key(place)),
            RangeKeys::W128(keys) => first_equal(from, at, |place| keys.key(place)),
            RangeKeys::Bytes(keys, order) => {
                first_equal(from, at, |place| keys.row(row_at(order.as_ref(), place)))
            }
        }
    }
}

/// The row at a position.
fn row_at(order: Option<&Arc<Vec<u32>>>, position: usize) -> usize {
    order.map_or(position, |order| order[position] as usize)
}

/// Intersects candidates with the rows whose key compares so with a bound. The bounds of a batch are one column.
fn narrow<K: Key>(
    keys: &impl KeySearch<K>,
    candidates: &mut CandidateRanges,
    comparison: Comparison,
    bounds: &[Column<K>],
    hints: &mut BoundHints,
) -> Result<()> {
    let Some(bounds) = bounds.first() else {
        return Ok(());
    };
    let narrowed = keys.narrow(candidates, comparison, bounds, hints);
    Ok(narrowed.map_err(engine_error)?)
}

/// Sorts keys within each group. Returns them, and where the rows go then. The sort is stable.
fn sort<K: SearchKey>(
    columns: Vec<Column<K>>,
    starts: &[usize],
    permutation: RowPermutation,
    context: SortContext,
) -> Result<(CpuKeySearch<K>, RowPermutation)> {
    let Some(encoding) = columns.first().map(Column::encoding) else {
        return Ok((K::search_over(&[], starts), permutation));
    };
    let one_group = starts.len() == 2;
    if permutation.are_as_they_came() && (one_group || columns.len() == 1) {
        let sorted = if one_group {
            K::are_sorted(&columns)
        } else {
            let keys = columns[0].bits();
            let mut groups = starts.windows(2).map(|ends| &keys[ends[0]..ends[1]]);
            groups.all(|keys| K::is_sorted(keys, encoding))
        };
        if sorted {
            return Ok((K::search_over(&columns, starts), permutation));
        }
    }
    context
        .memory
        .try_grow(permutation.len() * size_of::<K>())?;
    let (mut keys, sorted) = if permutation.are_as_they_came() {
        concatenate(&columns, encoding, starts, context)?
    } else {
        let chunks = columns.iter().map(Column::bits);
        (permutation.arrange(chunks, context.check)?, false)
    };
    drop(columns);
    let permutation = if sorted {
        permutation
    } else {
        sort_groups(&mut keys, encoding, starts, permutation, context)?
    };
    let keys = Column::new(Arc::new(keys), encoding);
    Ok((K::search_over(&[keys], starts), permutation))
}

/// Copies keys in input order into one buffer. Returns also whether they ascend within each group, which is checked for each chunk while
/// it is in cache.
fn concatenate<K: SearchKey>(
    columns: &[Column<K>],
    encoding: Encoding<K>,
    starts: &[usize],
    context: SortContext,
) -> Result<(HugePageBuf<K>, bool)> {
    let mut keys =
        HugePageBuf::zeroed(starts.last().copied().unwrap_or(0)).map_err(engine_error)?;
    let (mut first, mut group, mut sorted) = (0, 0, true);
    for column in columns {
        (context.check)()?;
        let bits = column.bits();
        let end = first + bits.len();
        keys[first..end].copy_from_slice(bits);
        // The last key before this chunk may be of the same group.
        let mut from = first.saturating_sub(1).max(starts[group]);
        while let Some(stop) = starts.get(group + 1) {
            sorted = sorted && K::is_sorted(&keys[from..end.min(*stop).max(from)], encoding);
            if *stop > end {
                break;
            }
            from = *stop;
            group += 1;
        }
        first = end;
    }
    Ok((keys, sorted))
}

/// Sorts keys, which lie by group, within each group, and says where the rows go then.
fn sort_groups<K: SearchKey>(
    keys: &mut [K],
    encoding: Encoding<K>,
    starts: &[usize],
    places: RowPermutation,
    context: SortContext,
) -> Result<RowPermutation> {
    let rows = keys.len();
    let mut onward: Option<HugePageBuf<u32>> = None;
    let mut pairs: Vec<(K, u32)> = vec![];
    let mut checked = 0;
    for ends in starts.windows(2) {
        if ends[1] - checked > STEP {
            (context.check)()?;
            checked = ends[1];
        }
        let group = &mut keys[ends[0]..ends[1]];
        if K::is_sorted(group, encoding) {
            continue;
        }
        let onward = match &mut onward {
            Some(onward) => onward,
            none => {
                context.memory.try_grow(rows * size_of::<u32>())?;
                let mut same = HugePageBuf::zeroed(rows).map_err(engine_error)?;
                for (place, slot) in same.iter_mut().enumerate() {
                    *slot = number(place);
                }
                none.insert(same)
            }
        };
        if pairs.capacity() < group.len() {
            let more = group.len() - pairs.capacity();
            context.memory.try_grow(more * size_of::<(K, u32)>())?;
            pairs = Vec::with_capacity(group.len());
        }
        let items = group.iter().enumerate();
        let items = items.map(|(i, bits)| (encoding.encode(*bits), number(ends[0] + i)));
        sort_in_steps(items, &mut pairs, |a, b| a.0.cmp(&b.0), context)?;
        for ((bits, (key, from)), to) in group.iter_mut().zip(&pairs).zip(ends[0]..) {
            *bits = encoding.decode(*key);
            onward[*from as usize] = number(to);
        }
    }
    Ok(match onward {
        Some(onward) => places.then(onward),
        None => places,
    })
}

/// As [`sort`], for keys that stay where they are.
fn sort_bytes(
    keys: &Rows,
    starts: &[usize],
    places: RowPermutation,
    context: SortContext,
) -> Result<RowPermutation> {
    context.memory.try_grow(places.order_bytes())?;
    let order = places.order();
    let key = |place: usize| keys.row(row_at(order, place));
    let mut groups = starts.windows(2);
    if groups.all(|ends| (ends[0]..ends[1]).is_sorted_by(|a, b| key(*a) <= key(*b))) {
        return Ok(places);
    }
    // The order, one group of it, and the places of all rows.
    let longest = starts.windows(2).map(|ends| ends[1] - ends[0]).max();
    let longest = longest.unwrap_or_default();
    let words = places.len() + longest + keys.num_rows();
    context.memory.try_grow(words * size_of::<u32>())?;
    let mut order = match order {
        Some(order) => order.to_vec(),
        None => (0..places.len()).map(number).collect(),
    };
    let mut sorted = Vec::with_capacity(longest);
    let compare = |a: &u32, b: &u32| keys.row(*a as usize).cmp(&keys.row(*b as usize));
    for ends in starts.windows(2) {
        let group = &mut order[ends[0]..ends[1]];
        sort_in_steps(group.iter().copied(), &mut sorted, compare, context)?;
        group.copy_from_slice(&sorted);
    }
    RowPermutation::of_order(order, keys.num_rows())
}

/// The first place of a segment whose key is not below the bound, or, unless `before_equal`, above it.
fn split(
    (start, end): (usize, usize),
    before_equal: bool,
    compare: impl Fn(usize) -> Ordering,
) -> usize {
    let is_before = |place| match compare(place) {
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

/// The first place in `from..=at` whose key is that at `at`.
fn first_equal<K: Ord>(from: usize, at: usize, key: impl Fn(usize) -> K) -> usize {
    let last = key(at);
    if from == at || key(at - 1) != last {
        return at;
    }
    split((from, at), true, |place| key(place).cmp(&last))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray};
    use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};

    use super::*;
    use crate::common::ranges::Ranges;
    use rmq_testing::random;

    #[test]
    fn bounds_are_found_as_by_counting() {
        let state = &mut 88_172_645_463_325_252;
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let memory = MemoryConsumer::new("test").register(&pool);
        let context = SortContext {
            memory: &memory,
            check: &|| Ok(()),
        };
        // Hints of other rows must do no harm.
        let mut last_found = LastFound::default();
        for round in 0..200 {
            let rows = usize::try_from(random(state, 60)).expect("a small number");
            let spread = [3, 20, 1_000_000][round % 3];
            let maybe = |state: &mut u64, spread| {
                (random(state, 8) > 0).then(|| random(state, spread).cast_signed() - 2)
            };
            let keys: Vec<Option<i64>> = (0..rows).map(|_| maybe(state, spread)).collect();
            let equal: Vec<Option<i64>> = (0..rows).map(|_| maybe(state, 4)).collect();
            let asked: Vec<[Option<i64>; 3]> = (0..40)
                .map(|_| [maybe(state, 4), maybe(state, spread), maybe(state, spread)])
                .collect();
            let column =
                |c: usize| Arc::new(asked.iter().map(|a| a[c]).collect::<Int64Array>()) as ArrayRef;
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
                let mut sorted = Unsorted::try_new(rows, &types, key.data_type()).unwrap();
                for (from, to) in [(0, rows / 3), (rows / 3, rows)] {
                    let part = |a: &ArrayRef| a.slice(from, to - from);
                    let equal: Vec<_> = columns.iter().map(part).collect();
                    sorted.add(&equal, &part(&key)).unwrap();
                }
                let (sorted, places) = sorted.sort(context).unwrap();
                let row_at = |place| row_at(places.order(), place);
                let order: Vec<usize> = (0..sorted.len()).map(row_at).collect();
                for lower in [Comparison::Above, Comparison::AtLeast] {
                    for upper in [Comparison::Below, Comparison::AtMost] {
                        let bounds = [(lower, kind(column(1))), (upper, kind(column(2)))];
                        let asked_groups = if grouped {
                            vec![kind(column(0))]
                        } else {
                            vec![]
                        };
                        let mut candidates = sorted.start(40, &asked_groups).unwrap();
                        for (i, (comparison, bound)) in bounds.iter().enumerate() {
                            let number = (i, *comparison);
                            sorted
                                .narrow(&mut candidates, number, bound, &mut last_found)
                                .unwrap();
                        }
                        let ranges = Ranges::from(candidates);
                        for (i, [group, low, high]) in asked.iter().enumerate() {
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
