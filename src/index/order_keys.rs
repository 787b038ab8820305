//! Values of one ordered type as plain keys that compare as the values do, for sorting and searching.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::utils::normalize_float_zero;
use datafusion::common::{Result, exec_err};

use super::keys::{Chunks, KeyColumn, encode, is_ranked, key_bytes, value_type};
use crate::engine::{Column, Extreme, Key};

/// The keys of values of one type. Zeros of both signs have one key, as they are equal where DataFusion compares them; what
/// the key of a NULL is means nothing.
#[derive(Debug)]
pub(crate) enum OrderKeys {
    /// Types of up to 64 bits.
    W64(Vec<u64>),
    /// Wider ones of fixed width.
    W128(Vec<u128>),
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
            _ => Self::W64(vec![]),
        })
    }

    /// The keys of these values, and which of them are NULL.
    pub(crate) fn of(values: &ArrayRef) -> Result<(Self, Option<NullBuffer>)> {
        let mut keys = Self::try_new(values.data_type())?;
        keys.append(values)?;
        Ok((keys, values.logical_nulls().filter(|n| n.null_count() > 0)))
    }

    /// Adds the keys of further values of the type.
    pub(crate) fn append(&mut self, values: &ArrayRef) -> Result<()> {
        let data_type = values.data_type();
        if let Self::Bytes(converter, rows) = self {
            let plain = cast(values, &value_type(data_type))?;
            return Ok(converter.append(rows, &[plain])?);
        }
        let chunks = Chunks {
            arrays: vec![normalize_float_zero(values)],
            held_by_table: true,
        };
        match (self, encode(&chunks, data_type, Extreme::Min)?.column) {
            (Self::W64(keys), KeyColumn::W32(column)) => extend(keys, &column, u64::from),
            (Self::W64(keys), KeyColumn::W64(column)) => extend(keys, &column, |key| key),
            (Self::W128(keys), KeyColumn::W128(column)) => extend(keys, &column, |key| key),
            _ => return exec_err!("a {data_type} among keys of another type"),
        }
        Ok(())
    }

    /// Which values are at most those beside them; not where either is NULL.
    pub(crate) fn are_at_most(values: &ArrayRef, others: &ArrayRef) -> Result<BooleanBuffer> {
        let ((a, a_nulls), (b, b_nulls)) = (Self::of(values)?, Self::of(others)?);
        let at_most =
            |compare: &dyn Fn(usize) -> bool| BooleanBuffer::collect_bool(values.len(), compare);
        let compared = match (&a, &b) {
            (Self::W64(a), Self::W64(b)) => at_most(&|i| a[i] <= b[i]),
            (Self::W128(a), Self::W128(b)) => at_most(&|i| a[i] <= b[i]),
            // Rows of two converters of one type: their bytes compare.
            (Self::Bytes(_, a), Self::Bytes(_, b)) => {
                at_most(&|i| a.row(i).data() <= b.row(i).data())
            }
            _ => return exec_err!("the bounds of a range join are of several types"),
        };
        let nulls = [a_nulls, b_nulls].into_iter().flatten();
        Ok(nulls.fold(compared, |compared, nulls| &compared & nulls.inner()))
    }

    /// Bytes of the keys.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::W64(keys) => keys.capacity() * size_of::<u64>(),
            Self::W128(keys) => keys.capacity() * size_of::<u128>(),
            Self::Bytes(_, rows) => rows.size(),
        }
    }
}

fn extend<K: Key, T>(keys: &mut Vec<T>, column: &Column<K>, widen: impl Fn(K) -> T) {
    let encoding = column.encoding();
    let bits = column.bits().iter();
    keys.extend(bits.map(|bits| widen(encoding.encode(*bits))));
}
