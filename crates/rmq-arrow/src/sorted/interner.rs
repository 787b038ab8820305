//! Consecutive ids of the distinct values of a column of any type that rows can be grouped by.

use std::sync::Arc;

use arrow::array::types::{BinaryType, ByteArrayType, LargeBinaryType, LargeUtf8Type, Utf8Type};
use arrow::array::{AnyDictionaryArray, Array, ArrayRef, AsArray, UInt64Array};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::compute::take;
use arrow::datatypes::{ArrowNativeType, DataType};
use arrow::row::{RowConverter, SortField};
use datafusion_common::{Result, exec_err};

use crate::common::ordered_type::value_type;
use crate::common::workers::Workers;
use crate::index::sort_keys::native;
use crate::sorted::byte_interner::{ByteInterner, ByteKey};
use crate::sorted::id_map::IdMap;
use crate::sorted::id_table::{IdTable, NO_GROUP, Shards, merge, number};

/// Consecutive ids of the distinct values of one column. Zeros of both signs are one value; NULL has the id
/// [`NO_GROUP`].
#[derive(Debug)]
pub enum Interner {
    /// Values of up to 64 bits.
    W64(Shards<IdMap<u64>>),
    /// Values of 128 bits.
    W128(Shards<IdMap<u128>>),
    /// Strings and binaries.
    Bytes(Shards<ByteInterner>),
    /// All other types, as Arrow's rows.
    Rows(RowConverter, Shards<ByteInterner>),
}

impl Interner {
    /// An empty interner for values of this type.
    ///
    /// # Errors
    /// Arrow's, for a type that has no row format.
    pub fn try_new(data_type: &DataType) -> Result<Self> {
        use DataType as T;
        Ok(match value_type(data_type) {
            T::Utf8
            | T::LargeUtf8
            | T::Utf8View
            | T::Binary
            | T::LargeBinary
            | T::BinaryView
            | T::FixedSizeBinary(_) => Self::Bytes(Shards::default()),
            T::Boolean => Self::W64(Shards::default()),
            other => match other.primitive_width() {
                Some(1 | 2 | 4 | 8) => Self::W64(Shards::default()),
                Some(16) => Self::W128(Shards::default()),
                _ => Self::Rows(
                    RowConverter::new(vec![SortField::new(other)])?,
                    Shards::default(),
                ),
            },
        })
    }

    pub fn len(&self) -> usize {
        match self {
            Self::W64(ids) => ids.len(),
            Self::W128(ids) => ids.len(),
            Self::Bytes(bytes) | Self::Rows(_, bytes) => bytes.len(),
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Self::W64(ids) => ids.bytes(),
            Self::W128(ids) => ids.bytes(),
            Self::Bytes(bytes) | Self::Rows(_, bytes) => bytes.bytes(),
        }
    }

    /// Writes the id of each value; a new value gets the next id.
    ///
    /// # Errors
    /// An execution error for values of another type.
    pub fn add(&mut self, values: &ArrayRef, ids: &mut [u32]) -> Result<()> {
        if let Some(dictionary) = values.as_any_dictionary_opt() {
            let used = UsedValues::from_dictionary(dictionary)?;
            let mut of_values = vec![NO_GROUP; used.values.len()];
            self.add(&used.values, &mut of_values)?;
            used.spread(&of_values, ids);
            return Ok(());
        }
        match self {
            Self::W64(known) => each_64(values, ids, Adding(known.only())),
            Self::W128(known) => each_128(values, ids, Adding(known.only())),
            Self::Bytes(known) => each_bytes(values, ids, Adding(known.only())),
            Self::Rows(rows, known) => each_row(rows, values, ids, Adding(known.only())),
        }
    }

