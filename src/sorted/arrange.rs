//! Columns of keys whose rows move.

use crate::common::errors::engine_error;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};

use crate::index::sort_keys::{
    Chunks, Encoded, KeyColumn, encode, is_borrowed, is_ranked, key_bytes,
};
use crate::sorted::permutation::RowPermutation;
use bytemuck::Pod;
use rmq_engine::cpu::Numbers;
use rmq_engine::{Column, Extreme, Key, Validity};

/// Makes one column of keys out of `chunks`, as [`encode`] does, with each row in its place; an error if `check`, which is asked at each chunk, says
/// that nobody waits for it any more.
pub(crate) fn arrange(
    chunks: &Chunks,
    data_type: &DataType,
    extreme: Extreme,
    places: &RowPermutation,
    check: &dyn Fn() -> Result<()>,
) -> Result<Encoded> {
    // Ranks are those among all values.
    if stays_whole(chunks, data_type) && places.are_as_they_came() {
        return encode(chunks, data_type, extreme);
    }
    let mut parts = encoded(chunks, data_type, extreme);
    let Some(first) = parts.next().transpose()? else {
        return encode(chunks, data_type, extreme);
    };
    let rest = parts.map(|part| {
        check()?;
        part.map(|encoded| encoded.column)
    });
    let column = match first.column {
        KeyColumn::W32(first) => KeyColumn::W32(moved(first, rest, places, KeyColumn::into_32)?),
        KeyColumn::W64(first) => KeyColumn::W64(moved(first, rest, places, KeyColumn::into_64)?),
        KeyColumn::W128(first) => KeyColumn::W128(moved(first, rest, places, KeyColumn::into_128)?),
    };
    Ok(Encoded {
        copied_bytes: column.bytes(),
        column,
        decoder: first.decoder,
    })
}

/// The same, but in the pieces that rows came in where each stays in its place and its bits serve as they are.
pub(crate) fn arrange_in_pieces(
    chunks: &Chunks,
    data_type: &DataType,
    extreme: Extreme,
    places: &RowPermutation,
    check: &dyn Fn() -> Result<()>,
) -> Result<Vec<Encoded>> {
    if places.are_as_they_came() && is_borrowed(data_type) {
        encoded(chunks, data_type, extreme).collect()
    } else {
        let arranged = arrange(chunks, data_type, extreme, places, check)?;
        Ok(vec![arranged])
    }
}

/// Whether a column is encoded in one piece: it came so, or its keys are ranks, which are those among all values.
fn stays_whole(chunks: &Chunks, data_type: &DataType) -> bool {
    chunks.arrays.len() < 2 || is_ranked(data_type)
}

/// The keys of each chunk, or of all together where they must be.
fn encoded(
    chunks: &Chunks,
    data_type: &DataType,
    extreme: Extreme,
) -> impl Iterator<Item = Result<Encoded>> {
    let parts: Vec<&[ArrayRef]> = if stays_whole(chunks, data_type) {
        vec![&chunks.arrays]
    } else {
        chunks.arrays.chunks(1).collect()
    };
    parts.into_iter().map(move |arrays| {
        let chunks = Chunks {
            arrays: arrays.to_vec(),
            held_by_table: true,
        };
        encode(&chunks, data_type, extreme)
    })
}

/// About how many bytes [`arrange`] takes, the most at any time; or who puts together [`arrange_in_pieces`].
pub(crate) fn arranging_bytes(
    chunks: &Chunks,
    data_type: &DataType,
    places: &RowPermutation,
) -> usize {
    let stays = chunks.arrays.len() < 2 && places.are_as_they_came();
    let ranks = if stays || is_ranked(data_type) {
        chunks.copy_bytes(data_type)
    } else {
        0
    };
    let moved = if stays {
        0
    } else {
        places.len() * key_bytes(data_type)
    };
    ranks + moved
}

/// The values of all columns in their places.
fn moved<K: Key + Pod>(
    first: Column<K>,
    rest: impl Iterator<Item = Result<KeyColumn>>,
    places: &RowPermutation,
    of_width: impl Fn(KeyColumn) -> Option<Column<K>>,
) -> Result<Column<K>> {
    let encoding = first.encoding();
    let mut bits = Numbers::zeroed(places.len()).map_err(engine_error)?;
    let mut valid: Option<Vec<u8>> = None;
    let mut row = 0;
    let rest = rest.map(|column| column.map(&of_width));
    for column in std::iter::once(Ok(Some(first))).chain(rest) {
        let Some(column) = column? else {
            return exec_err!("a column has keys of different widths");
        };
        places.put(row, column.bits(), &mut bits);
        if let Some(validity) = column.validity() {
            let valid = valid.get_or_insert_with(|| vec![u8::MAX; places.len().div_ceil(8)]);
            for (i, place) in places.of_rows(row, column.len()).enumerate() {
                if let Some(place) = place.filter(|_| !validity.is_valid(i)) {
                    valid[place / 8] &= !(1 << (place % 8));
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
