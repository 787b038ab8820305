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
use crate::sorted::candidates::CandidateRanges;
use crate::sorted::device_keys::DeviceKeys;
use crate::sorted::group_ids::GroupIds;
use crate::sorted::groups::Groups;
use crate::sorted::key_search::{Keys, LastFound, Number, are_sorted, is_sorted};
use crate::sorted::order_keys::OrderKeys;
use crate::sorted::permutation::{RowPermutation, number};
use rmq_engine::cpu::Numbers;
use rmq_engine::{Column, Encoding, EngineError, SharedSlice, SortedKeys as KeysToSend};

/// How a range key stands to a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub enum Comparison {
    /// `key > bound`
    Above,
    /// `key >= bound`
    AtLeast,
    /// `key < bound`
    Below,
    /// `key <= bound`
    AtMost,
}

impl Comparison {
    /// Whether the bound is the lower end of a range.
    pub(crate) fn is_lower(self) -> bool {
        matches!(self, Self::Above | Self::AtLeast)
    }

    /// Whether a key that equals the bound is outside.
    pub(crate) fn is_strict(self) -> bool {
        matches!(self, Self::Above | Self::Below)
    }

    /// Whether a key compares so with a bound.
    pub(crate) fn holds<K: Ord + ?Sized>(self, key: &K, bound: &K) -> bool {
        match self {
            Self::Above => key > bound,
            Self::AtLeast => key >= bound,
            Self::Below => key < bound,
            Self::AtMost => key <= bound,
        }
    }

    /// Whether the keys below the bound end before those that equal it, or behind them.
    pub(crate) fn is_before_equal(self) -> bool {
        self.is_lower() != self.is_strict()
    }
}

/// Rows in the order of their groups of equal keys, within a group in that of the range key. Rows with a NULL among
/// their keys match nothing and are left out.
#[derive(Debug)]
pub(crate) struct SortedRows {
    groups: Option<Groups>,
    /// Where each group begins, and the end of the last.
    starts: Vec<usize>,
    keys: SortedKeys,
}

