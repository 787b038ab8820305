//! Sorting the rows of a build side by equality keys and a range key.
//!
//! 1. The rows are divided into consecutive parts, one per thread. The equality keys of each part become ids of groups,
//!    numbered in each part apart; the range keys become keys of fixed width (or Arrow's row format).
//! 2. The groups of all parts are merged and get common numbers. Rows are arranged by group with a counting sort,
//!    unless they came so.
//! 3. Range keys are sorted within each group, unless they ascend already. Sorted input is neither moved nor copied.
//!
//! For n rows this takes O(n) for keys of fixed width, and O(n) for each 8 bytes of others that are needed to tell them
//! apart.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, NullBufferBuilder};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;
use datafusion_common::{Result, exec_err};

use crate::common::errors::engine_error;
use crate::common::workers::Workers;
use crate::sorted::byte_sort::sort_bytes;
use crate::sorted::group_ids::GroupIds;
use crate::sorted::group_sort::{SortContext, sort_groups, unsorted_groups};
use crate::sorted::groups::Groups;
use crate::sorted::id_table::NO_GROUP;
use crate::sorted::order_keys::OrderKeys;
use crate::sorted::permutation::{GroupedRows, RowPermutation};
use crate::sorted::radix_sort::RadixKey;
use crate::sorted::sorted_rows::{RangeKeys, SortedRows};
use rmq_engine::Column;
use rmq_engine::cpu::CpuKeySearch;

/// Consecutive rows of a build side, added batch by batch. Only group ids and range keys are kept.
#[derive(Debug)]
pub struct RowsPart {
    groups: Option<Groups>,
    /// The group of each row, if there are groups.
    group_ids: GroupIds,
    keys: OrderKeys,
    key_bytes: usize,
    /// Which rows have a range key that is not NULL.
    nulls: NullBufferBuilder,
}

impl RowsPart {
    /// Creates a part of at most `rows` rows with equality keys and a range key of these types.
    ///
    /// # Errors
    /// Arrow's for types that have no row format.
    pub fn try_new(rows: usize, equal: &[DataType], key: &DataType) -> Result<Self> {
        let groups = (!equal.is_empty()).then(|| Groups::try_new(equal));
        Ok(Self {
            group_ids: GroupIds::new(rows),
            groups: groups.transpose()?,
            keys: OrderKeys::try_new(key)?,
            key_bytes: 0,
            nulls: NullBufferBuilder::new(0),
        })
    }

    /// A part of rows that are sorted: given the equality keys of each group, how many rows it has, and the range key
    /// of each row, of which none is NULL.
    ///
    /// # Errors
    /// Arrow's errors for keys that cannot be converted; an execution error if these are not groups of so many rows.
    pub fn of_groups(equal: &[ArrayRef], counts: &[u32], key: &ArrayRef) -> Result<Self> {
        let types: Vec<DataType> = equal.iter().map(|e| e.data_type().clone()).collect();
        let mut part = Self::try_new(key.len(), &types, key.data_type())?;
        part.key_bytes += part.keys.append(key)?;
        part.nulls.append_n_non_nulls(key.len());
        let mut ids = vec![NO_GROUP; counts.len()];
        match &mut part.groups {
            Some(groups) => groups.add(equal, &mut ids)?,
            None => ids.truncate(0),
        }
        let rows: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        let are_distinct = ids.iter().zip(0..).all(|(id, group)| *id == group);
        let are_complete = equal.iter().all(|e| e.len() == counts.len());
        if rows != key.len() as u64
            || key.logical_null_count() > 0
            || !(are_distinct && are_complete)
        {
            return exec_err!("the rows are not those of {} sorted groups", counts.len());
        }
        if part.groups.is_some() {
            part.group_ids = GroupIds::of_groups(counts);
        }
        Ok(part)
    }

