//! Encodes Arrow arrays as order-preserving keys of three widths.
//!
//! A type whose own bits serve as keys is borrowed from Arrow's buffer, as the column is the largest object in memory.
//! A type of up to 16 bits, and one that Arrow stores in parts, is converted once; strings, binaries and 256-bit
//! decimals are ranked.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, new_empty_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::compute::{cast, concat};
use arrow::datatypes::{ArrowNativeType, DataType, IntervalDayTimeType, IntervalMonthDayNanoType};
use arrow::error::ArrowError;
use bytemuck::Pod;
use bytes::Bytes;
use datafusion_common::{Result, exec_datafusion_err, exec_err};

use crate::common::array_bytes::{arrays_bytes, compact_if_sparse};
use crate::common::errors::engine_error;
use crate::common::ordered_type::{
    KeyLayout, KeyWidth, NativeOrder, key_bytes, key_layout, value_type,
};
use crate::index::any_width::{AnyWidth, map_width, with_width};
use crate::index::decoder::Decoder;
use crate::index::narrow_keys::{day_time_key, month_day_nano_key, widen};
use crate::index::rank::rank;
use rmq_engine::{Column, ColumnChunks, ColumnSize, Encoding, Extreme, Key, SharedSlice, Validity};

/// A column as a sequence of arrays.
#[derive(Debug, Clone)]
pub struct Chunks {
    /// In the order of rows.
    pub arrays: Vec<ArrayRef>,
    /// Whether the memory of the arrays is accounted for elsewhere, such as by a table in memory: an index that borrows
    /// from them then takes no memory of its own.
    pub owned_elsewhere: bool,
}

impl Chunks {
    /// Arrays whose memory is accounted for elsewhere.
    pub fn borrowed(arrays: Vec<ArrayRef>) -> Self {
        Self {
            arrays,
            owned_elsewhere: true,
        }
    }

    /// Number of values.
    pub fn rows(&self) -> usize {
        self.arrays.iter().map(Array::len).sum()
    }

    /// Bytes of the arrays.
    pub fn bytes(&self) -> usize {
        arrays_bytes(&self.arrays)
    }

    /// The values as one array of this type, which they have.
    ///
    /// # Errors
    /// Arrow's, if one array can't have so many.
    pub fn together(&self, data_type: &DataType) -> Result<ArrayRef> {
        // The buffers that views share with other batches would be written for each batch.
        Ok(compact_if_sparse(concatenated(&self.arrays, data_type)?))
    }

    /// The number and the width of the keys of a column of this type.
    pub fn size(&self, data_type: &DataType) -> ColumnSize {
        ColumnSize {
            rows: self.rows(),
            key_bytes: key_bytes(data_type),
            nulls: self.arrays.iter().any(|c| c.logical_null_count() > 0),
        }
    }

    /// Estimates the peak number of bytes that [`encode`] copies.
    pub fn copy_bytes(&self, data_type: &DataType) -> usize {
        let bytes = || self.bytes();
        let rows = self.rows();
        match key_layout(data_type) {
            // The concatenated values, their sort order, their ranks and the distinct values.
            Some(KeyLayout::Rank) => 2 * bytes() + 2 * size_of::<u32>() * rows,
            Some(KeyLayout::Native(..)) if self.arrays.len() == 1 => {
                if self.owned_elsewhere {
                    0
                } else {
                    bytes()
                }
            }
            _ => rows * key_bytes(data_type),
        }
    }
}

/// The keys of a column, in the width that its type needs.
pub type KeyColumn = AnyWidth<Column<u32>, Column<u64>, Column<u128>>;

impl KeyColumn {
    /// Puts columns together, one after another.
    ///
    /// # Errors
    /// An execution error without a column, or for keys of different widths.
    pub fn together(columns: Vec<Self>) -> Result<ColumnChunks> {
        fn all<K>(
            columns: Vec<KeyColumn>,
            of_width: fn(KeyColumn) -> Option<Column<K>>,
        ) -> Result<Vec<Column<K>>> {
            let columns: Option<_> = columns.into_iter().map(of_width).collect();
            match columns {
                Some(columns) => Ok(columns),
                None => exec_err!("a column has keys of different widths"),
            }
        }
        macro_rules! all {
            ($width:ident) => {
                ColumnChunks::$width(all(columns, |column| match column {
                    Self::$width(column) => Some(column),
                    _ => None,
                })?)
            };
        }
        Ok(match columns.first() {
            Some(Self::W32(_)) => all!(W32),
            Some(Self::W64(_)) => all!(W64),
            Some(Self::W128(_)) => all!(W128),
            None => return exec_err!("a column to be indexed has no piece"),
        })
    }

    /// The same values with keys whose minimum is the `extreme` of those of this column.
    pub fn directed(&self, extreme: Extreme) -> Self {
        map_width!(self, column => column.directed(extreme))
    }

    /// The number and the width of the keys.
    pub fn size(&self) -> ColumnSize {
        fn column_size<K: Key>(column: &Column<K>) -> ColumnSize {
            ColumnSize {
                rows: column.len(),
                key_bytes: size_of::<K>(),
                nulls: column.validity().is_some(),
            }
        }
        with_width!(self, column => column_size(column))
    }

