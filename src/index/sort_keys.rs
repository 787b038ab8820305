//! Arrow's types as order-preserving keys of three widths, and keys as Arrow's values again.
//!
//! A type whose own bits serve is borrowed from Arrow's buffer: the column is the largest thing in
//! memory. A narrow type, and one that Arrow stores in parts, is converted once; strings, binaries and
//! 256-bit decimals are ranked.

#![allow(
    clippy::cast_possible_truncation,
    reason = "keys are cut into the parts they are made of"
)]

use crate::common::errors::engine_error;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayDataBuilder, ArrayRef, AsArray, BooleanArray, make_array, new_null_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::compute::{cast, concat, take};
use arrow::datatypes::{
    ArrowNativeType, DataType, Float16Type, Int8Type, Int16Type, IntervalDayTime,
    IntervalDayTimeType, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit, UInt8Type,
    UInt16Type,
};
use arrow::error::ArrowError;
use datafusion::common::{Result, exec_datafusion_err, plan_err};

use crate::common::array_bytes::arrays_bytes;
use crate::index::column_index::buffer;
use crate::index::rank::rank;
use rmq_engine::Extreme;
use rmq_engine::{Column, Encoding, Memory, SharedSlice, Validity};

/// How many bits a key of this type takes and how they come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Arrow's own bits, so many a value, with this encoding.
    Native(Width, Order),
    /// Converted into 32-bit keys that are ready as they are.
    Narrow,
    /// `IntervalDayTime`: days above milliseconds, in 64 bits.
    DayTime,
    /// `IntervalMonthDayNano`: months above days above nanoseconds, in 128 bits.
    MonthDayNano,
    /// The rank among the distinct values, 32 bits.
    Rank,
    /// A column of type Null.
    AllNull,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    W32,
    W64,
    W128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Unsigned,
    Signed,
    Float,
}

/// The layout of a type that has an order, `None` for one that has none.
fn layout(data_type: &DataType) -> Option<Layout> {
    use DataType as T;
    use Layout::{AllNull, DayTime, MonthDayNano, Narrow, Native, Rank};
    use Order::{Float, Signed, Unsigned};
    use Width::{W32, W64, W128};
    Some(match data_type {
        T::Null => AllNull,
        T::Boolean | T::Int8 | T::Int16 | T::UInt8 | T::UInt16 | T::Float16 => Narrow,
        T::UInt32 => Native(W32, Unsigned),
        T::UInt64 => Native(W64, Unsigned),
        T::Float32 => Native(W32, Float),
        T::Float64 => Native(W64, Float),
        T::Int32
        | T::Date32
        | T::Time32(_)
        | T::Decimal32(..)
        | T::Interval(IntervalUnit::YearMonth) => Native(W32, Signed),
        T::Int64
        | T::Date64
        | T::Time64(_)
        | T::Timestamp(..)
        | T::Duration(_)
        | T::Decimal64(..) => Native(W64, Signed),
        T::Decimal128(..) => Native(W128, Signed),
        T::Interval(IntervalUnit::DayTime) => DayTime,
        T::Interval(IntervalUnit::MonthDayNano) => MonthDayNano,
        T::Utf8
        | T::LargeUtf8
        | T::Utf8View
        | T::Binary
        | T::LargeBinary
        | T::BinaryView
        | T::FixedSizeBinary(_)
        | T::Decimal256(..) => Rank,
        T::Dictionary(_, value) => return layout(value),
        _ => return None,
    })
}

/// The type of a minimum: as `DataFusion`'s MIN gives it, a dictionary's is that of its values.
pub(crate) fn value_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, value) => value_type(value),
        other => other.clone(),
    }
}

/// That values of this type have a smallest one.
///
/// # Errors
/// A planning error that names the function, the column and the type.
pub(crate) fn check_ordered(function: &str, column: &str, data_type: &DataType) -> Result<()> {
    if layout(data_type).is_some() {
        return Ok(());
    }
    plan_err!(
        "{function}: {column} is a {data_type}, which has no order that range queries know; numbers, decimals, dates, \
         times, intervals, booleans, strings, binaries and dictionaries of these have one"
    )
}