    /// Adds a batch of rows, given their equality keys and their range key.
    ///
    /// # Errors
    /// Arrow's errors for keys that cannot be converted.
    pub fn add(&mut self, equal: &[ArrayRef], key: &ArrayRef) -> Result<()> {
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
    pub fn len(&self) -> usize {
        self.nulls.len()
    }

    /// Approximate bytes of the rows, borrowed keys included.
    pub fn bytes(&self) -> usize {
        let groups = self.groups.as_ref().map_or(0, Groups::bytes);
        groups + self.group_ids.bytes() + self.key_bytes
    }

    /// Whether rows with range keys of this type can be in several parts. The row formats of parts are not merged.
    ///
    /// # Errors
    /// As [`OrderKeys::try_new`].
    pub fn may_have_others(key: &DataType) -> Result<bool> {
        Ok(!matches!(OrderKeys::try_new(key)?, OrderKeys::Bytes(..)))
    }

    /// Returns the number of rows, and which of them have a range key that is not NULL; `None` if all have.
    fn take_nulls(&mut self) -> PartNulls {
        let rows = self.len();
        let nulls = self.nulls.finish();
        (rows, nulls.filter(|nulls| nulls.null_count() > 0))
    }
}

/// The number of rows of a part, and which of them have a range key that is not NULL; `None` if all have.
type PartNulls = (usize, Option<NullBuffer>);

/// Bytes that the merge of groups takes for each group of a part.
const MERGE_BYTES: usize = 48;

/// Rows in input order with their groups and keys.
#[derive(Debug)]
pub struct GroupedKeys {
    /// `None` if all rows are of one group.
    pub groups: Option<Groups>,
    /// The groups of the rows, part by part; `None` if all rows are of one group.
    pub parts: Option<Vec<GroupedRows>>,
    /// The range key of each row.
    pub keys: OrderKeys,
}

/// Numbers the groups of all parts, at least one, and returns the rows as they came. Memory is reserved with the
/// context and stays reserved.
///
/// # Errors
/// The context's errors: memory is exhausted, or the work is cancelled.
pub fn group_rows(mut parts: Vec<RowsPart>, context: SortContext) -> Result<GroupedKeys> {
    let nulls: Vec<PartNulls> = parts.iter_mut().map(RowsPart::take_nulls).collect();
    let (groups, group_ids, keys) = take_apart(parts)?;
    if groups.is_empty() && all_valid(&nulls) {
        return Ok(GroupedKeys {
            groups: None,
            parts: None,
            keys,
        });
    }
    let (groups, parts) = number_groups(groups, group_ids, nulls, context)?;
    Ok(GroupedKeys {
        groups,
        parts: Some(parts),
        keys,
    })
}

/// Merges the groups of parts (one group if there are no equality keys), and leaves out rows with a NULL range
/// key.
fn number_groups(
    groups: Vec<Groups>,
    group_ids: Vec<GroupIds>,
    nulls: Vec<PartNulls>,
    context: SortContext,
) -> Result<(Option<Groups>, Vec<GroupedRows>)> {
    let (groups, group_ids, numbers) = if groups.is_empty() {
        let ids = nulls.iter();
        let ids = ids.map(|(rows, _)| GroupIds::of_one_group(*rows));
        (None, ids.collect(), vec![vec![0]; nulls.len()])
    } else {
        let merge_memory = context.memory.new_empty();
        let of_parts: usize = groups.iter().map(Groups::len).sum();
        merge_memory.try_grow(of_parts * MERGE_BYTES)?;
        let (groups, numbers) = Groups::merge(groups, context.workers)?;
        (Some(groups), group_ids, numbers)
    };
    let parts = group_ids.into_iter().zip(numbers).zip(nulls);
    let parts = context
        .workers
        .map(parts.collect(), |((ids, groups), (_, nulls))| {
            let ids = match nulls {
                None => ids,
                Some(nulls) => ids.leave_out(&nulls, context.memory)?,
            };
            Ok(GroupedRows { ids, groups })
        })?;
    Ok((groups, parts))
}

fn all_valid(nulls: &[PartNulls]) -> bool {
    nulls.iter().all(|(_, nulls)| nulls.is_none())
}

/// The groups, the group ids, and the keys of all parts.
fn take_apart(parts: Vec<RowsPart>) -> Result<(Vec<Groups>, Vec<GroupIds>, OrderKeys)> {
    let (mut groups, mut group_ids, mut keys) = (vec![], vec![], None::<OrderKeys>);
    for mut part in parts {
        groups.extend(part.groups);
        part.group_ids.finish();
        group_ids.push(part.group_ids);
        match &mut keys {
            None => keys = Some(part.keys),
            Some(keys) => keys.extend(part.keys)?,
        }
    }
    let Some(keys) = keys else {
        return exec_err!("a range join has no part of rows to sort");
    };
    Ok((groups, group_ids, keys))
}

/// Sorts the rows of all parts, at least one. Returns them with the permutation from input order. Additional memory is
/// reserved with the context and stays reserved.
///
/// # Errors
/// An execution error for 2^32 rows or more. The context's errors: memory is exhausted, or the work is cancelled.
pub fn sort_rows(
    mut parts: Vec<RowsPart>,
    context: SortContext,
) -> Result<(SortedRows, RowPermutation)> {
    let SortContext { memory, workers } = context;
    let rows: usize = parts.iter().map(RowsPart::len).sum();
    if u32::try_from(rows).is_err() {
        return too_many_rows(rows);
    }
    let nulls: Vec<PartNulls> = parts.iter_mut().map(RowsPart::take_nulls).collect();
    let (groups, group_ids, keys) = take_apart(parts)?;
    let (groups, permutation, starts) = if groups.is_empty() && all_valid(&nulls) {
        (None, RowPermutation::identity(rows), vec![0, rows])
    } else {
        let (groups, parts) = number_groups(groups, group_ids, nulls, context)?;
        let count = groups.as_ref().map_or(1, Groups::len);
        // The counts and numbers of each part's groups; the first positions of all groups, twice, and the next ones.
        let of_parts: usize = parts.iter().map(|part| part.groups.len() + 1).sum();
        let of_groups = 2 * size_of::<usize>() + size_of::<u32>();
        memory.try_grow(2 * of_parts * size_of::<u32>() + (count + 1) * of_groups)?;
        let (permutation, starts) = RowPermutation::by_group(parts, count, workers)?;
        (groups, permutation, starts)
    };
    let (keys, permutation) = match keys {
        OrderKeys::W32(columns) => {
            let (keys, permutation) = sort(&columns, &starts, permutation, context)?;
            (RangeKeys::W32(keys), permutation)
        }
        OrderKeys::W64(columns) => {
            let (keys, permutation) = sort(&columns, &starts, permutation, context)?;
            (RangeKeys::W64(keys), permutation)
        }
        OrderKeys::W128(columns) => {
            let (keys, permutation) = sort(&columns, &starts, permutation, context)?;
            (RangeKeys::W128(keys), permutation)
        }
        OrderKeys::Bytes(_, keys) => {
            let permutation = sort_bytes(&keys, &starts, permutation, context)?;
            let order = permutation.order(workers)?.cloned();
            (RangeKeys::Bytes(keys, order), permutation)
        }
    };
    Ok((SortedRows::new(groups, starts, keys), permutation))
}

/// The error for more rows than positions of 32 bits can tell apart.
///
/// # Errors
/// Always, an execution error.
pub fn too_many_rows<T>(rows: usize) -> Result<T> {
    exec_err!(
        "a range join takes at most {} rows on the side that is searched, not {rows}",
        u32::MAX
    )
}

/// Sorts keys within each group. Returns them, and where the rows go then. The sort is stable.
fn sort<K: RadixKey>(
    columns: &[Column<K>],
    starts: &[usize],
    permutation: RowPermutation,
    context: SortContext,
) -> Result<(CpuKeySearch<K>, RowPermutation)> {
    let SortContext { memory, workers } = context;
    let Some(encoding) = columns.first().map(Column::encoding) else {
        return Ok((search_over(&[], starts, context)?, permutation));
    };
    // Keys of one group may stay in the chunks they came in.
    let one_group = starts.len() == 2;
    if permutation.is_identity() && one_group && are_sorted(columns, workers)? {
        return Ok((search_over(columns, starts, context)?, permutation));
    }
    if permutation.is_identity()
        && !one_group
        && let [column] = columns
        && unsorted_groups(column.bits(), encoding, starts, workers)?.is_empty()
    {
        return Ok((search_over(columns, starts, context)?, permutation));
    }
    memory.try_grow(permutation.len() * size_of::<K>())?;
    let (keys, permutation) = sort_groups(columns, encoding, starts, permutation, context)?;
    let keys = Column::new(Arc::new(keys), encoding);
    Ok((search_over(&[keys], starts, context)?, permutation))
}

/// Prepares the search for sorted keys.
fn search_over<K: RadixKey>(
    columns: &[Column<K>],
    starts: &[usize],
    SortContext { memory, workers }: SortContext,
) -> Result<CpuKeySearch<K>> {
    memory.try_grow(K::search_bytes(starts))?;
    K::search_over(columns, starts, workers.threads()).map_err(engine_error)
}

/// Whether the keys of columns, one column after another, ascend.
fn are_sorted<K: RadixKey>(columns: &[Column<K>], workers: Workers) -> Result<bool> {
    let rows: usize = columns.iter().map(Column::len).sum();
    let share = columns.len().div_ceil(workers.parts(rows)).max(1);
    // Each part begins with the last column of the part before.
    let parts = (0..columns.len()).step_by(share);
    let parts =
        parts.map(|first| &columns[first.saturating_sub(1)..columns.len().min(first + share)]);
    let sorted = workers.map(parts.collect(), |part: &[Column<K>]| {
        Ok(K::are_sorted(part))
    })?;
    Ok(!sorted.contains(&false))
}