    /// Merges the interners of consecutive parts of a column. Returns the id that each value of a part has now, by its
    /// former id; ids are in order of first occurrence.
    ///
    /// # Errors
    /// If the query is cancelled, and an execution error for interners of several types.
    pub fn merge(parts: Vec<Self>, workers: Workers) -> Result<(Self, Vec<Vec<u32>>)> {
        /// Merges the tables of one kind of interners.
        macro_rules! merge_tables {
            ($table:ty, $pattern:pat => $found:expr) => {{
                let mut tables = vec![];
                for part in &parts {
                    let $pattern = part else {
                        return exec_err!("equality keys of several types in one column");
                    };
                    tables.push($found);
                }
                let keys = workers.map(tables, |table| Ok(table.keys()))?;
                merge::<$table>(&keys, workers)?
            }};
        }
        let (merged, ids) = match &parts[..] {
            [] => return exec_err!("no interners to merge"),
            [Self::W64(_), ..] => {
                let (table, ids) = merge_tables!(IdMap<u64>, Self::W64(table) => table);
                (Self::W64(table), ids)
            }
            [Self::W128(_), ..] => {
                let (table, ids) = merge_tables!(IdMap<u128>, Self::W128(table) => table);
                (Self::W128(table), ids)
            }
            [Self::Bytes(_), ..] => {
                let (table, ids) = merge_tables!(ByteInterner, Self::Bytes(table) => table);
                (Self::Bytes(table), ids)
            }
            [Self::Rows(..), ..] => {
                let (table, ids) = merge_tables!(ByteInterner, Self::Rows(_, table) => table);
                let Some(Self::Rows(rows, _)) = parts.into_iter().next() else {
                    return exec_err!("no interners to merge");
                };
                (Self::Rows(rows, table), ids)
            }
        };
        Ok((merged, ids))
    }

    /// Writes the id of each value, [`NO_GROUP`] for a value that was never added.
    ///
    /// # Errors
    /// An execution error for values of another type.
    pub fn find(&self, values: &ArrayRef, ids: &mut [u32]) -> Result<()> {
        if let Some(dictionary) = values.as_any_dictionary_opt() {
            let used = UsedValues::from_dictionary(dictionary)?;
            let mut of_values = vec![NO_GROUP; used.values.len()];
            self.find(&used.values, &mut of_values)?;
            used.spread(&of_values, ids);
            return Ok(());
        }
        match self {
            Self::W64(known) => each_64(values, ids, Finding(known)),
            Self::W128(known) => each_128(values, ids, Finding(known)),
            Self::Bytes(known) => each_bytes(values, ids, Finding(known)),
            Self::Rows(rows, known) => each_row(rows, values, ids, Finding(known)),
        }
    }
}

/// The values of a dictionary that its rows use, once each, in order of first use.
struct UsedValues {
    values: ArrayRef,
    /// The index of each row's value, [`NO_GROUP`] for NULL.
    of_rows: Vec<u32>,
}

impl UsedValues {
    fn from_dictionary(dictionary: &dyn AnyDictionaryArray) -> Result<Self> {
        let rows = dictionary.keys().len();
        let nulls = dictionary.keys().nulls();
        // The table of all values below is too large if these are many more than the rows.
        if dictionary.values().len() / 16 > rows || dictionary.values().is_empty() {
            return Ok(Self {
                values: take(dictionary.values(), dictionary.keys(), None)?,
                of_rows: (0..rows).map(number).collect(),
            });
        }
        let mut indices = vec![NO_GROUP; dictionary.values().len()];
        let mut used: Vec<u64> = vec![];
        let mut of_rows = Vec::with_capacity(rows);
        for (row, key) in dictionary.normalized_keys().into_iter().enumerate() {
            if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                of_rows.push(NO_GROUP);
                continue;
            }
            if indices[key] == NO_GROUP {
                indices[key] = number(used.len());
                used.push(key as u64);
            }
            of_rows.push(indices[key]);
        }
        Ok(Self {
            values: take(dictionary.values(), &UInt64Array::from(used), None)?,
            of_rows,
        })
    }

    /// Writes the id of each row, given the ids of the used values.
    fn spread(&self, of_values: &[u32], ids: &mut [u32]) {
        for (id, value) in ids.iter_mut().zip(&self.of_rows) {
            *id = match *value {
                NO_GROUP => NO_GROUP,
                value => of_values[value as usize],
            };
        }
    }
}

/// What gives keys their ids.
trait Ids<K> {
    /// The id of a key that is in the cache.
    fn cached(&self, key: K) -> Option<u32>;

    /// The id of a key.
    fn id(&mut self, key: K) -> u32;
}

/// Gives new keys the next ids.
struct Adding<'a, T>(&'a mut T);

/// Finds ids, and none for unknown keys.
struct Finding<'a, T>(&'a Shards<T>);

impl<'k, T: IdTable> Ids<T::Key<'k>> for Adding<'_, T> {
    #[inline]
    fn cached(&self, key: T::Key<'k>) -> Option<u32> {
        self.0.cached(key)
    }

    #[inline]
    fn id(&mut self, key: T::Key<'k>) -> u32 {
        self.0.add(key)
    }
}

