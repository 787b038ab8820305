//! Values of one ordered type as keys of fixed width that compare as the values do, for sorting and searching.

use arrow::array::{Array, ArrayRef, new_empty_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use arrow::row::{Row, RowConverter, Rows, SortField};
use datafusion_common::utils::normalize_float_zero;
use datafusion_common::{DataFusionError, Result, ScalarValue, exec_err, internal_err};

use crate::common::ordered_type::{is_ranked, key_bytes, value_type};
use crate::index::sort_keys::{Chunks, KeyColumn, encode};
use rmq_engine::cpu::SearchKey;
use rmq_engine::{Column, Extreme, Key};

/// The keys of values of one type, one column per batch. Zeros of both signs have one key, because DataFusion compares
/// them as equal. The key of a NULL is unspecified. Keys of fixed width borrow Arrow's memory where possible.
#[derive(Debug)]
pub enum OrderKeys {
    /// Types of up to 32 bits.
    W32(Vec<Column<u32>>),
    /// Types of up to 64 bits.
    W64(Vec<Column<u64>>),
    /// Wider types of fixed width.
    W128(Vec<Column<u128>>),
    /// Strings, binaries and 256-bit decimals: Arrow's row format.
    Bytes(RowConverter, Rows),
}

/// From these bytes to those, or to the end of all.
type BytesInterval = (Box<[u8]>, Option<Box<[u8]>>);

/// Disjoint intervals of keys of one type in ascending order. Both ends belong to them.
#[derive(Debug)]
pub enum KeyIntervals {
    /// Of 32 bits.
    W32(Vec<(u32, u32)>),
    /// Of 64 bits.
    W64(Vec<(u64, u64)>),
    /// Of 128 bits.
    W128(Vec<(u128, u128)>),
    /// Of keys that are compared as bytes.
    Bytes(Vec<BytesInterval>),
}

impl KeyIntervals {
    /// The keys of intervals of values of this type, given by their ends; one that is `None` is that of all values.
    ///
    /// # Errors
    /// An execution error for ends of another type, or of one without an order.
    pub fn try_new<'a>(
        data_type: &DataType,
        ends: impl Iterator<Item = (Option<&'a ScalarValue>, Option<&'a ScalarValue>)>,
    ) -> Result<Self> {
        let (lows, highs): (Vec<_>, Vec<_>) = ends.unzip();
        // Those that are open are the first and the last.
        let is_open_below = lows.first().is_some_and(Option::is_none);
        let is_open_above = highs.last().is_some_and(Option::is_none);
        let is_open = (is_open_below, is_open_above);
        let keys = |ends: Vec<Option<&ScalarValue>>| {
            let mut ends = ends.into_iter().flatten().cloned().peekable();
            let values = match ends.peek() {
                Some(_) => ScalarValue::iter_to_array(ends)?,
                None => new_empty_array(data_type),
            };
            Ok::<_, DataFusionError>(OrderKeys::from_values(&values)?.0)
        };
        Ok(match (keys(lows)?, keys(highs)?) {
            (OrderKeys::W32(lows), OrderKeys::W32(highs)) => {
                Self::W32(pairs(&lows, &highs, is_open))
            }
            (OrderKeys::W64(lows), OrderKeys::W64(highs)) => {
                Self::W64(pairs(&lows, &highs, is_open))
            }
            (OrderKeys::W128(lows), OrderKeys::W128(highs)) => {
                Self::W128(pairs(&lows, &highs, is_open))
            }
            (OrderKeys::Bytes(_, lows), OrderKeys::Bytes(_, highs)) => {
                let bytes = |row: Row<'_>| Box::from(row.data());
                // No bytes are below those of any value.
                let least = is_open_below.then(Box::default);
                let lows = least.into_iter().chain(lows.iter().map(bytes));
                let highs = highs.iter().map(|row| Some(bytes(row)));
                let highs = highs.chain(is_open_above.then_some(None));
                Self::Bytes(lows.zip(highs).collect())
            }
            _ => return exec_err!("the ends of intervals are of several types"),
        })
    }
}

/// Returns the ends of intervals. If the first or last is open, it ends with the least or greatest key.
fn pairs<K: Key>(
    lows: &[Column<K>],
    highs: &[Column<K>],
    (is_open_below, is_open_above): (bool, bool),
) -> Vec<(K, K)> {
    let lows = is_open_below
        .then_some(K::ZERO)
        .into_iter()
        .chain(encoded(lows));
    let highs = encoded(highs)
        .into_iter()
        .chain(is_open_above.then_some(K::MAX));
    lows.zip(highs).collect()
}

impl OrderKeys {
    /// Returns an empty list of keys for values of this type.
    ///
    /// # Errors
    /// Arrow's error for a type that has no row format.
    pub fn try_new(data_type: &DataType) -> Result<Self> {
        if is_ranked(data_type) {
            let field = SortField::new(value_type(data_type));
            let converter = RowConverter::new(vec![field])?;
            let rows = converter.empty_rows(0, 0);
            return Ok(Self::Bytes(converter, rows));
        }
        Ok(match key_bytes(data_type) {
            16 => Self::W128(vec![]),
            8 => Self::W64(vec![]),
            _ => Self::W32(vec![]),
        })
    }