    /// Bytes of the keys, whether owned or borrowed.
    pub fn bytes(&self) -> usize {
        with_width!(self, column => size_of_val(column.bits()))
    }
}

/// A column's keys, the decoder of these keys, and the bytes of the keys if they are a copy, else 0.
#[derive(Debug, Clone)]
pub struct Encoded {
    /// One key for each row.
    pub column: KeyColumn,
    /// What makes values of keys.
    pub decoder: Decoder,
    /// 0 where the keys are in Arrow's own memory.
    pub copied_bytes: usize,
}

impl Encoded {
    /// The values as an array that shares the memory of the keys; `None` if the bits of keys are not Arrow's.
    ///
    /// # Errors
    /// Arrow's.
    pub fn array(&self) -> Result<Option<ArrayRef>> {
        fn parts<K: Key + Pod>(column: &Column<K>) -> (Buffer, NullBuffer) {
            let bits = SharedBits(Arc::clone(column.shared_bits()));
            let nulls = match column.validity() {
                Some(validity) => {
                    let bytes = Buffer::from_slice_ref(validity.bytes());
                    let valid = BooleanBuffer::new(bytes, validity.offset(), column.len());
                    NullBuffer::new(valid)
                }
                None => NullBuffer::new_valid(column.len()),
            };
            (Buffer::from(Bytes::from_owner(bits)), nulls)
        }
        let (values, nulls) = with_width!(&self.column, column => parts(column));
        self.decoder.array(values, nulls)
    }
}

/// The bits of a column as bytes.
struct SharedBits<K>(SharedSlice<K>);

impl<K: Pod> AsRef<[u8]> for SharedBits<K> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice((*self.0).as_ref())
    }
}

/// Encodes `chunks`, of type `data_type`, as one column of keys whose minimum is the `extreme` of the values.
///
/// # Errors
/// An execution error for a type without an order, and Arrow's own errors if the chunks can't be concatenated.
pub fn encode(chunks: &Chunks, data_type: &DataType, extreme: Extreme) -> Result<Encoded> {
    let layout = key_layout(data_type)
        .ok_or_else(|| exec_datafusion_err!("a {data_type} has no order for range queries"))?;
    let value_type = value_type(data_type);
    let (values, mut copied_bytes) = concatenate(chunks, data_type, &value_type)?;
    let nulls = values.logical_nulls().filter(|n| n.null_count() > 0);
    let mut distinct = None;
    let column = match layout {
        KeyLayout::Native(KeyWidth::W32, order) => {
            let encoding = native_encoding(order).directed(extreme);
            KeyColumn::W32(column(borrow::<u32>(&values), encoding, nulls)?)
        }
        KeyLayout::Native(KeyWidth::W64, order) => {
            let encoding = native_encoding(order).directed(extreme);
            KeyColumn::W64(column(borrow::<u64>(&values), encoding, nulls)?)
        }
        KeyLayout::Native(KeyWidth::W128, _) => {
            let bits: SharedSlice<u128> = Arc::new(Bits128(native::<i128>(&values)));
            KeyColumn::W128(column(bits, Encoding::signed().directed(extreme), nulls)?)
        }
        KeyLayout::Narrow => {
            let keys = widen(&values);
            copied_bytes = size_of_val(keys.as_slice());
            KeyColumn::W32(made_column(keys, extreme, nulls)?)
        }
        KeyLayout::DayTime => {
            let values = values.as_primitive::<IntervalDayTimeType>().values();
            let keys: Vec<u64> = values.iter().map(|v| day_time_key(*v)).collect();
            copied_bytes = size_of_val(keys.as_slice());
            KeyColumn::W64(made_column(keys, extreme, nulls)?)
        }
        KeyLayout::MonthDayNano => {
            let values = values.as_primitive::<IntervalMonthDayNanoType>().values();
            let keys: Vec<u128> = values.iter().map(|v| month_day_nano_key(*v)).collect();
            copied_bytes = size_of_val(keys.as_slice());
            KeyColumn::W128(made_column(keys, extreme, nulls)?)
        }
        KeyLayout::Rank => {
            let ranked = rank(&values)?;
            // The ranks replace the values.
            copied_bytes = size_of_val(ranked.ranks.as_slice());
            distinct = Some(ranked.distinct);
            KeyColumn::W32(made_column(ranked.ranks, extreme, nulls)?)
        }
        KeyLayout::AllNull => {
            let keys: SharedSlice<u32> = Arc::new(vec![0; values.len()]);
            KeyColumn::W32(column(
                keys,
                Encoding::unsigned(),
                Some(NullBuffer::new_null(values.len())),
            )?)
        }
    };
    Ok(Encoded {
        column,
        decoder: Decoder::new(value_type, layout, distinct),
        copied_bytes,
    })
}

