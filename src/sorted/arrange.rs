//! Permuted columns of keys.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};

use crate::common::errors::engine_error;
use crate::common::ordered_type::{is_borrowed, is_ranked, key_bytes};
use crate::index::sort_keys::{Chunks, Encoded, KeyColumn, encode};
use crate::sorted::permutation::RowPermutation;
use bytemuck::Pod;
use rmq_engine::cpu::HugePageBuf;
use rmq_engine::{Column, Extreme, Key, Validity};

/// Encodes `chunks` as one column of keys, as [`encode`] does, with each row at its position.
///
/// # Errors
/// Those of [`encode`]; that of `check`, which is called at each chunk.
pub(crate) fn arrange(
    chunks: &Chunks,
    data_type: &DataType,
    extreme: Extreme,
    permutation: &RowPermutation,
    check: &dyn Fn() -> Result<()>,
) -> Result<Encoded> {
    // Values must be ranked all together.
    if is_encoded_whole(chunks, data_type) && permutation.is_identity() {
        return encode(chunks, data_type, extreme);
    }
    let mut parts = encode_chunks(chunks, data_type, extreme);
    let Some(first) = parts.next().transpose()? else {
        return encode(chunks, data_type, extreme);
    };
    let rest = parts.map(|part| {
        check()?;
        part.map(|encoded| encoded.column)
    });
    let column = match first.column {
        KeyColumn::W32(first) => {
            KeyColumn::W32(scatter(first, rest, permutation, KeyColumn::into_32)?)
        }
        KeyColumn::W64(first) => {
            KeyColumn::W64(scatter(first, rest, permutation, KeyColumn::into_64)?)
        }
        KeyColumn::W128(first) => {
            KeyColumn::W128(scatter(first, rest, permutation, KeyColumn::into_128)?)
        }
    };
    Ok(Encoded {
        copied_bytes: column.bytes(),
        column,
        decoder: first.decoder,
    })
}

/// As [`arrange`], but returns one column of keys per chunk if rows keep their positions and keys are borrowed.
///
/// # Errors
/// Those of [`arrange`].
pub(crate) fn arrange_chunks(
    chunks: &Chunks,
    data_type: &DataType,
    extreme: Extreme,
    permutation: &RowPermutation,
    check: &dyn Fn() -> Result<()>,
) -> Result<Vec<Encoded>> {
    if permutation.is_identity() && is_borrowed(data_type) {
        encode_chunks(chunks, data_type, extreme).collect()
    } else {
        let arranged = arrange(chunks, data_type, extreme, permutation, check)?;
        Ok(vec![arranged])
    }
}

/// Whether all chunks are encoded together: there is only one, or keys are ranks among all values.
fn is_encoded_whole(chunks: &Chunks, data_type: &DataType) -> bool {
    chunks.arrays.len() < 2 || is_ranked(data_type)
}

/// Encodes each chunk, or all together if they must be.
fn encode_chunks(
    chunks: &Chunks,
    data_type: &DataType,
    extreme: Extreme,
) -> impl Iterator<Item = Result<Encoded>> {
    let parts: Vec<&[ArrayRef]> = if is_encoded_whole(chunks, data_type) {
        vec![&chunks.arrays]
    } else {
        chunks.arrays.chunks(1).collect()
    };
    parts.into_iter().map(move |arrays| {
        let chunks = Chunks {
            arrays: arrays.to_vec(),
            owned_elsewhere: true,
        };
        encode(&chunks, data_type, extreme)
    })
}

/// Estimates the peak number of bytes that [`arrange`] takes, or the concatenation of what [`arrange_chunks`] returns.
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
    let scattered = if is_identity {
        0
    } else {
        permutation.len() * key_bytes(data_type)
    };
    ranks + scattered
}

/// Scatters the keys of all columns to their positions.
fn scatter<K: Key + Pod>(
    first: Column<K>,
    rest: impl Iterator<Item = Result<KeyColumn>>,
    permutation: &RowPermutation,
    of_width: impl Fn(KeyColumn) -> Option<Column<K>>,
) -> Result<Column<K>> {
    let encoding = first.encoding();
    let mut bits = HugePageBuf::zeroed(permutation.len()).map_err(engine_error)?;
    let mut valid: Option<Vec<u8>> = None;
    let mut row = 0;
    let rest = rest.map(|column| column.map(&of_width));
    for column in std::iter::once(Ok(Some(first))).chain(rest) {
        let Some(column) = column? else {
            return exec_err!("a column has keys of different widths");
        };
        permutation.put(row, column.bits(), &mut bits);
        if let Some(validity) = column.validity() {
            let valid = valid.get_or_insert_with(|| vec![u8::MAX; permutation.len().div_ceil(8)]);
            for (i, position) in permutation.of_rows(row, column.len()).enumerate() {
                if let Some(position) = position.filter(|_| !validity.is_valid(i)) {
                    valid[position / 8] &= !(1 << (position % 8));
                }
            }
        }
        row += column.len();
    }
    let column = Column::new(Arc::new(bits), encoding);
    Ok(match valid {
        Some(valid) => column
            .with_validity(Validity::new(Arc::new(valid), 0))
            .map_err(engine_error)?,
        None => column,
    })
}