#[derive(Debug)]
enum SortedKeys {
    W32(Keys<u32>),
    W64(Keys<u64>),
    W128(Keys<u128>),
    /// As the rows came, and which row stands at each position; `None` where they came sorted.
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
                (SortedKeys::W32(keys), places)
            }
            OrderKeys::W64(columns) => {
                let (keys, places) = sort(columns, &starts, places, context)?;
                (SortedKeys::W64(keys), places)
            }
            OrderKeys::W128(columns) => {
                let (keys, places) = sort(columns, &starts, places, context)?;
                (SortedKeys::W128(keys), places)
            }
            OrderKeys::Bytes(_, keys) => {
                let places = sort_bytes(&keys, &starts, places, context)?;
                let order = places.order().cloned();
                (SortedKeys::Bytes(keys, order), places)
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
            SortedKeys::W32(keys) => keys.bytes(),
            SortedKeys::W64(keys) => keys.bytes(),
            SortedKeys::W128(keys) => keys.bytes(),
            SortedKeys::Bytes(rows, _) => rows.size(),
        };
        let groups = self.groups.as_ref().map_or(0, Groups::bytes);
        keys + groups + size_of_val(self.starts.as_slice())
    }

    /// For each of `rows` rows, the positions of its group: what bounds are found among.
    pub(crate) fn start(&self, rows: usize, equal: &[ArrayRef]) -> Result<CandidateRanges> {
        let Some(groups) = &self.groups else {
            return Ok(CandidateRanges::of_all(rows, self.len()));
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
        segments: &mut CandidateRanges,
        (number, comparison): (usize, Comparison),
        bounds: &ArrayRef,
        last_found: &mut LastFound,
    ) -> Result<()> {
        let (targets, nulls) = OrderKeys::of(bounds)?;
        if let Some(nulls) = nulls {
            segments.leave_out(&nulls);
        }
        let hints = last_found.of_bound(number, self.starts.len() - 1);
        match (&self.keys, targets) {
            (SortedKeys::W32(keys), OrderKeys::W32(bounds)) => {
                keys.narrow(segments, comparison, &bounds, hints);
            }
            (SortedKeys::W64(keys), OrderKeys::W64(bounds)) => {
                keys.narrow(segments, comparison, &bounds, hints);
            }
            (SortedKeys::W128(keys), OrderKeys::W128(bounds)) => {
                keys.narrow(segments, comparison, &bounds, hints);
            }
            (SortedKeys::Bytes(keys, order), OrderKeys::Bytes(_, targets)) => {
                for row in 0..bounds.len() {
                    let Some(segment) = segments.of(row) else {
                        continue;
                    };
                    // Rows of two converters of one type: their bytes compare.
                    let target = targets.row(row).data();
                    let place = split(segment, comparison.is_before_equal(), |place| {
                        keys.row(row_at(order.as_ref(), place)).data().cmp(target)
                    });
                    segments.cut(row, comparison, place);
                }
            }
            _ => return exec_err!("a bound of a range join has another type than its key"),
        }
        Ok(())
    }

    /// Bytes that the keys take on a device: none where they are too wide for one.
    pub(crate) fn device_bytes(&self) -> usize {
        match &self.keys {
            SortedKeys::W32(keys) => keys.len() * size_of::<u32>(),
            SortedKeys::W64(keys) => keys.len() * size_of::<u64>(),
            SortedKeys::W128(keys) => keys.len() * size_of::<u128>(),
            SortedKeys::Bytes(..) => 0,
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
        fn keys_of<K>(len: usize, fill: &(dyn Fn(usize, &mut [K]) + Sync)) -> KeysToSend<'_, K> {
            KeysToSend { len, fill }
        }
        Ok(Some(match &self.keys {
            SortedKeys::W32(keys) => {
                let fill = |from: usize, to: &mut [u32]| keys.write_from(from, to);
                DeviceKeys::W32(engine.sorted_u32(keys_of(keys.len(), &fill), threads)?)
            }
            SortedKeys::W64(keys) => {
                let fill = |from: usize, to: &mut [u64]| keys.write_from(from, to);
                DeviceKeys::W64(engine.sorted_u64(keys_of(keys.len(), &fill), threads)?)
            }
            SortedKeys::W128(keys) => {
                let fill = |from: usize, to: &mut [u128]| keys.write_from(from, to);
                DeviceKeys::W128(engine.sorted_u128(keys_of(keys.len(), &fill), threads)?)
            }
            SortedKeys::Bytes(..) => return Ok(None),
        }))
    }

    /// The first position in `from..=at` whose key is that at `at`.
    pub(crate) fn first_equal(&self, from: usize, at: usize) -> usize {
        match &self.keys {
            SortedKeys::W32(keys) => first_equal(from, at, |place| keys.key(place)),
            SortedKeys::W64(keys) => first_equal(from, at, |place| keys.key(place)),
            SortedKeys::W128(keys) => first_equal(from, at, |place| keys.key(place)),
            SortedKeys::Bytes(keys, order) => {
                first_equal(from, at, |place| keys.row(row_at(order.as_ref(), place)))
            }
        }
    }
}

/// The row at a position.
fn row_at(order: Option<&Arc<Vec<u32>>>, position: usize) -> usize {
    order.map_or(position, |order| order[position] as usize)
}

/// The keys in their order, sorted within each group, and where the rows go then. Equal keys stay as they came.
fn sort<K: Number>(
    columns: Vec<Column<K>>,
    starts: &[usize],
    places: RowPermutation,
    context: SortContext,
) -> Result<(Keys<K>, RowPermutation)> {
    let Some(encoding) = columns.first().map(Column::encoding) else {
        let none = Encoding::unsigned();
        return Ok((Keys::new(vec![], none, starts), places));
    };
    let one_group = starts.len() == 2;
    if places.are_as_they_came() && (one_group || columns.len() == 1) {
        let sorted = if one_group {
            are_sorted(columns.iter().map(Column::bits), encoding)
        } else {
            let keys = columns[0].bits();
            let mut groups = starts.windows(2).map(|ends| &keys[ends[0]..ends[1]]);
            groups.all(|keys| is_sorted(keys, encoding))
        };
        if sorted {
            let shared = columns.iter().map(|c| Arc::clone(c.shared_bits()));
            return Ok((Keys::new(shared.collect(), encoding, starts), places));
        }
    }
    context.memory.try_grow(places.len() * size_of::<K>())?;
    let (mut keys, sorted) = if places.are_as_they_came() {
        put_together(&columns, encoding, starts, context)?
    } else {
        let chunks = columns.iter().map(Column::bits);
        (places.arrange(chunks, context.check)?, false)
    };
    drop(columns);
    let places = if sorted {
        places
    } else {
        sort_groups(&mut keys, encoding, starts, places, context)?
    };
    let keys: SharedSlice<K> = Arc::new(keys);
    Ok((Keys::new(vec![keys], encoding, starts), places))
}