/// Whether values of this type are wider than a key, so that their ranks are their keys.
pub(crate) fn is_ranked(data_type: &DataType) -> bool {
    layout(data_type) == Some(Layout::Rank)
}

/// Whether Arrow's memory of values of this type has the bits of their keys.
pub(crate) fn is_borrowed(data_type: &DataType) -> bool {
    let is_plain = !matches!(data_type, DataType::Dictionary(..));
    is_plain && matches!(layout(data_type), Some(Layout::Native(..)))
}

/// Whether values of this type have an order.
pub(crate) fn is_ordered(data_type: &DataType) -> bool {
    layout(data_type).is_some()
}

/// Bytes of a key of this type: 4, 8 or 16.
pub(crate) fn key_bytes(data_type: &DataType) -> usize {
    match layout(data_type) {
        Some(Layout::Native(Width::W64, _) | Layout::DayTime) => 8,
        Some(Layout::Native(Width::W128, _) | Layout::MonthDayNano) => 16,
        _ => 4,
    }
}

/// The arrays that a column consists of.
#[derive(Debug, Clone)]
pub(crate) struct Chunks {
    pub(crate) arrays: Vec<ArrayRef>,
    /// Whether a table in memory holds them anyway, so that an index that borrows from them takes no memory.
    pub(crate) held_by_table: bool,
}

impl Chunks {
    /// Number of values.
    pub(crate) fn rows(&self) -> usize {
        self.arrays.iter().map(Array::len).sum()
    }

    /// Bytes of the arrays.
    pub(crate) fn bytes(&self) -> usize {
        arrays_bytes(&self.arrays)
    }

    /// About how many bytes of copies [`encode`] makes of them, the most at any time.
    pub(crate) fn copy_bytes(&self, data_type: &DataType) -> usize {
        let held = || self.bytes();
        let rows = self.rows();
        match layout(data_type) {
            // The joined values, their order, their ranks, and the distinct ones.
            Some(Layout::Rank) => 2 * held() + 2 * size_of::<u32>() * rows,
            Some(Layout::Native(..)) if self.arrays.len() == 1 => {
                if self.held_by_table {
                    0
                } else {
                    held()
                }
            }
            _ => rows * key_bytes(data_type),
        }
    }
}

/// A column as an engine takes it.
#[derive(Debug, Clone)]
pub(crate) enum KeyColumn {
    W32(Column<u32>),
    W64(Column<u64>),
    W128(Column<u128>),
}

impl KeyColumn {
    /// The column, if its keys have 32 bits.
    pub(crate) fn into_32(self) -> Option<Column<u32>> {
        match self {
            Self::W32(column) => Some(column),
            Self::W64(_) | Self::W128(_) => None,
        }
    }

    /// The column, if its keys have 64 bits.
    pub(crate) fn into_64(self) -> Option<Column<u64>> {
        match self {
            Self::W64(column) => Some(column),
            Self::W32(_) | Self::W128(_) => None,
        }
    }

    /// The column, if its keys have 128 bits.
    pub(crate) fn into_128(self) -> Option<Column<u128>> {
        match self {
            Self::W128(column) => Some(column),
            Self::W32(_) | Self::W64(_) => None,
        }
    }

    /// Bytes of the values, whoever holds them.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::W32(column) => size_of_val(column.bits()),
            Self::W64(column) => size_of_val(column.bits()),
            Self::W128(column) => size_of_val(column.bits()),
        }
    }
}

/// A column's keys, what turns them back into values, and the bytes of the keys where they are a copy.
#[derive(Debug, Clone)]
pub(crate) struct Encoded {
    pub(crate) column: KeyColumn,
    pub(crate) decoder: Decoder,
    pub(crate) copied_bytes: usize,
}

