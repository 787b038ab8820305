//! Consecutive ids of the distinct values of a column of any type that rows can be grouped by.

use std::sync::Arc;

use arrow::array::types::{BinaryType, ByteArrayType, LargeBinaryType, LargeUtf8Type, Utf8Type};
use arrow::array::{AnyDictionaryArray, Array, ArrayRef, AsArray, UInt64Array};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::compute::take;
use arrow::datatypes::{ArrowNativeType, DataType};
use arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, exec_err};

use crate::common::ordered_type::value_type;
use crate::common::workers::Workers;
use crate::index::sort_keys::native;
use crate::sorted::byte_interner::{ByteInterner, ByteKey};
use crate::sorted::id_map::IdMap;
use crate::sorted::id_table::{IdTable, NO_GROUP, Shards, merge, number};

/// Consecutive ids of the distinct values of one column. Zeros of both signs are one value; NULL has the id [`NO_GROUP`].
#[derive(Debug)]
pub(crate) enum Interner {
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
    pub(crate) fn try_new(data_type: &DataType) -> Result<Self> {
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

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::W64(ids) => ids.len(),
            Self::W128(ids) => ids.len(),
            Self::Bytes(bytes) | Self::Rows(_, bytes) => bytes.len(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
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
    pub(crate) fn add(&mut self, values: &ArrayRef, ids: &mut [u32]) -> Result<()> {
        if let Some(dictionary) = values.as_any_dictionary_opt() {
            let used = UsedValues::from_dictionary(dictionary)?;
            let mut of_values = vec![NO_GROUP; used.values.len()];
            self.add(&used.values, &mut of_values)?;
            used.spread(&of_values, ids);
            return Ok(());
        }
        match self {
            Self::W64(known) => {
                let known = known.only();
                each_64(values, ids, |key| known.add(key))
            }
            Self::W128(known) => {
                let known = known.only();
                each_128(values, ids, |key| known.add(key))
            }
            Self::Bytes(known) => {
                let known = known.only();
                each_bytes(values, ids, |bytes| known.add(bytes))
            }
            Self::Rows(rows, known) => {
                let known = known.only();
                each_row(rows, values, ids, |bytes| known.add(bytes))
            }
        }
    }

    /// Merges the interners of consecutive parts of a column. Returns the id that each value of a part has now, by its former id; ids are
    /// in order of first occurrence.
    ///
    /// # Errors
    /// If the query is cancelled, and an execution error for interners of several types.
    pub(crate) fn merge(parts: Vec<Self>, workers: Workers) -> Result<(Self, Vec<Vec<u32>>)> {
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
    pub(crate) fn find(&self, values: &ArrayRef, ids: &mut [u32]) -> Result<()> {
        if let Some(dictionary) = values.as_any_dictionary_opt() {
            let used = UsedValues::from_dictionary(dictionary)?;
            let mut of_values = vec![NO_GROUP; used.values.len()];
            self.find(&used.values, &mut of_values)?;
            used.spread(&of_values, ids);
            return Ok(());
        }
        match self {
            Self::W64(known) => each_64(values, ids, |key| known.find(key)),
            Self::W128(known) => each_128(values, ids, |key| known.find(key)),
            Self::Bytes(known) => each_bytes(values, ids, |bytes| known.find(bytes)),
            Self::Rows(rows, known) => each_row(rows, values, ids, |bytes| known.find(bytes)),
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

/// The number of values that are compared with their predecessor at once.
const RUN: usize = 64;

/// The number of equal values in a row after which a run of equal values is expected.
const STREAK: usize = 8;

/// Writes the id of each value. Equal neighbours, which are frequent, are looked up once. `repeat(i)` tells whether the [`RUN`] values
/// from `i` on equal the one before; false is always allowed.
#[inline]
fn each<K: Copy + PartialEq>(
    nulls: Option<&NullBuffer>,
    ids: &mut [u32],
    key: impl Fn(usize) -> K,
    repeat: impl Fn(usize) -> bool,
    mut id_of: impl FnMut(K) -> u32,
) {
    let mut last: Option<(K, u32)> = None;
    if let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) {
        for (i, id) in ids.iter_mut().enumerate() {
            if nulls.is_null(i) {
                *id = NO_GROUP;
                continue;
            }
            let key = key(i);
            *id = match last {
                Some((before, id)) if before == key => id,
                _ => id_of(key),
            };
            last = Some((key, *id));
        }
        return;
    }
    let mut i = 0;
    while i < ids.len() {
        let end = (i + STREAK).min(ids.len());
        let mut same = true;
        for id in &mut ids[i..end] {
            let key = key(i);
            *id = match last {
                Some((before, id)) if before == key => id,
                _ => {
                    same = false;
                    id_of(key)
                }
            };
            last = Some((key, *id));
            i += 1;
        }
        while same && let Some(run) = ids.get_mut(i..i + RUN) {
            let Some((_, id)) = last.filter(|_| repeat(i)) else {
                break;
            };
            run.fill(id);
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
fn each_64(values: &ArrayRef, ids: &mut [u32], id_of: impl FnMut(u64) -> u32) -> Result<()> {
    let nulls = values.logical_nulls();
    let nulls = nulls.as_ref();
    let data_type = values.data_type();
    if let Some(bools) = values.as_boolean_opt() {
        let bools = bools.values();
        let key = |i: usize| u64::from(bools.value(i));
        each(nulls, ids, key, |_| false, id_of);
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
            each(nulls, ids, key, |i| repeats(&bits, i), id_of);
        }
        Some(2) => {
            let bits = native::<u16>(values);
            let key = |i: usize| normalized(u64::from(bits[i]));
            each(nulls, ids, key, |i| repeats(&bits, i), id_of);
        }
        Some(4) => {
            let bits = native::<u32>(values);
            let key = |i: usize| normalized(u64::from(bits[i]));
            each(nulls, ids, key, |i| repeats(&bits, i), id_of);
        }
        Some(8) => {
            let bits = native::<u64>(values);
            let key = |i: usize| normalized(bits[i]);
            each(nulls, ids, key, |i| repeats(&bits, i), id_of);
        }
        _ => return unexpected(data_type),
    }
    Ok(())
}

/// Values of 128 bits.
fn each_128(values: &ArrayRef, ids: &mut [u32], id_of: impl FnMut(u128) -> u32) -> Result<()> {
    if values.data_type().primitive_width() != Some(16) {
        return unexpected(values.data_type());
    }
    let bits = native::<i128>(values);
    let key = |i: usize| bits[i].cast_unsigned();
    each(values.nulls(), ids, key, |i| repeats(&bits, i), id_of);
    Ok(())
}

/// Strings and binaries.
fn each_bytes<'a>(
    values: &'a ArrayRef,
    ids: &mut [u32],
    id_of: impl FnMut(ByteKey<'a>) -> u32,
) -> Result<()> {
    match values.data_type() {
        DataType::Utf8 => each_of_offsets::<Utf8Type>(values, ids, id_of),
        DataType::LargeUtf8 => each_of_offsets::<LargeUtf8Type>(values, ids, id_of),
        DataType::Binary => each_of_offsets::<BinaryType>(values, ids, id_of),
        DataType::LargeBinary => each_of_offsets::<LargeBinaryType>(values, ids, id_of),
        DataType::Utf8View => {
            let array = values.as_string_view();
            each_view(array.views(), array.data_buffers(), values, ids, id_of);
        }
        DataType::BinaryView => {
            let array = values.as_binary_view();
            each_view(array.views(), array.data_buffers(), values, ids, id_of);
        }
        DataType::FixedSizeBinary(_) => {
            let array = values.as_fixed_size_binary();
            let key = |i: usize| {
                let value = array.value(i);
                ByteKey::from_buffer(value, 0, value.len())
            };
            each(values.nulls(), ids, key, |_| false, id_of);
        }
        other => return unexpected(other),
    }
    Ok(())
}

fn each_of_offsets<'a, T: ByteArrayType>(
    values: &'a ArrayRef,
    ids: &mut [u32],
    id_of: impl FnMut(ByteKey<'a>) -> u32,
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
    each(values.nulls(), ids, key, repeat, id_of);
}

fn each_view<'a>(
    views: &'a [u128],
    buffers: &'a [Buffer],
    values: &'a ArrayRef,
    ids: &mut [u32],
    id_of: impl FnMut(ByteKey<'a>) -> u32,
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
    each(values.nulls(), ids, key, |i| repeats(views, i), id_of);
}

/// Values of any type.
fn each_row(
    converter: &RowConverter,
    values: &ArrayRef,
    ids: &mut [u32],
    mut id_of: impl FnMut(ByteKey) -> u32,
) -> Result<()> {
    let nulls = values.logical_nulls();
    let rows = converter.convert_columns(&[Arc::clone(values)])?;
    for (i, id) in ids.iter_mut().enumerate() {
        let key = rows.row(i);
        *id = match &nulls {
            Some(nulls) if nulls.is_null(i) => NO_GROUP,
            _ => id_of(ByteKey::from_buffer(key.data(), 0, key.data().len())),
        };
    }
    Ok(())
}

fn unexpected<T>(data_type: &DataType) -> Result<T> {
    exec_err!("a {data_type} among equality keys of another type")
}