    /// Returns the keys of these values, and their NULLs if there are any.
    ///
    /// # Errors
    /// As [`Self::try_new`].
    pub fn from_values(values: &ArrayRef) -> Result<(Self, Option<NullBuffer>)> {
        let mut keys = Self::try_new(values.data_type())?;
        keys.append(values)?;
        Ok((keys, values.logical_nulls().filter(|n| n.null_count() > 0)))
    }

    /// Adds the keys of further values of the type. Returns their bytes, borrowed memory included.
    ///
    /// # Errors
    /// An execution error for values of another type or of one without an order.
    pub fn append(&mut self, values: &ArrayRef) -> Result<usize> {
        let data_type = values.data_type();
        if let Self::Bytes(converter, rows) = self {
            let plain = cast(values, &value_type(data_type))?;
            let before = rows.size();
            converter.append(rows, &[plain])?;
            return Ok(rows.size().saturating_sub(before));
        }
        let chunks = Chunks::borrowed(vec![normalize_float_zero(values)]);
        let column = encode(&chunks, data_type, Extreme::Min)?.column;
        let bytes = column.bytes();
        match (self, column) {
            (Self::W32(keys), KeyColumn::W32(column)) => keys.push(column),
            (Self::W64(keys), KeyColumn::W64(column)) => keys.push(column),
            (Self::W128(keys), KeyColumn::W128(column)) => keys.push(column),
            _ => return exec_err!("a {data_type} among keys of another type"),
        }
        Ok(bytes)
    }

    /// Adds the keys of further values of the same type.
    ///
    /// # Errors
    /// An execution error for keys of another width, or in Arrow's row format.
    pub fn extend(&mut self, others: Self) -> Result<()> {
        match (self, others) {
            (Self::W32(keys), Self::W32(others)) => keys.extend(others),
            (Self::W64(keys), Self::W64(others)) => keys.extend(others),
            (Self::W128(keys), Self::W128(others)) => keys.extend(others),
            _ => return exec_err!("keys of these types can't be put together"),
        }
        Ok(())
    }

    /// Returns which keys are in an interval. The result for NULLs is unspecified.
    ///
    /// # Errors
    /// An execution error if the types differ.
    pub fn within(&self, intervals: &KeyIntervals) -> Result<BooleanBuffer> {
        match (self, intervals) {
            (Self::W32(keys), KeyIntervals::W32(intervals)) => within(keys, intervals),
            (Self::W64(keys), KeyIntervals::W64(intervals)) => within(keys, intervals),
            (Self::W128(keys), KeyIntervals::W128(intervals)) => within(keys, intervals),
            (Self::Bytes(_, keys), KeyIntervals::Bytes(intervals)) => {
                let is_within = |i| {
                    let key = keys.row(i).data();
                    let begun = intervals.partition_point(|(low, _)| **low <= *key);
                    let last = begun.checked_sub(1).map(|last| &intervals[last].1);
                    last.is_some_and(|high| high.as_ref().is_none_or(|high| *key <= **high))
                };
                Ok(BooleanBuffer::collect_bool(keys.num_rows(), is_within))
            }
            _ => exec_err!("intervals of a range key are of another type"),
        }
    }

    /// Returns which values are at most the values in the same rows; false if either is NULL.
    ///
    /// # Errors
    /// An execution error if the types differ.
    pub fn are_at_most(values: &ArrayRef, others: &ArrayRef) -> Result<BooleanBuffer> {
        let ((a, a_nulls), (b, b_nulls)) = (Self::from_values(values)?, Self::from_values(others)?);
        let compared = match (&a, &b) {
            (Self::W32(a), Self::W32(b)) => at_most(a, b),
            (Self::W64(a), Self::W64(b)) => at_most(a, b),
            (Self::W128(a), Self::W128(b)) => at_most(a, b),
            // Rows of two converters of one type: their bytes compare.
            (Self::Bytes(_, a), Self::Bytes(_, b)) => {
                let compare = |i| a.row(i).data() <= b.row(i).data();
                BooleanBuffer::collect_bool(values.len(), compare)
            }
            _ => return exec_err!("the bounds of a range join are of several types"),
        };
        let nulls = [a_nulls, b_nulls].into_iter().flatten();
        Ok(nulls.fold(compared, |compared, nulls| &compared & nulls.inner()))
    }
}

/// Returns the keys of columns, one column after another.
pub fn encoded<K: Key>(columns: &[Column<K>]) -> Vec<K> {
    let mut keys = Vec::with_capacity(columns.iter().map(Column::len).sum());
    for column in columns {
        let encoding = column.encoding();
        keys.extend(column.bits().iter().map(|bits| encoding.encode(*bits)));
    }
    keys
}