impl<'k, T: IdTable> Ids<T::Key<'k>> for Finding<'_, T> {
    #[inline]
    fn cached(&self, key: T::Key<'k>) -> Option<u32> {
        self.0.cached(key)
    }

    #[inline]
    fn id(&mut self, key: T::Key<'k>) -> u32 {
        self.0.find(key)
    }
}

/// The number of values that are looked up in the cache together, which takes half the time of one after the other: no
/// branch depends on a hit.
const BLOCK: usize = 8;

/// The number of values that are compared with their predecessor at once, where those before are equal.
const RUN: usize = 64;

/// Writes the id of each value. Equal values in a row are looked up once, and none is looked up in long runs:
/// `repeat(i)` tells whether the [`RUN`] values from `i` on equal the one before; false is always allowed.
#[inline]
fn each<K: Copy + PartialEq>(
    nulls: Option<&NullBuffer>,
    ids: &mut [u32],
    key: impl Fn(usize) -> K,
    repeat: impl Fn(usize) -> bool,
    mut known: impl Ids<K>,
) {
    // The last key that the cache did not have.
    let mut last: Option<(K, u32)> = None;
    let mut id_of = |known: &mut _, key: K| {
        let id = match last {
            Some((before, id)) if before == key => id,
            _ => Ids::id(known, key),
        };
        last = Some((key, id));
        id
    };
    if let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) {
        for (i, id) in ids.iter_mut().enumerate() {
            *id = if nulls.is_null(i) {
                NO_GROUP
            } else {
                id_of(&mut known, key(i))
            };
        }
        return;
    }
    let mut i = 0;
    while i < ids.len() {
        let end = (i + BLOCK).min(ids.len());
        let block = &mut ids[i..end];
        let mut missing = 0_u32;
        for (j, id) in block.iter_mut().enumerate() {
            let cached = known.cached(key(i + j));
            *id = cached.unwrap_or(NO_GROUP);
            missing |= u32::from(cached.is_none()) << j;
        }
        while missing > 0 {
            let j = missing.trailing_zeros() as usize;
            missing &= missing - 1;
            block[j] = id_of(&mut known, key(i + j));
        }
        let first = block[0];
        let is_run = block.iter().all(|id| *id == first);
        i = end;
        while is_run
            && let Some(run) = ids.get_mut(i..i + RUN)
            && repeat(i)
        {
            run.fill(first);
            i += RUN;
        }
    }
}

/// Whether the [`RUN`] values from `from` on, which is not 0, have the bits of the value before.
#[inline]
fn repeats<T: Copy + PartialEq>(bits: &[T], from: usize) -> bool {
    let (before, run) = (bits[from - 1], &bits[from..from + RUN]);
    // Counting all of them vectorizes; an early exit does not.
    run.iter().filter(|bits| **bits == before).count() == RUN
}

/// Values of a fixed width of up to 64 bits.
fn each_64(values: &ArrayRef, ids: &mut [u32], known: impl Ids<u64>) -> Result<()> {
    let nulls = values.logical_nulls();
    let nulls = nulls.as_ref();
    let data_type = values.data_type();
    if let Some(bools) = values.as_boolean_opt() {
        let bools = bools.values();
        let key = |i: usize| u64::from(bools.value(i));
        each(nulls, ids, key, |_| false, known);
        return Ok(());
    }
    let minus_zero = match data_type {
        DataType::Float16 => 1 << 15,
        DataType::Float32 => 1 << 31,
        DataType::Float64 => 1 << 63,
        // Only floats have two zeros.
        _ => 0,
    };
    let normalized = |bits: u64| if bits == minus_zero { 0 } else { bits };
    match data_type.primitive_width() {
        Some(1) => {
            let bits = native::<u8>(values);
            let key = |i: usize| u64::from(bits[i]);
            each(nulls, ids, key, |i| repeats(&bits, i), known);
        }
        Some(2) => {
            let bits = native::<u16>(values);
            let key = |i: usize| normalized(u64::from(bits[i]));
            each(nulls, ids, key, |i| repeats(&bits, i), known);
        }
        Some(4) => {
            let bits = native::<u32>(values);
            let key = |i: usize| normalized(u64::from(bits[i]));
            each(nulls, ids, key, |i| repeats(&bits, i), known);
        }
        Some(8) => {
            let bits = native::<u64>(values);
            let key = |i: usize| normalized(bits[i]);
            each(nulls, ids, key, |i| repeats(&bits, i), known);
        }
        _ => return unexpected(data_type),
    }
    Ok(())
}

