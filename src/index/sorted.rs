//! Rows sorted by equality keys and a range key: which of them lie between two bounds.

use std::cmp::Ordering;

use arrow::array::{Array, ArrayRef, NullBufferBuilder, UInt32Array};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::take;
use arrow::datatypes::DataType;
use arrow::row::Rows;
use datafusion::common::{Result, exec_err};

use super::groups::{Groups, NO_GROUP};
use super::order_keys::OrderKeys;
use crate::functions::bounds::Ranges;

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
}

/// Rows in the order of their groups of equal keys, within a group in that of the range key. Rows with a NULL among
/// their keys match nothing and are left out.
#[derive(Debug)]
pub(crate) struct SortedRows {
    groups: Option<Groups>,
    /// Where each group begins, and the end of the last.
    starts: Vec<usize>,
    keys: SortedKeys,
    /// Which row stands at each position; `None` where the rows stood so already.
    order: Option<UInt32Array>,
}

/// For each of some rows, positions from the first to before the second.
#[derive(Debug, Clone)]
pub(crate) struct Segments(Vec<(usize, usize)>);

impl Segments {
    /// Which rows have positions left.
    pub(crate) fn are_empty(&self) -> impl Iterator<Item = bool> {
        self.0.iter().map(|(start, end)| start >= end)
    }

    /// Lets the positions of the `wanted` rows begin with the last of those in `before`, if that is not behind their first.
    pub(crate) fn begin_with_last(&mut self, before: &Self, wanted: &BooleanBuffer) {
        let rows = self.0.iter_mut().zip(&before.0).zip(wanted);
        for ((positions, (start, end)), wanted) in rows {
            if !wanted || start >= end {
                continue;
            }
            let last = end - 1;
            *positions = match *positions {
                (start, end) if start < end => (start.min(last), end),
                _ => (last, last + 1),
            };
        }
    }

    /// The positions as inclusive ranges.
    pub(crate) fn ranges(&self) -> Ranges {
        let ends = self.0.iter();
        ends.map(|(start, end)| (position(*start), position(*end) - 1))
            .collect()
    }
}

#[derive(Debug)]
enum SortedKeys {
    W64(Vec<u64>),
    W128(Vec<u128>),
    /// In the order of the rows, not in the sorted one.
    Bytes(Rows),
}

/// Rows that come to be sorted, a batch at a time. Of their keys only what sorts and finds them is kept.
#[derive(Debug)]
pub(crate) struct Unsorted {
    groups: Option<Groups>,
    /// The group of each row, if there are groups.
    numbers: Vec<u32>,
    keys: OrderKeys,
    /// Which rows have a range key.
    nulls: NullBufferBuilder,
}

impl Unsorted {
    /// No rows yet, of equality keys and a range key of these types.
    pub(crate) fn try_new(equal: &[DataType], key: &DataType) -> Result<Self> {
        let groups = (!equal.is_empty()).then(|| Groups::try_new(equal));
        Ok(Self {
            groups: groups.transpose()?,
            numbers: vec![],
            keys: OrderKeys::try_new(key)?,
            nulls: NullBufferBuilder::new(0),
        })
    }