/// Makes one column of keys out of `chunks`, whose type is `data_type`.
///
/// # Errors
/// An execution error for a type without an order, and Arrow's own errors where chunks can't be joined.
pub(crate) fn encode(chunks: &Chunks, data_type: &DataType, extreme: Extreme) -> Result<Encoded> {
    let layout = layout(data_type)
        .ok_or_else(|| exec_datafusion_err!("a {data_type} has no order for range queries"))?;
    let value_type = value_type(data_type);
    let (values, mut copied_bytes) = join(chunks, data_type, &value_type)?;
    let nulls = values.logical_nulls().filter(|n| n.null_count() > 0);
    let mut distinct = None;
    let column = match layout {
        Layout::Native(Width::W32, order) => {
            let encoding = encoding_32(order).directed(extreme);
            KeyColumn::W32(column(borrow::<u32>(&values), encoding, nulls)?)
        }
        Layout::Native(Width::W64, order) => {
            let encoding = encoding_64(order).directed(extreme);
            KeyColumn::W64(column(borrow::<u64>(&values), encoding, nulls)?)
        }
        Layout::Native(Width::W128, _) => {
            let bits: SharedSlice<u128> = Arc::new(Bits128(native::<i128>(&values)));
            KeyColumn::W128(column(bits, Encoding::signed().directed(extreme), nulls)?)
        }
        Layout::Narrow => {
            let keys = widen(&values);
            copied_bytes = size_of_val(keys.as_slice());
            KeyColumn::W32(column(
                Arc::new(keys),
                Encoding::unsigned().directed(extreme),
                nulls,
            )?)
        }
        Layout::DayTime => {
            let keys: Vec<u64> = values
                .as_primitive::<IntervalDayTimeType>()
                .values()
                .iter()
                .map(|v| day_time_key(*v))
                .collect();
            copied_bytes = size_of_val(keys.as_slice());
            KeyColumn::W64(column(
                Arc::new(keys),
                Encoding::unsigned().directed(extreme),
                nulls,
            )?)
        }
        Layout::MonthDayNano => {
            let keys: Vec<u128> = values
                .as_primitive::<IntervalMonthDayNanoType>()
                .values()
                .iter()
                .map(|v| month_day_nano_key(*v))
                .collect();
            copied_bytes = size_of_val(keys.as_slice());
            KeyColumn::W128(column(
                Arc::new(keys),
                Encoding::unsigned().directed(extreme),
                nulls,
            )?)
        }
        Layout::Rank => {
            let ranked = rank(&values)?;
            // The ranks replace the values.
            copied_bytes = size_of_val(ranked.ranks.as_slice());
            distinct = Some(ranked.distinct);
            let keys: SharedSlice<u32> = Arc::new(ranked.ranks);
            KeyColumn::W32(column(keys, Encoding::unsigned().directed(extreme), nulls)?)
        }
        Layout::AllNull => {
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
        decoder: Decoder {
            value_type,
            layout,
            distinct,
        },
        copied_bytes,
    })
}

/// The chunks as one array of the value type, and how many of its bytes nobody else holds.
fn join(chunks: &Chunks, data_type: &DataType, value_type: &DataType) -> Result<(ArrayRef, usize)> {
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
    let joined = match decoded.as_slice() {
        [] => return Ok((arrow::array::new_empty_array(value_type), 0)),
        [one] => Arc::clone(one),
        many => {
            let parts: Vec<&dyn Array> = many.iter().map(AsRef::as_ref).collect();
            concat(&parts).map_err(|error| match error {
                ArrowError::OffsetOverflowError(_) => exec_datafusion_err!(
                    "a column of {value_type} takes more than 2 GiB; range queries need it as one array: cast it to a type without \
                     that limit, such as arrow_cast(…, 'LargeUtf8') or 'Utf8View'"
                ),
                error => error.into(),
            })?
        }
    };
    let borrowed = plain && chunks.arrays.len() == 1 && chunks.held_by_table;
    let copied = if borrowed {
        0
    } else {
        joined.get_array_memory_size()
    };
    Ok((joined, copied))
}

fn column<K: rmq_engine::Key>(
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
    Ok(column.with_validity(validity).map_err(engine_error)?)
}

