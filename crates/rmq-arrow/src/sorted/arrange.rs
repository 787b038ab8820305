//! Permuted columns: of keys, and of values.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{ArrowNativeType, DataType};
use bytemuck::Pod;
use bytes::Bytes;
use datafusion_common::Result;

use crate::common::errors::engine_error;
use crate::common::ordered_type::{is_borrowed, is_ranked, key_bytes};
use crate::common::workers::{STEP, Workers};
use crate::index::sort_keys::{Chunks, Encoded, KeyColumn, encode, native};
use crate::sorted::permutation::RowPermutation;
use rmq_engine::cpu::HugePageBuf;
use rmq_engine::{Column, ColumnChunks, Extreme, Key, Validity};

/// Encodes `chunks` as one column of ascending keys, as [`encode`] does, with each row at its position.
///
/// # Errors
/// Those of [`encode`]; if the query is cancelled.
pub fn arrange(
    chunks: &Chunks,
    data_type: &DataType,
    permutation: &RowPermutation,
    workers: Workers,
) -> Result<Encoded> {
    // Values must be ranked all together.
    if is_encoded_whole(chunks, data_type) && permutation.is_identity() {
        return encode(chunks, data_type, Extreme::Min);
    }
    let parts = encode_chunks(chunks, data_type, workers)?;
    let Some(decoder) = parts.first().map(|first| first.decoder.clone()) else {
        return encode(chunks, data_type, Extreme::Min);
    };
    let columns = parts.into_iter().map(|encoded| encoded.column);
    let column = match KeyColumn::together(columns.collect())? {
        ColumnChunks::W32(columns) => KeyColumn::W32(permute(&columns, permutation, workers)?),
        ColumnChunks::W64(columns) => KeyColumn::W64(permute(&columns, permutation, workers)?),
        ColumnChunks::W128(columns) => KeyColumn::W128(permute(&columns, permutation, workers)?),
    };
    Ok(Encoded {
        copied_bytes: column.bytes(),
        column,
        decoder,
    })
}

/// Whether rows keep their positions and their values serve as keys, so that keys can be borrowed chunk by chunk.
pub fn borrows_chunks(data_type: &DataType, permutation: &RowPermutation) -> bool {
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
pub fn encode_chunks(
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
        let chunks = Chunks::borrowed(arrays.to_vec());
        encode(&chunks, data_type, Extreme::Min)
    })
}