/// Concatenates the chunks to one array of the value type; also returns the bytes that this copied.
fn concatenate(
    chunks: &Chunks,
    data_type: &DataType,
    value_type: &DataType,
) -> Result<(ArrayRef, usize)> {
    let plain = data_type == value_type;
    let decoded = chunks
        .arrays
        .iter()
        .map(|chunk| {
            if plain {
                Ok(Arc::clone(chunk))
            } else {
                cast(chunk, value_type)
            }
        })
        .collect::<Result<Vec<_>, _>>()?;
    let whole = concatenated(&decoded, value_type)?;
    let borrowed = plain && chunks.arrays.len() == 1 && chunks.owned_elsewhere;
    let copied = if borrowed {
        0
    } else {
        whole.get_array_memory_size()
    };
    Ok((whole, copied))
}

/// One array of this type with the values of all arrays, which have it, too.
///
/// # Errors
/// An execution error if they have more bytes than offsets of the type can tell.
pub fn concatenated(arrays: &[ArrayRef], data_type: &DataType) -> Result<ArrayRef> {
    match arrays {
        [] => Ok(new_empty_array(data_type)),
        [one] => Ok(Arc::clone(one)),
        many => {
            let parts: Vec<&dyn Array> = many.iter().map(AsRef::as_ref).collect();
            concat(&parts).map_err(|error| match error {
                ArrowError::OffsetOverflowError(_) => exec_datafusion_err!(
                    "a column of {data_type} takes more than 2 GiB; range queries need it as one array: cast it to a type without \
                     that limit, such as arrow_cast(…, 'LargeUtf8') or 'Utf8View'"
                ),
                error => error.into(),
            })
        }
    }
}

fn column<K: Key>(
    bits: SharedSlice<K>,
    encoding: Encoding<K>,
    nulls: Option<NullBuffer>,
) -> Result<Column<K>> {
    let column = Column::new(bits, encoding);
    let Some(nulls) = nulls else {
        return Ok(column);
    };
    let offset = nulls.offset();
    let bytes = ScalarBuffer::<u8>::from(nulls.into_inner().into_inner());
    let validity = Validity::new(Arc::new(bytes), offset);
    column.with_validity(validity).map_err(engine_error)
}

/// A column of keys that were made of the values, as these are not stored as keys.
fn made_column<K: Key>(
    keys: Vec<K>,
    extreme: Extreme,
    nulls: Option<NullBuffer>,
) -> Result<Column<K>> {
    let encoding = Encoding::unsigned().directed(extreme);
    column(Arc::new(keys), encoding, nulls)
}

fn native_encoding<K: Key>(order: NativeOrder) -> Encoding<K> {
    match order {
        NativeOrder::Unsigned => Encoding::unsigned(),
        NativeOrder::Signed => Encoding::signed(),
        NativeOrder::Float => Encoding::float(),
    }
}

/// Returns the buffer of a fixed-width array as integers of that width. Copies it if it is not aligned for such
/// integers, which is possible for intervals and for arrays that were read from a file.
pub fn native<T: ArrowNativeType>(values: &ArrayRef) -> ScalarBuffer<T> {
    let data: ArrayData = values.to_data();
    let width = size_of::<T>();
    let buffer = data.buffers().first().cloned().unwrap_or_default();
    let bits = buffer.slice_with_length(data.offset() * width, data.len() * width);
    let aligned = bits.as_ptr().addr().is_multiple_of(align_of::<T>());
    let bits = if aligned {
        bits
    } else {
        Buffer::from_slice_ref(bits.as_slice())
    };
    ScalarBuffer::new(bits, 0, data.len())
}

fn borrow<T: ArrowNativeType + Send + Sync>(values: &ArrayRef) -> SharedSlice<T> {
    Arc::new(native::<T>(values))
}

/// A buffer of `i128` as `u128`.
struct Bits128(ScalarBuffer<i128>);

impl AsRef<[u128]> for Bits128 {
    fn as_ref(&self) -> &[u128] {
        let bits: &[i128] = &self.0;
        bytemuck::cast_slice(bits)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::IntervalMonthDayNanoArray;
    use arrow::datatypes::IntervalMonthDayNano;

    use super::*;

    #[test]
    fn bits_that_are_not_aligned_for_their_width_are_copied() {
        let interval = |i| IntervalMonthDayNano::new(i, 7 - i, i64::from(i) << 40);
        let values: Vec<_> = (0..9).map(interval).collect();
        let whole = ScalarBuffer::from(values.clone());
        // The array requires an alignment of 8 bytes, its bits as one integer 16.
        let shifted = [&[0; 8], whole.inner().as_slice()].concat();
        let shifted = Buffer::from_slice_ref(&shifted).slice(8);
        let aligned: ArrayRef = Arc::new(IntervalMonthDayNanoArray::from(values));
        let shifted = ScalarBuffer::<IntervalMonthDayNano>::new(shifted, 0, 9);
        let shifted: ArrayRef = Arc::new(IntervalMonthDayNanoArray::new(shifted, None));
        for (from, rows) in [(0, 9), (3, 5)] {
            let bits = native::<i128>(&shifted.slice(from, rows));
            assert_eq!(bits, native::<i128>(&aligned.slice(from, rows)));
        }
    }
}