fn encoding_32(order: Order) -> Encoding<u32> {
    match order {
        Order::Unsigned => Encoding::unsigned(),
        Order::Signed => Encoding::signed(),
        Order::Float => Encoding::float(),
    }
}

fn encoding_64(order: Order) -> Encoding<u64> {
    match order {
        Order::Unsigned => Encoding::unsigned(),
        Order::Signed => Encoding::signed(),
        Order::Float => Encoding::float(),
    }
}

/// Arrow's buffer of a fixed-width array, seen as the bits of its values. A copy of it where it is not aligned for numbers of
/// that width: intervals need not be, and what was read from a file may not.
pub(crate) fn native<T: ArrowNativeType>(values: &ArrayRef) -> ScalarBuffer<T> {
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

/// A buffer of `i128` seen as `u128`.
struct Bits128(ScalarBuffer<i128>);

impl AsRef<[u128]> for Bits128 {
    fn as_ref(&self) -> &[u128] {
        let bits: &[i128] = &self.0;
        bytemuck::cast_slice(bits)
    }
}

const SIGN_32: u32 = 1 << 31;
const SIGN_64: u64 = 1 << 63;

/// 32-bit keys of a boolean or of a type of 8 or 16 bits.
fn widen(values: &ArrayRef) -> Vec<u32> {
    fn signed(value: impl Into<i32>) -> u32 {
        value.into().cast_unsigned() ^ SIGN_32
    }
    match values.data_type() {
        DataType::Boolean => values.as_boolean().values().iter().map(u32::from).collect(),
        DataType::Int8 => values
            .as_primitive::<Int8Type>()
            .values()
            .iter()
            .map(|v| signed(*v))
            .collect(),
        DataType::Int16 => values
            .as_primitive::<Int16Type>()
            .values()
            .iter()
            .map(|v| signed(*v))
            .collect(),
        DataType::UInt8 => values
            .as_primitive::<UInt8Type>()
            .values()
            .iter()
            .map(|v| u32::from(*v))
            .collect(),
        DataType::UInt16 => values
            .as_primitive::<UInt16Type>()
            .values()
            .iter()
            .map(|v| u32::from(*v))
            .collect(),
        // `layout` calls nothing else narrow.
        _ => {
            let floats = values.as_primitive::<Float16Type>().values();
            floats
                .iter()
                .map(|v| signed(fold_16(v.to_bits().cast_signed())))
                .collect()
        }
    }
}

/// The bits of a 16-bit float in IEEE total order as an integer, and back.
fn fold_16(bits: i16) -> i16 {
    bits ^ ((bits >> 15) & i16::MAX)
}

fn day_time_key(v: IntervalDayTime) -> u64 {
    let (days, millis) = (
        v.days.cast_unsigned() ^ SIGN_32,
        v.milliseconds.cast_unsigned() ^ SIGN_32,
    );
    u64::from(days) << 32 | u64::from(millis)
}

fn day_time(key: u64) -> IntervalDayTime {
    let part = |bits: u64| (bits as u32 ^ SIGN_32).cast_signed();
    IntervalDayTime::new(part(key >> 32), part(key))
}

fn month_day_nano_key(v: IntervalMonthDayNano) -> u128 {
    let (months, days) = (
        v.months.cast_unsigned() ^ SIGN_32,
        v.days.cast_unsigned() ^ SIGN_32,
    );
    let nanos = v.nanoseconds.cast_unsigned() ^ SIGN_64;
    u128::from(months) << 96 | u128::from(days) << 64 | u128::from(nanos)
}

fn month_day_nano(key: u128) -> IntervalMonthDayNano {
    let part = |bits: u128| (bits as u32 ^ SIGN_32).cast_signed();
    IntervalMonthDayNano::new(
        part(key >> 96),
        part(key >> 64),
        (key as u64 ^ SIGN_64).cast_signed(),
    )
}

/// Turns an engine's answers, the bits that the column was made of, back into Arrow's values.
#[derive(Debug, Clone)]
pub(crate) struct Decoder {
    value_type: DataType,
    layout: Layout,
    /// The distinct values in their order, where keys are ranks.
    distinct: Option<ArrayRef>,
}

impl Decoder {
    /// Bytes of the distinct values, where keys are ranks.
    pub(crate) fn bytes(&self) -> usize {
        self.distinct
            .as_ref()
            .map_or(0, Array::get_array_memory_size)
    }

    /// The type of the values that come back.
    pub(crate) fn value_type(&self) -> &DataType {
        &self.value_type
    }

    pub(crate) fn decode_32(&self, keys: Memory<u32>, valid: NullBuffer) -> Result<ArrayRef> {
        match self.layout {
            Layout::Native(..) => self.native(buffer(keys), valid),
            Layout::Narrow => self.narrow(&keys, valid),
            Layout::AllNull => Ok(new_null_array(&self.value_type, keys.len())),
            _ => {
                let ranks = ScalarBuffer::new(buffer(keys), 0, valid.len());
                let ranks = arrow::array::UInt32Array::new(ranks, Some(valid));
                let distinct = self
                    .distinct
                    .as_ref()
                    .ok_or_else(|| exec_datafusion_err!("ranks without their values"))?;
                Ok(take(distinct, &ranks, None)?)
            }
        }
    }

    pub(crate) fn decode_64(&self, keys: Memory<u64>, valid: NullBuffer) -> Result<ArrayRef> {
        match self.layout {
            Layout::Native(..) => self.native(buffer(keys), valid),
            _ => {
                let values: Vec<_> = keys.iter().map(|key| day_time(*key)).collect();
                self.native(Buffer::from_vec(values), valid)
            }
        }
    }

    pub(crate) fn decode_128(&self, keys: Memory<u128>, valid: NullBuffer) -> Result<ArrayRef> {
        if self.layout == Layout::MonthDayNano {
            let values: Vec<_> = keys.iter().map(|key| month_day_nano(*key)).collect();
            return self.native(Buffer::from_vec(values), valid);
        }
        self.native(buffer(keys), valid)
    }

    fn native(&self, values: Buffer, valid: NullBuffer) -> Result<ArrayRef> {
        let data = ArrayDataBuilder::new(self.value_type.clone())
            .len(valid.len())
            .nulls(Some(valid))
            .add_buffer(values)
            .build()?;
        Ok(make_array(data))
    }

    fn narrow(&self, keys: &[u32], valid: NullBuffer) -> Result<ArrayRef> {
        let signed = |key: &u32| (key ^ SIGN_32).cast_signed();
        // A key that stands for no value may not fit the narrow type, so every conversion truncates.
        let values = match self.value_type {
            DataType::Boolean => {
                let values = BooleanBuffer::collect_bool(keys.len(), |i| keys[i] == 1);
                return Ok(Arc::new(BooleanArray::new(values, Some(valid))));
            }
            DataType::Int8 => Buffer::from_vec(keys.iter().map(|k| signed(k) as i8).collect()),
            DataType::UInt8 => Buffer::from_vec(keys.iter().map(|k| *k as u8).collect()),
            DataType::Int16 => Buffer::from_vec(keys.iter().map(|k| signed(k) as i16).collect()),
            DataType::UInt16 => Buffer::from_vec(keys.iter().map(|k| *k as u16).collect()),
            // `layout` calls nothing else narrow but 16-bit floats.
            _ => Buffer::from_vec(keys.iter().map(|k| fold_16(signed(k) as i16)).collect()),
        };
        self.native(values, valid)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::IntervalMonthDayNanoArray;

    use super::*;

    #[test]
    fn bits_that_are_not_aligned_for_their_width_are_copied() {
        let interval = |i| IntervalMonthDayNano::new(i, 7 - i, i64::from(i) << 40);
        let values: Vec<_> = (0..9).map(interval).collect();
        let whole = ScalarBuffer::from(values.clone());
        // Such an array needs eight bytes, its bits as one number sixteen.
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
