//! Values of one ordered type as keys of fixed width that compare as the values do, for sorting and searching.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::utils::normalize_float_zero;
use datafusion::common::{Result, exec_err, internal_err};

use crate::common::ordered_type::{is_ranked, key_bytes, value_type};
use crate::index::sort_keys::{Chunks, KeyColumn, encode};
use rmq_engine::cpu::SearchKey;
use rmq_engine::{Column, Comparison, Extreme, Key};

/// The keys of values of one type, one column per batch. Zeros of both signs have one key, because DataFusion compares
/// them as equal. The key of a NULL is unspecified. Keys of fixed width borrow Arrow's memory where possible.
#[derive(Debug)]
pub(crate) enum OrderKeys {
    /// Types of up to 32 bits.
    W32(Vec<Column<u32>>),
    /// Types of up to 64 bits.
    W64(Vec<Column<u64>>),
    /// Wider types of fixed width.
    W128(Vec<Column<u128>>),
    /// Strings, binaries and 256-bit decimals: Arrow's row format.
    Bytes(RowConverter, Rows),
}

impl OrderKeys {
    /// Returns an empty list of keys for values of this type.
    ///
    /// # Errors
    /// Arrow's error for a type that has no row format.
    pub(crate) fn try_new(data_type: &DataType) -> Result<Self> {
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
    pub(crate) fn from_values(values: &ArrayRef) -> Result<(Self, Option<NullBuffer>)> {
        let mut keys = Self::try_new(values.data_type())?;
        keys.append(values)?;
        Ok((keys, values.logical_nulls().filter(|n| n.null_count() > 0)))
    }

    /// Adds the keys of further values of the type. Returns their bytes, borrowed memory included.
    ///
    /// # Errors
    /// An execution error for values of another type or of one without an order.
    pub(crate) fn append(&mut self, values: &ArrayRef) -> Result<usize> {
        let data_type = values.data_type();
        if let Self::Bytes(converter, rows) = self {
            let plain = cast(values, &value_type(data_type))?;
            let before = rows.size();
            converter.append(rows, &[plain])?;
            return Ok(rows.size().saturating_sub(before));
        }
        let chunks = Chunks {
            arrays: vec![normalize_float_zero(values)],
            owned_elsewhere: true,
        };
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
    pub(crate) fn extend(&mut self, others: Self) -> Result<()> {
        match (self, others) {
            (Self::W32(keys), Self::W32(others)) => keys.extend(others),
            (Self::W64(keys), Self::W64(others)) => keys.extend(others),
            (Self::W128(keys), Self::W128(others)) => keys.extend(others),
            _ => return exec_err!("keys of these types can't be put together"),
        }
        Ok(())
    }

    /// Returns which keys compare so with one of some bounds of the same type. The result for NULLs is unspecified.
    ///
    /// # Errors
    /// An execution error if the types differ.
    pub(crate) fn compared(
        &self,
        comparison: Comparison,
        bounds: &Self,
        bound: usize,
    ) -> Result<BooleanBuffer> {
        match (self, bounds) {
            (Self::W32(keys), Self::W32(bounds)) => compare(keys, comparison, bounds, bound),
            (Self::W64(keys), Self::W64(bounds)) => compare(keys, comparison, bounds, bound),
            (Self::W128(keys), Self::W128(bounds)) => compare(keys, comparison, bounds, bound),
            // Rows of two converters of one type: their bytes compare.
            (Self::Bytes(_, keys), Self::Bytes(_, bounds)) => {
                let bound = bounds.row(bound).data();
                Ok(BooleanBuffer::collect_bool(keys.num_rows(), |i| {
                    comparison.holds(keys.row(i).data(), bound)
                }))
            }
            _ => exec_err!("a bound of a range join has another type than its key"),
        }
    }

    /// Returns which values are at most the values in the same rows; false if either is NULL.
    ///
    /// # Errors
    /// An execution error if the types differ.
    pub(crate) fn are_at_most(values: &ArrayRef, others: &ArrayRef) -> Result<BooleanBuffer> {
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
pub(crate) fn encoded<K: Key>(columns: &[Column<K>]) -> Vec<K> {
    let mut keys = Vec::with_capacity(columns.iter().map(Column::len).sum());
    for column in columns {
        let encoding = column.encoding();
        keys.extend(column.bits().iter().map(|bits| encoding.encode(*bits)));
    }
    keys
}

/// Compares the keys of one column with one of the bounds.
fn compare<K: SearchKey>(
    keys: &[Column<K>],
    comparison: Comparison,
    bounds: &[Column<K>],
    bound: usize,
) -> Result<BooleanBuffer> {
    let ([keys], [bounds]) = (keys, bounds) else {
        return internal_err!("keys of one batch are in several columns");
    };
    let bound = bounds.encoding().encode(bounds.bits()[bound]);
    let words = K::compare(keys, comparison, bound);
    let words = Buffer::from_vec(words);
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

    /// Compares each value with each, given ascending ranks, the same for equal values.
    fn check(values: &ArrayRef, ranks: &[u32]) {
        let (keys, _) = OrderKeys::from_values(values).expect("an ordered type");
        let (bounds, _) = OrderKeys::from_values(values).expect("an ordered type");
        for comparison in [
            Comparison::Above,
            Comparison::AtLeast,
            Comparison::Below,
            Comparison::AtMost,
        ] {
            for (bound, bound_rank) in ranks.iter().enumerate() {
                let found = keys.compared(comparison, &bounds, bound).expect("one type");
                assert_eq!(found.len(), ranks.len());
                for (row, rank) in ranks.iter().enumerate() {
                    let expected = comparison.holds(rank, bound_rank);
                    let context = (values.data_type(), row, comparison, bound);
                    assert_eq!(found.value(row), expected, "{context:?}");
                }
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
