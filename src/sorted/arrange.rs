//! Permuted columns of keys.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};

use crate::common::errors::engine_error;
use crate::common::ordered_type::{is_borrowed, is_ranked, key_bytes};
use crate::common::workers::{STEP, Workers};
use crate::index::sort_keys::{Chunks, Encoded, KeyColumn, encode};
use crate::sorted::permutation::RowPermutation;
use rmq_engine::cpu::SlotValue;
use rmq_engine::{Column, Extreme, Key, Validity};

/// Encodes `chunks` as one column of ascending keys, as [`encode`] does, with each row at its position.
///
/// # Errors
/// Those of [`encode`]; if the query is cancelled.
pub(crate) fn arrange(
    chunks: &Chunks,
    data_type: &DataType,
    permutation: &RowPermutation,
    workers: Workers,
) -> Result<Encoded> {
    // Values must be ranked all together.
    if is_encoded_whole(chunks, data_type) && permutation.is_identity() {
        return encode(chunks, data_type, Extreme::Min);
    }
    let mut parts = encode_chunks(chunks, data_type, workers)?.into_iter();
    let Some(first) = parts.next() else {
        return encode(chunks, data_type, Extreme::Min);
    };
    let rest = parts.map(|encoded| encoded.column);
    let column = match first.column {
        KeyColumn::W32(first) => {
            let columns = of_one_width(first, rest.map(KeyColumn::into_32))?;
            KeyColumn::W32(permute(&columns, permutation, workers)?)
        }
        KeyColumn::W64(first) => {
            let columns = of_one_width(first, rest.map(KeyColumn::into_64))?;
            KeyColumn::W64(permute(&columns, permutation, workers)?)
        }
        KeyColumn::W128(first) => {
            let columns = of_one_width(first, rest.map(KeyColumn::into_128))?;
            KeyColumn::W128(permute(&columns, permutation, workers)?)
        }
    };
    Ok(Encoded {
        copied_bytes: column.bytes(),
        column,
        decoder: first.decoder,
    })
}

/// Whether rows keep their positions and their values serve as keys, so that keys can be borrowed chunk by chunk.
pub(crate) fn borrows_chunks(data_type: &DataType, permutation: &RowPermutation) -> bool {
    permutation.is_identity() && is_borrowed(data_type)
}

/// Whether all chunks are encoded together: there is only one, or keys are ranks among all values.
fn is_encoded_whole(chunks: &Chunks, data_type: &DataType) -> bool {
    chunks.arrays.len() < 2 || is_ranked(data_type)
}

/// Encodes each chunk as ascending keys, or all together if they must be.
///
/// # Errors
/// Those of [`encode`]; if the query is cancelled.
pub(crate) fn encode_chunks(
    chunks: &Chunks,
    data_type: &DataType,
    workers: Workers,
) -> Result<Vec<Encoded>> {
    let parts: Vec<&[ArrayRef]> = if is_encoded_whole(chunks, data_type) {
        vec![&chunks.arrays]
    } else {
        chunks.arrays.chunks(1).collect()
    };
    workers.map(parts, |arrays: &[ArrayRef]| {
        let chunks = Chunks {
            arrays: arrays.to_vec(),
            owned_elsewhere: true,
        };
        encode(&chunks, data_type, Extreme::Min)
    })
}

/// Estimates the peak number of bytes that [`arrange`] takes.
pub(crate) fn estimate_arrange(
    chunks: &Chunks,
    data_type: &DataType,
    permutation: &RowPermutation,
) -> usize {
    let is_identity = chunks.arrays.len() < 2 && permutation.is_identity();
    let ranks = if is_identity || is_ranked(data_type) {
        chunks.copy_bytes(data_type)
    } else {
        0
    };
    let permuted = if is_identity {
        0
    } else {
        // Of nullable columns, also which values are NULL, one byte each before and after.
        let nullable = chunks
            .arrays
            .iter()
            .any(|array| array.logical_null_count() > 0);
        permutation.len() * (key_bytes(data_type) + if nullable { 2 } else { 0 })
    };
    ranks + permuted
}

/// All columns, if they have keys of one width.
fn of_one_width<K>(
    first: Column<K>,
    rest: impl Iterator<Item = Option<Column<K>>>,
) -> Result<Vec<Column<K>>> {
    let columns: Option<Vec<_>> = std::iter::once(Some(first)).chain(rest).collect();
    let Some(columns) = columns else {
        return exec_err!("a column has keys of different widths");
    };
    Ok(columns)
}

/// Permutes the keys of columns, one column after another, and their validity.
fn permute<K: Key + SlotValue>(
    columns: &[Column<K>],
    permutation: &RowPermutation,
    workers: Workers,
) -> Result<Column<K>> {
    let chunks: Vec<&[K]> = columns.iter().map(Column::bits).collect();
    let bits = permutation.permute(&chunks, workers)?;
    let column = Column::new(Arc::new(bits), columns[0].encoding());
    if columns.iter().all(|column| column.validity().is_none()) {
        return Ok(column);
    }
    let flags = |column: &Column<K>| {
        let flag = |row| u8::from(column.validity().is_none_or(|v| v.is_valid(row)));
        (0..column.len()).map(flag).collect()
    };
    let flags = permutation.permute_flags(columns, flags, workers)?;
    let pack = |flags: &[u8]| {
        (0..8)
            .zip(flags)
            .fold(0, |byte, (i, flag)| byte | flag << i)
    };
    let valid = workers.map(flags.chunks(STEP).collect(), |flags: &[u8]| {
        Ok(flags.chunks(8).map(pack).collect::<Vec<u8>>())
    })?;
    let valid = valid.concat();
    let validity = Validity::new(Arc::new(valid), 0);
    column.with_validity(validity).map_err(engine_error)
}