    /// Adds rows by their equality keys and their range key.
    ///
    /// # Errors
    /// An execution error for 2^32 rows or more.
    pub(crate) fn add(&mut self, equal: &[ArrayRef], key: &ArrayRef) -> Result<()> {
        let rows = self.nulls.len() + key.len();
        if u32::try_from(rows).is_err() {
            return exec_err!(
                "a range join takes at most {} rows on the side that is searched",
                u32::MAX
            );
        }
        if let Some(groups) = &mut self.groups {
            self.numbers.append(&mut groups.add(equal)?);
        }
        self.keys.append(key)?;
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

    /// About how many bytes the rows take.
    pub(crate) fn bytes(&self) -> usize {
        let groups = self.groups.as_ref().map_or(0, Groups::bytes);
        groups + self.numbers.capacity() * size_of::<u32>() + self.keys.bytes()
    }

    /// About how many bytes sorting takes beside these: the keys once more, with their places.
    pub(crate) fn sorting_bytes(&self) -> usize {
        let pair = match self.keys {
            OrderKeys::W64(_) => size_of::<(u64, u32)>() + size_of::<u64>(),
            OrderKeys::W128(_) => size_of::<(u128, u32)>() + size_of::<u128>(),
            OrderKeys::Bytes(..) => 0,
        };
        self.len() * (pair + size_of::<u32>())
    }

    /// The rows in their order.
    pub(crate) fn sort(mut self) -> SortedRows {
        let rows = self.len();
        let nulls = self.nulls.finish().filter(|n| n.null_count() > 0);
        let (mut order, starts) = match &self.groups {
            None => {
                let order = nulls.map(|nulls| nulls.valid_indices().map(row_number).collect());
                let count = order.as_ref().map_or(rows, Vec::len);
                (order, vec![0, count])
            }
            Some(groups) => {
                let numbers = without_nulls(self.numbers, nulls.as_ref());
                by_group(&numbers, groups.len())
            }
        };
        let keys = match self.keys {
            OrderKeys::W64(keys) => SortedKeys::W64(sort(keys, &starts, &mut order)),
            OrderKeys::W128(keys) => SortedKeys::W128(sort(keys, &starts, &mut order)),
            OrderKeys::Bytes(_, keys) => {
                sort_bytes(&keys, &starts, &mut order);
                SortedKeys::Bytes(keys)
            }
        };
        SortedRows {
            groups: self.groups,
            starts,
            keys,
            order: order.map(UInt32Array::from),
        }
    }
}

impl SortedRows {
    /// Number of rows that can match.
    pub(crate) fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Whether the rows were in order as they came.
    pub(crate) fn was_sorted(&self) -> bool {
        self.order.is_none()
    }

    /// About how many bytes the keys, the groups and the order take.
    pub(crate) fn bytes(&self) -> usize {
        let keys = match &self.keys {
            SortedKeys::W64(keys) => size_of_val(keys.as_slice()),
            SortedKeys::W128(keys) => size_of_val(keys.as_slice()),
            SortedKeys::Bytes(rows) => rows.size(),
        };
        let groups = self.groups.as_ref().map_or(0, Groups::bytes);
        let order = self.order.as_ref().map_or(0, Array::get_array_memory_size);
        keys + groups + order + size_of_val(self.starts.as_slice())
    }

    /// A column of the rows in their sorted order.
    pub(crate) fn sorted(&self, values: &ArrayRef) -> Result<ArrayRef> {
        match &self.order {
            Some(order) => Ok(take(values, order, None)?),
            None => Ok(values.clone()),
        }
    }

    /// For each of `rows` rows, the positions of its group: what bounds are found among.
    pub(crate) fn start(&self, rows: usize, equal: &[ArrayRef]) -> Result<Segments> {
        let segment = |group: &u32| match *group {
            NO_GROUP => (0, 0),
            group => (self.starts[group as usize], self.starts[group as usize + 1]),
        };
        Ok(Segments(match &self.groups {
            Some(groups) => groups.find(equal)?.iter().map(segment).collect(),
            None => vec![(0, self.len()); rows],
        }))
    }

    /// Leaves the positions whose key compares so with the bound of each row.
    pub(crate) fn narrow(
        &self,
        segments: &mut Segments,
        comparison: Comparison,
        bounds: &ArrayRef,
    ) -> Result<()> {
        let (targets, nulls) = OrderKeys::of(bounds)?;
        let (segments, nulls) = (&mut segments.0, nulls.as_ref());
        match (&self.keys, &targets) {
            (SortedKeys::W64(keys), OrderKeys::W64(targets)) => {
                narrow(segments, comparison, nulls, |segment, i, before_equal| {
                    split_64(keys, segment, targets[i], before_equal)
                });
            }
            (SortedKeys::W128(keys), OrderKeys::W128(targets)) => {
                narrow(segments, comparison, nulls, |segment, i, before_equal| {
                    let compare = |place: usize| keys[place].cmp(&targets[i]);
                    split(segment, before_equal, compare)
                });
            }
            (SortedKeys::Bytes(keys), OrderKeys::Bytes(_, targets)) => {
                narrow(segments, comparison, nulls, |segment, i, before_equal| {
                    // Rows of two converters of one type: their bytes compare.
                    let target = targets.row(i).data();
                    let compare = |place| keys.row(self.row_at(place)).data().cmp(target);
                    split(segment, before_equal, compare)
                });
            }
            _ => return exec_err!("a bound of a range join has another type than its key"),
        }
        Ok(())
    }

