//! Values of one ordered type as plain keys that compare as the values do, for sorting and searching.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::Result;
use datafusion::common::utils::normalize_float_zero;

use super::keys::{Chunks, KeyColumn, encode, is_ranked, value_type};
use crate::engine::{Column, Extreme, Key};

/// The keys of an array. Two arrays of one value type give comparable keys.
#[derive(Debug)]
pub(crate) enum OrderKeys {
    /// Types of up to 64 bits.
    W64(Vec<u64>),
    /// Wider ones of fixed width.
    W128(Vec<u128>),
    /// Strings, binaries and 256-bit decimals: Arrow's row format.
    Bytes(Rows),
}

/// The keys of `values`, and which of them are NULL. What the key of a NULL is means nothing. Zeros of both signs have one
/// key, as they are equal where DataFusion compares them.
pub(crate) fn order_keys(values: &ArrayRef) -> Result<(OrderKeys, Option<NullBuffer>)> {
    let nulls = values.logical_nulls().filter(|n| n.null_count() > 0);
    let data_type = values.data_type();
    if is_ranked(data_type) {
        let plain_type = value_type(data_type);
        let plain = cast(values, &plain_type)?;
        let converter = RowConverter::new(vec![SortField::new(plain_type)])?;
        return Ok((
            OrderKeys::Bytes(converter.convert_columns(&[plain])?),
            nulls,
        ));
    }
    let chunks = Chunks {
        arrays: vec![normalize_float_zero(values)],
        held_by_table: true,
    };
    let keys = match encode(&chunks, data_type, Extreme::Min)?.column {
        KeyColumn::W32(column) => OrderKeys::W64(keys(&column, u64::from)),
        KeyColumn::W64(column) => OrderKeys::W64(keys(&column, |key| key)),
        KeyColumn::W128(column) => OrderKeys::W128(keys(&column, |key| key)),
    };
    Ok((keys, nulls))
}

fn keys<K: Key, T>(column: &Column<K>, widen: impl Fn(K) -> T) -> Vec<T> {
    let encoding = column.encoding();
    let bits = column.bits().iter();
    bits.map(|bits| widen(encoding.encode(*bits))).collect()
}