/// Estimates the peak number of bytes that [`arrange`] takes.
pub fn estimate_arrange(
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

/// Permutes the keys of columns, one column after another, and their validity.
fn permute<K: Key + Pod>(
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
    let valid = packed(&flags, workers)?;
    let validity = Validity::new(Arc::new(valid), 0);
    column.with_validity(validity).map_err(engine_error)
}

/// Packs flags, 0 or 1, into a bitmap.
fn packed(flags: &[u8], workers: Workers) -> Result<Vec<u8>> {
    let pack = |flags: &[u8]| {
        (0..8)
            .zip(flags)
            .fold(0, |byte, (i, flag)| byte | flag << i)
    };
    let packed = workers.map(flags.chunks(STEP).collect(), |flags: &[u8]| {
        Ok(flags.chunks(8).map(pack).collect::<Vec<u8>>())
    })?;
    Ok(packed.concat())
}

/// Permutes values on all threads: returns those of the rows that are not left out, of all that are in `chunks`, at
/// their positions. `None` if the type is not one of a fixed width of 32 bits or more, or if there is nothing to do.
///
/// # Errors
/// If the memory is not available or the query is cancelled.
pub fn permute_values(
    chunks: &[ArrayRef],
    data_type: &DataType,
    permutation: &RowPermutation,
    workers: Workers,
) -> Result<Option<ArrayRef>> {
    if chunks.len() < 2 && permutation.is_identity() {
        return Ok(None);
    }
    let rows = permutation.len();
    let bits = match data_type.primitive_width() {
        Some(4) => permute_bits::<u32, u32>(chunks, permutation, workers)?,
        Some(8) => permute_bits::<u64, u64>(chunks, permutation, workers)?,
        Some(16) => permute_bits::<i128, u128>(chunks, permutation, workers)?,
        _ => return Ok(None),
    };
    let nulls = if chunks.iter().any(|chunk| chunk.null_count() > 0) {
        let flags = |chunk: &ArrayRef| {
            let flag = |row| u8::from(chunk.is_valid(row));
            (0..chunk.len()).map(flag).collect()
        };
        let flags = permutation.permute_flags(chunks, flags, workers)?;
        let valid = Buffer::from_vec(packed(&flags, workers)?);
        Some(NullBuffer::new(BooleanBuffer::new(valid, 0, rows)))
    } else {
        None
    };
    let data = ArrayData::builder(data_type.clone()).len(rows);
    let data = data.add_buffer(bits).nulls(nulls).build()?;
    Ok(Some(make_array(data)))
}

/// Permutes the bits of values that are read as `N`.
fn permute_bits<N: ArrowNativeType + Pod, T: Pod + Send + Sync>(
    chunks: &[ArrayRef],
    permutation: &RowPermutation,
    workers: Workers,
) -> Result<Buffer> {
    /// An owner of bytes.
    struct Permuted<T>(HugePageBuf<T>);

    impl<T: Pod> AsRef<[u8]> for Permuted<T> {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }

    let chunks: Vec<_> = chunks.iter().map(native::<N>).collect();
    let chunks = chunks.iter().map(|chunk| bytemuck::cast_slice(chunk));
    let bits = permutation.permute::<T>(&chunks.collect::<Vec<_>>(), workers)?;
    Ok(Buffer::from(Bytes::from_owner(Permuted(bits))))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Decimal128Array, Float64Array, Int32Array, UInt32Array};
    use arrow::compute::{concat, take};

    use super::*;

    #[test]
    fn permuted_values_are_those_that_are_taken() {
        let random = &mut fastrand::Rng::with_seed(20_261_122);
        let rows = 300_000;
        for nulls in [0, 3] {
            let mut value = |i: i32| (random.u32(..10) >= nulls).then_some(i % 1000);
            let values: Vec<Option<i32>> = (0..rows).map(&mut value).collect();
            let all: [ArrayRef; 3] = [
                Arc::new(Int32Array::from(values.clone())),
                Arc::new(
                    values
                        .iter()
                        .map(|v| v.map(f64::from))
                        .collect::<Float64Array>(),
                ),
                Arc::new(
                    values
                        .iter()
                        .map(|v| v.map(i128::from))
                        .collect::<Decimal128Array>(),
                ),
            ];
            let mut order: Vec<u32> = (0..rows.cast_unsigned()).collect();
            random.shuffle(&mut order);
            let workers = Workers::new(2, &|| Ok(()));
            let permuted = RowPermutation::from_order(&order, order.len(), workers).unwrap();
            let identity = RowPermutation::identity(order.len());
            let some = &order[..order.len() / 3];
            let left_out = RowPermutation::from_order(some, order.len(), workers).unwrap();
            for (all, threads) in all.iter().zip([1, 2, 3]) {
                let workers = Workers::new(threads, &|| Ok(()));
                // Slices that begin within a byte of the bitmap, and within a buffer.
                let chunks = [0..70_001, 70_001..70_001, 70_001..300_000];
                let chunks = chunks.map(|rows| all.slice(rows.start, rows.len()));
                for (permutation, order) in [
                    (&permuted, Some(&order[..])),
                    (&left_out, Some(some)),
                    (&identity, None),
                ] {
                    let found = permute_values(&chunks, all.data_type(), permutation, workers);
                    let parts: Vec<&dyn Array> = chunks.iter().map(AsRef::as_ref).collect();
                    let mut expected = concat(&parts).unwrap();
                    if let Some(order) = order {
                        let order = UInt32Array::from(order.to_vec());
                        expected = take(&expected, &order, None).unwrap();
                    }
                    assert_eq!(&found.unwrap().expect("permuted values"), &expected);
                }
            }
        }
    }
}