    /// The first position in `from..=at` whose key is that at `at`.
    pub(crate) fn first_equal(&self, from: usize, at: usize) -> usize {
        let segment = (from, at);
        match &self.keys {
            SortedKeys::W64(keys) => split(segment, true, |place| keys[place].cmp(&keys[at])),
            SortedKeys::W128(keys) => split(segment, true, |place| keys[place].cmp(&keys[at])),
            SortedKeys::Bytes(keys) => {
                let target = keys.row(self.row_at(at));
                split(segment, true, |place| {
                    keys.row(self.row_at(place)).cmp(&target)
                })
            }
        }
    }

    /// The row at a position.
    fn row_at(&self, position: usize) -> usize {
        self.order
            .as_ref()
            .map_or(position, |order| order.value(position) as usize)
    }
}

/// Rows are fewer than 2^32.
#[expect(
    clippy::cast_possible_truncation,
    reason = "`Unsorted::add` refuses more rows"
)]
fn row_number(row: usize) -> u32 {
    row as u32
}

/// Positions are fewer than 2^32.
#[expect(
    clippy::cast_possible_wrap,
    reason = "`Unsorted::add` refuses more rows"
)]
fn position(place: usize) -> i64 {
    place as i64
}

/// The group numbers, none where the range key is NULL.
fn without_nulls(mut numbers: Vec<u32>, nulls: Option<&NullBuffer>) -> Vec<u32> {
    if let Some(nulls) = nulls {
        for (i, number) in numbers.iter_mut().enumerate() {
            if nulls.is_null(i) {
                *number = NO_GROUP;
            }
        }
    }
    numbers
}

/// The rows by group, those of one group as they came, and where each group begins. `None` where they stand so already.
fn by_group(numbers: &[u32], groups: usize) -> (Option<Vec<u32>>, Vec<usize>) {
    let mut starts = vec![0; groups + 1];
    let mut ordered = true;
    let mut last = 0;
    for &number in numbers {
        ordered &= number >= last && number != NO_GROUP;
        last = number;
        if number != NO_GROUP {
            starts[number as usize + 1] += 1;
        }
    }
    let mut sum = 0;
    for start in &mut starts {
        sum += *start;
        *start = sum;
    }
    if ordered {
        return (None, starts);
    }
    let mut next = starts.clone();
    let mut order = vec![0; sum];
    for (row, &number) in numbers.iter().enumerate() {
        if number != NO_GROUP {
            let place = &mut next[number as usize];
            order[*place] = row_number(row);
            *place += 1;
        }
    }
    (Some(order), starts)
}

/// The keys of the rows in their order, sorted within each group; the order follows them. Equal keys stay as they came.
fn sort<K: Ord + Copy>(keys: Vec<K>, starts: &[usize], order: &mut Option<Vec<u32>>) -> Vec<K> {
    let mut sorted = match order {
        None => keys,
        Some(order) => order.iter().map(|row| keys[*row as usize]).collect(),
    };
    let mut pairs = vec![];
    for ends in starts.windows(2) {
        let segment = ends[0]..ends[1];
        let keys = &mut sorted[segment.clone()];
        if keys.is_sorted() {
            continue;
        }
        let rows = &mut rows_of(order, starts)[segment];
        pairs.clear();
        pairs.extend(keys.iter().copied().zip(rows.iter().copied()));
        // Rows of a group stand in the order they came, so the row decides between equal keys as a stable sort would.
        pairs.sort_unstable();
        for ((key, row), pair) in keys.iter_mut().zip(rows).zip(&pairs) {
            (*key, *row) = *pair;
        }
    }
    sorted
}

/// As [`sort`], for keys that stay where they are.
fn sort_bytes(keys: &Rows, starts: &[usize], order: &mut Option<Vec<u32>>) {
    let compare = |a: &u32, b: &u32| keys.row(*a as usize).cmp(&keys.row(*b as usize));
    for ends in starts.windows(2) {
        let segment = ends[0]..ends[1];
        let sorted = match order {
            None => segment
                .clone()
                .is_sorted_by(|a, b| keys.row(*a) <= keys.row(*b)),
            Some(order) => order[segment.clone()].is_sorted_by(|a, b| compare(a, b).is_le()),
        };
        if !sorted {
            rows_of(order, starts)[segment].sort_by(compare);
        }
    }
}