/// Returns which keys of one column are in an interval.
fn within<K: SearchKey>(keys: &[Column<K>], intervals: &[(K, K)]) -> Result<BooleanBuffer> {
    let [keys] = keys else {
        return internal_err!("keys of one batch are in several columns");
    };
    let words = Buffer::from_vec(K::within(keys, intervals));
    Ok(BooleanBuffer::new(words, 0, keys.len()))
}

/// Returns which keys are at most the keys in the same rows.
fn at_most<K: Key>(keys: &[Column<K>], others: &[Column<K>]) -> BooleanBuffer {
    let (keys, others) = (encoded(keys), encoded(others));
    BooleanBuffer::collect_bool(keys.len(), |i| keys[i] <= others[i])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        Decimal128Array, Float32Array, Float64Array, Int8Array, Int32Array, Int64Array,
        IntervalMonthDayNanoArray, StringArray, UInt32Array,
    };
    use arrow::datatypes::IntervalMonthDayNano;

    use super::*;

    /// Compares each value with the interval from each to each, given ascending ranks, the same for equal values.
    fn check(values: &ArrayRef, ranks: &[u32]) {
        let (keys, _) = OrderKeys::from_values(values).expect("an ordered type");
        let end = |row| ScalarValue::try_from_array(values, row).expect("a value");
        let ends = || std::iter::once(None).chain((0..ranks.len().min(20)).map(Some));
        for (low, high) in ends().flat_map(|low| ends().map(move |high| (low, high))) {
            let rank = |row: Option<usize>, open| row.map_or(open, |row| ranks[row]);
            let (from, to) = (rank(low, 0), rank(high, u32::MAX));
            if from > to {
                continue;
            }
            let interval = (low.map(end), high.map(end));
            let interval = std::iter::once((interval.0.as_ref(), interval.1.as_ref()));
            let interval = KeyIntervals::try_new(values.data_type(), interval);
            let found = keys.within(&interval.expect("two ends")).expect("one type");
            assert_eq!(found.len(), ranks.len());
            for (row, rank) in ranks.iter().enumerate() {
                let expected = (from..=to).contains(rank);
                let context = (values.data_type(), row, low, high);
                assert_eq!(found.value(row), expected, "{context:?}");
            }
        }
    }

    #[test]
    fn keys_compare_as_their_values_do() {
        let many: Vec<i32> = (0..200).map(|i| (i * 37) % 11 - 5).collect();
        let ranks: Vec<u32> = many.iter().map(|v| (v + 5).cast_unsigned()).collect();
        check(
            &(Arc::new(Int32Array::from(many.clone())) as ArrayRef),
            &ranks,
        );
        let wide = many.iter().map(|v| i64::from(*v) << 40);
        check(
            &(Arc::new(wide.collect::<Int64Array>()) as ArrayRef),
            &ranks,
        );
        let decimals = many.iter().map(|v| Some(i128::from(*v) << 70));
        check(
            &(Arc::new(decimals.collect::<Decimal128Array>()) as ArrayRef),
            &ranks,
        );
        let intervals = many.iter().map(|v| IntervalMonthDayNano::new(*v, 0, 0));
        let intervals: Vec<_> = intervals.collect();
        check(
            &(Arc::new(IntervalMonthDayNanoArray::from(intervals)) as ArrayRef),
            &ranks,
        );
        check(
            &(Arc::new(UInt32Array::from(vec![0, 7, u32::MAX])) as ArrayRef),
            &[0, 1, 2],
        );
        check(
            &(Arc::new(Int8Array::from(vec![i8::MIN, -1, 0, i8::MAX])) as ArrayRef),
            &[0, 1, 2, 3],
        );
        check(
            &(Arc::new(StringArray::from(vec!["", "a", "ab", "b"])) as ArrayRef),
            &[0, 1, 2, 3],
        );
        check(
            &(Arc::new(Int32Array::from(Vec::<i32>::new())) as ArrayRef),
            &[],
        );
    }

    #[test]
    fn zeros_of_both_signs_are_equal_and_nan_is_above_infinity() {
        let values = [
            f64::NEG_INFINITY,
            -1.0,
            -0.0,
            0.0,
            1.0,
            f64::INFINITY,
            f64::NAN,
        ];
        let ranks = [0, 1, 2, 2, 3, 4, 5];
        check(
            &(Arc::new(Float64Array::from(values.to_vec())) as ArrayRef),
            &ranks,
        );
        let narrow = [
            f32::NEG_INFINITY,
            -1.0,
            -0.0,
            0.0,
            1.0,
            f32::INFINITY,
            f32::NAN,
        ];
        check(
            &(Arc::new(Float32Array::from(narrow.to_vec())) as ArrayRef),
            &ranks,
        );
        // A slice begins within its buffer.
        let slice = Arc::new(Float64Array::from(values.to_vec()).slice(2, 4)) as ArrayRef;
        check(&slice, &ranks[2..6]);
    }
}