/// Values of 128 bits.
fn each_128(values: &ArrayRef, ids: &mut [u32], known: impl Ids<u128>) -> Result<()> {
    if values.data_type().primitive_width() != Some(16) {
        return unexpected(values.data_type());
    }
    let bits = native::<i128>(values);
    let key = |i: usize| bits[i].cast_unsigned();
    each(values.nulls(), ids, key, |i| repeats(&bits, i), known);
    Ok(())
}

/// Strings and binaries.
fn each_bytes<'a>(
    values: &'a ArrayRef,
    ids: &mut [u32],
    known: impl Ids<ByteKey<'a>>,
) -> Result<()> {
    match values.data_type() {
        DataType::Utf8 => each_of_offsets::<Utf8Type>(values, ids, known),
        DataType::LargeUtf8 => each_of_offsets::<LargeUtf8Type>(values, ids, known),
        DataType::Binary => each_of_offsets::<BinaryType>(values, ids, known),
        DataType::LargeBinary => each_of_offsets::<LargeBinaryType>(values, ids, known),
        DataType::Utf8View => {
            let array = values.as_string_view();
            each_view(array.views(), array.data_buffers(), values, ids, known);
        }
        DataType::BinaryView => {
            let array = values.as_binary_view();
            each_view(array.views(), array.data_buffers(), values, ids, known);
        }
        DataType::FixedSizeBinary(_) => {
            let array = values.as_fixed_size_binary();
            let key = |i: usize| {
                let value = array.value(i);
                ByteKey::from_buffer(value, 0, value.len())
            };
            each(values.nulls(), ids, key, |_| false, known);
        }
        other => return unexpected(other),
    }
    Ok(())
}

fn each_of_offsets<'a, T: ByteArrayType>(
    values: &'a ArrayRef,
    ids: &mut [u32],
    known: impl Ids<ByteKey<'a>>,
) {
    let array = values.as_bytes::<T>();
    let (ends, bytes) = (array.value_offsets(), array.value_data());
    let key = |i: usize| {
        let (start, end) = (ends[i].as_usize(), ends[i + 1].as_usize());
        ByteKey::from_buffer(bytes, start, end - start)
    };
    let repeat = |i: usize| {
        let ends = &ends[i - 1..=i + RUN];
        let (start, end) = (ends[0].as_usize(), ends[RUN].as_usize());
        let len = ends[1].as_usize() - start;
        let lens = ends.windows(2);
        let lens = lens.map(|ends| ends[1].as_usize() - ends[0].as_usize());
        // The values are equal if the bytes equal themselves shifted by one value.
        lens.filter(|other| *other == len).count() == RUN + 1
            && bytes[start..end] == bytes[start + len..end + len]
    };
    each(values.nulls(), ids, key, repeat, known);
}

fn each_view<'a>(
    views: &'a [u128],
    buffers: &'a [Buffer],
    values: &'a ArrayRef,
    ids: &mut [u32],
    known: impl Ids<ByteKey<'a>>,
) {
    let key = |i: usize| {
        let view = views[i];
        #[expect(clippy::cast_possible_truncation, reason = "32 of its bits")]
        let part = |shift: u32| (view >> shift) as u32 as usize;
        let len = part(0);
        if len <= 12 {
            // The view contains the bytes, padded with zeros.
            return ByteKey::Short(view >> 32 | (len as u128) << 120);
        }
        ByteKey::from_buffer(&buffers[part(64)], part(96), len)
    };
    each(values.nulls(), ids, key, |i| repeats(views, i), known);
}

/// Values of any type.
fn each_row(
    converter: &RowConverter,
    values: &ArrayRef,
    ids: &mut [u32],
    mut known: impl for<'k> Ids<ByteKey<'k>>,
) -> Result<()> {
    let nulls = values.logical_nulls();
    let rows = converter.convert_columns(&[Arc::clone(values)])?;
    for (i, id) in ids.iter_mut().enumerate() {
        let key = rows.row(i);
        *id = match &nulls {
            Some(nulls) if nulls.is_null(i) => NO_GROUP,
            _ => known.id(ByteKey::from_buffer(key.data(), 0, key.data().len())),
        };
    }
    Ok(())
}

fn unexpected<T>(data_type: &DataType) -> Result<T> {
    exec_err!("a {data_type} among equality keys of another type")
}