/// The keys in one piece, as they came, and whether they are sorted within each group, which is seen of each chunk while it is in the
/// cache.
fn put_together<K: Number>(
    columns: &[Column<K>],
    encoding: Encoding<K>,
    starts: &[usize],
    context: SortContext,
) -> Result<(Numbers<K>, bool)> {
    let mut keys = Numbers::zeroed(starts.last().copied().unwrap_or(0)).map_err(engine_error)?;
    let (mut first, mut group, mut sorted) = (0, 0, true);
    for column in columns {
        (context.check)()?;
        let bits = column.bits();
        let end = first + bits.len();
        keys[first..end].copy_from_slice(bits);
        // The last key before this chunk may be of the same group.
        let mut from = first.saturating_sub(1).max(starts[group]);
        while let Some(stop) = starts.get(group + 1) {
            sorted = sorted && is_sorted(&keys[from..end.min(*stop).max(from)], encoding);
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
fn sort_groups<K: Number>(
    keys: &mut [K],
    encoding: Encoding<K>,
    starts: &[usize],
    places: RowPermutation,
    context: SortContext,
) -> Result<RowPermutation> {
    let rows = keys.len();
    let mut onward: Option<Numbers<u32>> = None;
    let mut pairs: Vec<(K, u32)> = vec![];
    let mut checked = 0;
    for ends in starts.windows(2) {
        if ends[1] - checked > STEP {
            (context.check)()?;
            checked = ends[1];
        }
        let group = &mut keys[ends[0]..ends[1]];
        if is_sorted(group, encoding) {
            continue;
        }
        let onward = match &mut onward {
            Some(onward) => onward,
            none => {
                context.memory.try_grow(rows * size_of::<u32>())?;
                let mut same = Numbers::zeroed(rows).map_err(engine_error)?;
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

    #[test]
    fn bounds_are_found_as_by_counting() {
        let random = &mut fastrand::Rng::with_seed(88_172_645_463_325_252);
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let memory = MemoryConsumer::new("test").register(&pool);
        let context = SortContext {
            memory: &memory,
            check: &|| Ok(()),
        };
        // Hints of other rows must do no harm.
        let mut last_found = LastFound::default();
        for round in 0..200 {
            let rows = usize::try_from(random.u64(..60)).expect("a small number");
            let spread = [3, 20, 1_000_000][round % 3];
            let maybe = |random: &mut fastrand::Rng, spread| {
                (random.u64(..8) > 0).then(|| random.u64(..spread).cast_signed() - 2)
            };
            let keys: Vec<Option<i64>> = (0..rows).map(|_| maybe(random, spread)).collect();
            let equal: Vec<Option<i64>> = (0..rows).map(|_| maybe(random, 4)).collect();
            let asked: Vec<[Option<i64>; 3]> = (0..40)
                .map(|_| {
                    [
                        maybe(random, 4),
                        maybe(random, spread),
                        maybe(random, spread),
                    ]
                })
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
                        let mut segments = sorted.start(40, &asked_groups).unwrap();
                        for (i, (comparison, bound)) in bounds.iter().enumerate() {
                            let number = (i, *comparison);
                            sorted
                                .narrow(&mut segments, number, bound, &mut last_found)
                                .unwrap();
                        }
                        let ranges = segments.ranges();
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
