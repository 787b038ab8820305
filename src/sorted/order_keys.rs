//! Values of one ordered type as plain keys that compare as the values do, for sorting and searching.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::utils::normalize_float_zero;
use datafusion::common::{Result, exec_err};

use crate::common::ordered_type::{is_ranked, key_bytes, value_type};
use crate::index::sort_keys::{Chunks, KeyColumn, encode};
use crate::sorted::compare::compared;
use crate::sorted::sorted_rows::Comparison;
use rmq_engine::{Column, Extreme, Key};

/// The keys of values of one type. Zeros of both signs have one key, as they are equal where DataFusion compares them; what
/// the key of a NULL is means nothing. Keys of fixed width are Arrow's own memory where that can be.
#[derive(Debug)]
pub(crate) enum OrderKeys {
    /// Types of up to 32 bits.
    W32(Vec<Column<u32>>),
    /// Of up to 64.
    W64(Vec<Column<u64>>),
    /// Wider ones of fixed width.
    W128(Vec<Column<u128>>),
    /// Strings, binaries and 256-bit decimals: Arrow's row format.
    Bytes(RowConverter, Rows),
}

impl OrderKeys {
    /// No keys yet, of values of this type.
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

    /// The keys of these values, and which of them are NULL.
    pub(crate) fn of(values: &ArrayRef) -> Result<(Self, Option<NullBuffer>)> {
        let mut keys = Self::try_new(values.data_type())?;
        keys.append(values)?;
        Ok((keys, values.logical_nulls().filter(|n| n.null_count() > 0)))
    }

    /// Adds the keys of further values of the type, and says how many bytes they take.
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
            held_by_table: true,
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

    /// Which keys compare so with one of some bounds of the same type; what is said of NULLs means nothing.
    pub(crate) fn compared(
        &self,
        comparison: Comparison,
        bounds: &Self,
        bound: usize,
    ) -> Result<BooleanBuffer> {
        Ok(match (self, bounds) {
            (Self::W32(keys), Self::W32(bounds)) => compared_with(keys, comparison, bounds, bound),
            (Self::W64(keys), Self::W64(bounds)) => compared_with(keys, comparison, bounds, bound),
            (Self::W128(keys), Self::W128(bounds)) => {
                compared_with(keys, comparison, bounds, bound)
            }
            // Rows of two converters of one type: their bytes compare.
            (Self::Bytes(_, keys), Self::Bytes(_, bounds)) => {
                let bound = bounds.row(bound).data();
                BooleanBuffer::collect_bool(keys.num_rows(), |i| {
                    comparison.holds(keys.row(i).data(), bound)
                })
            }
            _ => return exec_err!("a bound of a range join has another type than its key"),
        })
    }

    /// Which values are at most those beside them; not where either is NULL.
    pub(crate) fn are_at_most(values: &ArrayRef, others: &ArrayRef) -> Result<BooleanBuffer> {
        let ((a, a_nulls), (b, b_nulls)) = (Self::of(values)?, Self::of(others)?);
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

/// The keys of columns, one after another.
pub(crate) fn encoded<K: Key>(columns: &[Column<K>]) -> Vec<K> {
    let mut keys = Vec::with_capacity(columns.iter().map(Column::len).sum());
    for column in columns {
        let encoding = column.encoding();
        keys.extend(column.bits().iter().map(|bits| encoding.encode(*bits)));
    }
    keys
}

/// Which keys of the one column compare so with one of the bounds.
fn compared_with<K: Key>(
    keys: &[Column<K>],
    comparison: Comparison,
    bounds: &[Column<K>],
    bound: usize,
) -> BooleanBuffer {
    let ([keys], [bounds]) = (keys, bounds) else {
        return BooleanBuffer::new_unset(0);
    };
    let bound = bounds.encoding().encode(bounds.bits()[bound]);
    compared(keys, comparison, bound)
}

/// Which keys are at most those beside them.
fn at_most<K: Key>(keys: &[Column<K>], others: &[Column<K>]) -> BooleanBuffer {
    let (keys, others) = (encoded(keys), encoded(others));
    BooleanBuffer::collect_bool(keys.len(), |i| keys[i] <= others[i])
}