/// The order, which is made where there was none yet.
fn rows_of<'a>(order: &'a mut Option<Vec<u32>>, starts: &[usize]) -> &'a mut Vec<u32> {
    let rows = starts.last().copied().unwrap_or(0);
    order.get_or_insert_with(|| (0..rows).map(row_number).collect())
}

/// Cuts each segment at its bound. `split` finds the first place of a segment whose key is not below the bound of a row, or,
/// unless it is told to stop before equal ones, above it.
fn narrow(
    segments: &mut [(usize, usize)],
    comparison: Comparison,
    nulls: Option<&NullBuffer>,
    split: impl Fn((usize, usize), usize, bool) -> usize,
) {
    // The place of the first key at the bound divides the keys below it from the others.
    let before_equal = comparison.is_lower() != comparison.is_strict();
    for (i, segment) in segments.iter_mut().enumerate() {
        if segment.0 >= segment.1 {
            continue;
        }
        if nulls.is_some_and(|nulls| nulls.is_null(i)) {
            segment.1 = segment.0;
            continue;
        }
        let place = split(*segment, i, before_equal);
        if comparison.is_lower() {
            segment.0 = place;
        } else {
            segment.1 = place;
        }
    }
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

/// As [`split`], for numbers: these are often spread evenly, as times and positions are, so the search begins where
/// the bound would then stand, and takes growing steps from there.
fn split_64(keys: &[u64], (start, end): (usize, usize), bound: u64, before_equal: bool) -> usize {
    let is_before = |key: u64| key < bound || (key == bound && !before_equal);
    let (first, last) = (keys[start], keys[end - 1]);
    if !is_before(first) {
        return start;
    }
    if is_before(last) {
        return end;
    }
    // Now `first < last`, and the place sought is in `start + 1..end`.
    let guess = start + interpolate(bound - first, last - first, end - 1 - start);
    let (mut low, mut high) = (start, end - 1);
    let mut step = 1;
    if is_before(keys[guess]) {
        low = guess;
        while low + step < high {
            if !is_before(keys[low + step]) {
                high = low + step;
                break;
            }
            low += step;
            step *= 2;
        }
    } else {
        high = guess;
        while low + step < high {
            if is_before(keys[high - step]) {
                low = high - step;
                break;
            }
            high -= step;
            step *= 2;
        }
    }
    // The key at `low` is before the bound, that at `high` is not.
    low + keys[low..=high].partition_point(|key| is_before(*key))
}

/// About `part / whole * steps`, at most `steps`.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a guess of where to begin"
)]
fn interpolate(part: u64, whole: u64, steps: usize) -> usize {
    let guess = part as f64 / whole as f64 * steps as f64;
    (guess as usize).min(steps)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};

    use super::*;

    /// As in the integration tests: small, and the same everywhere.
    fn random(state: &mut u64, below: u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state % below
    }

    #[test]
    fn bounds_are_found_as_by_counting() {
        let state = &mut 88_172_645_463_325_252;
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
                let mut sorted = Unsorted::try_new(&types, key.data_type()).unwrap();
                for (from, to) in [(0, rows / 3), (rows / 3, rows)] {
                    let part = |a: &ArrayRef| a.slice(from, to - from);
                    let equal: Vec<_> = columns.iter().map(part).collect();
                    sorted.add(&equal, &part(&key)).unwrap();
                }
                let sorted = sorted.sort();
                let order: Vec<usize> = (0..sorted.len()).map(|p| sorted.row_at(p)).collect();
                for lower in [Comparison::Above, Comparison::AtLeast] {
                    for upper in [Comparison::Below, Comparison::AtMost] {
                        let bounds = [(lower, kind(column(1))), (upper, kind(column(2)))];
                        let asked_groups = if grouped {
                            vec![kind(column(0))]
                        } else {
                            vec![]
                        };
                        let mut segments = sorted.start(40, &asked_groups).unwrap();
                        for (comparison, bound) in &bounds {
                            sorted.narrow(&mut segments, *comparison, bound).unwrap();
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
