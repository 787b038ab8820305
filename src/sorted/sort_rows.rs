//! Sorting the rows of a build side by equality keys and a range key.
//!
//! 1. Each batch's equality keys become group ids, its range key becomes keys of fixed width (or Arrow's row format).
//! 2. Rows are arranged by group with a counting sort, unless they came so.
//! 3. Range keys are sorted within each group, unless they ascend already. Sorted input is neither moved nor copied.
//!
//! For n rows this takes O(n log n) comparisons in the worst case and O(n) for sorted input.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, NullBufferBuilder};
use arrow::datatypes::DataType;
use arrow::row::Rows;
use datafusion::common::{Result, exec_err};

use crate::common::errors::engine_error;
use crate::sorted::bucket_sort::{STEP, SortContext, sort_in_steps};
use crate::sorted::group_ids::GroupIds;
use crate::sorted::groups::Groups;
use crate::sorted::id_map::number;
use crate::sorted::order_keys::OrderKeys;
use crate::sorted::permutation::RowPermutation;
use crate::sorted::sorted_rows::{RangeKeys, SortedRows, row_at};
use rmq_engine::cpu::{CpuKeySearch, HugePageBuf, SearchKey};
use rmq_engine::{Column, Encoding};

/// Collects rows batch by batch, and sorts them. Only group ids and range keys are kept.
#[derive(Debug)]
pub(crate) struct SortedRowsBuilder {
    groups: Option<Groups>,
    /// The group of each row, if there are groups.
    group_ids: GroupIds,
    keys: OrderKeys,
    key_bytes: usize,
    /// Which rows have a range key that is not NULL.
    nulls: NullBufferBuilder,
}

impl SortedRowsBuilder {
    /// Creates a builder for at most `rows` rows with equality keys and a range key of these types.
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
            group_ids: GroupIds::new(rows),
            groups: groups.transpose()?,
            keys: OrderKeys::try_new(key)?,
            key_bytes: 0,
            nulls: NullBufferBuilder::new(0),
        })
    }

    /// Adds a batch of rows, given their equality keys and their range key.
    ///
    /// # Errors
    /// Arrow's errors for keys that cannot be converted.
    pub(crate) fn add(&mut self, equal: &[ArrayRef], key: &ArrayRef) -> Result<()> {
        if let Some(groups) = &mut self.groups {
            let fill = |group_ids: &mut [u32]| groups.add(equal, group_ids);
            self.group_ids.add(key.len(), fill)?;
        }
        self.key_bytes += self.keys.append(key)?;
        match key.logical_nulls() {
            Some(nulls) => self.nulls.append_buffer(&nulls),
            None => self.nulls.append_n_non_nulls(key.len()),
        }
        Ok(())
    }

    /// Number of rows added.
    pub(crate) fn len(&self) -> usize {
        self.nulls.len()
    }

    /// Approximate bytes of the rows, borrowed keys included.
    pub(crate) fn bytes(&self) -> usize {
        let groups = self.groups.as_ref().map_or(0, Groups::bytes);
        groups + self.group_ids.bytes() + self.key_bytes
    }

    /// Sorts the rows. Returns them with the permutation from input order. Additional memory is reserved with the context and stays
    /// reserved.
    ///
    /// # Errors
    /// The context's errors: memory is exhausted, or the work is cancelled.
    pub(crate) fn sort(mut self, context: SortContext) -> Result<(SortedRows, RowPermutation)> {
        let memory = context.memory;
        let rows = self.len();
        let nulls = self.nulls.finish().filter(|n| n.null_count() > 0);
        let (permutation, starts) = match (&self.groups, nulls) {
            (None, None) => (RowPermutation::identity(rows), vec![0, rows]),
            (None, Some(nulls)) => {
                memory.try_grow(rows * size_of::<u32>())?;
                let permutation = RowPermutation::from_valid(nulls.iter())?;
                let starts = vec![0, permutation.len()];
                (permutation, starts)
            }
            (Some(groups), nulls) => {
                if let Some(nulls) = nulls {
                    self.group_ids = self.group_ids.leave_out(&nulls, memory)?;
                }
                memory.try_grow((groups.len() + 1) * size_of::<usize>())?;
                RowPermutation::by_group(self.group_ids, groups.len(), context)?
            }
        };
        let (keys, permutation) = match self.keys {
            OrderKeys::W32(columns) => {
                let (keys, permutation) = sort(columns, &starts, permutation, context)?;
                (RangeKeys::W32(keys), permutation)
            }
            OrderKeys::W64(columns) => {
                let (keys, permutation) = sort(columns, &starts, permutation, context)?;
                (RangeKeys::W64(keys), permutation)
            }
            OrderKeys::W128(columns) => {
                let (keys, permutation) = sort(columns, &starts, permutation, context)?;
                (RangeKeys::W128(keys), permutation)
            }
            OrderKeys::Bytes(_, keys) => {
                let permutation = sort_bytes(&keys, &starts, permutation, context)?;
                let order = permutation.order().cloned();
                (RangeKeys::Bytes(keys, order), permutation)
            }
        };
        Ok((SortedRows::new(self.groups, starts, keys), permutation))
    }
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
    if permutation.is_identity() && (one_group || columns.len() == 1) {
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
    let (mut keys, sorted) = if permutation.is_identity() {
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

/// Sorts keys, which are in the order of groups, within each group. Returns the permutation after that.
fn sort_groups<K: SearchKey>(
    keys: &mut [K],
    encoding: Encoding<K>,
    starts: &[usize],
    permutation: RowPermutation,
    context: SortContext,
) -> Result<RowPermutation> {
    let rows = keys.len();
    let mut moves: Option<HugePageBuf<u32>> = None;
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
        let moves = match &mut moves {
            Some(moves) => moves,
            none => {
                context.memory.try_grow(rows * size_of::<u32>())?;
                let mut identity = HugePageBuf::zeroed(rows).map_err(engine_error)?;
                for (position, slot) in identity.iter_mut().enumerate() {
                    *slot = number(position);
                }
                none.insert(identity)
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
            moves[*from as usize] = number(to);
        }
    }
    Ok(match moves {
        Some(moves) => permutation.then(moves),
        None => permutation,
    })
}

/// Sorts rows as [`sort`] does; the keys stay in input order.
fn sort_bytes(
    keys: &Rows,
    starts: &[usize],
    permutation: RowPermutation,
    context: SortContext,
) -> Result<RowPermutation> {
    context.memory.try_grow(permutation.order_bytes())?;
    let order = permutation.order();
    let key = |position: usize| keys.row(row_at(order, position));
    let mut groups = starts.windows(2);
    if groups.all(|ends| (ends[0]..ends[1]).is_sorted_by(|a, b| key(*a) <= key(*b))) {
        return Ok(permutation);
    }
    // The order, one group of it, and the positions of all rows.
    let longest = starts.windows(2).map(|ends| ends[1] - ends[0]).max();
    let longest = longest.unwrap_or_default();
    let words = permutation.len() + longest + keys.num_rows();
    context.memory.try_grow(words * size_of::<u32>())?;
    let mut order = match order {
        Some(order) => order.to_vec(),
        None => (0..permutation.len()).map(number).collect(),
    };
    let mut sorted = Vec::with_capacity(longest);
    let compare = |a: &u32, b: &u32| keys.row(*a as usize).cmp(&keys.row(*b as usize));
    for ends in starts.windows(2) {
        let group = &mut order[ends[0]..ends[1]];
        sort_in_steps(group.iter().copied(), &mut sorted, compare, context)?;
        group.copy_from_slice(&sorted);
    }
    RowPermutation::from_order(order, keys.num_rows())
}
