//! Converts the keys of the collected rows: equality keys to group ids, range keys to keys of fixed width.

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::range_join::build_columns::BuildColumns;
use rmq_arrow::common::array_bytes::arrays_bytes;
use rmq_arrow::common::workers::{STEP, Workers};
use rmq_arrow::sorted::sort_rows::RowsPart;

/// Converts the keys of the batches, whose columns have these types. Each thread converts a part of the rows. The
/// reservation of the collected keys moves from `memory`, which registers the batches, to `rows_memory`.
///
/// # Errors
/// If a key can't be converted, memory is exhausted, or the query is cancelled.
pub(crate) fn convert_keys(
    columns: &BuildColumns,
    types: &[DataType],
    batches: Vec<RecordBatch>,
    memory: &MemoryReservation,
    rows_memory: &MemoryReservation,
    workers: Workers,
) -> Result<Vec<RowsPart>> {
    let (equality_keys, range_key) = (columns.equality_keys(types), columns.range_key(types));
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let count = if RowsPart::may_have_others(range_key)? {
        workers.parts(rows)
    } else {
        1
    };
    let parts = divide(batches, rows.div_ceil(count).max(1));
    let convert = |batches: Vec<RecordBatch>| {
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        let mut part = RowsPart::try_new(rows, equality_keys, range_key)?;
        let mut registered = 0;
        // Memory is registered once a step: threads wait for each other in the memory pool.
        let (mut keys_bytes, mut unregistered_rows) = (0, 0);
        for batch in batches {
            workers.check()?;
            let arrays = batch.columns();
            part.add(columns.equality_keys(arrays), columns.range_key(arrays))?;
            let keys = &arrays[..arrays.len() - columns.values(arrays).len()];
            keys_bytes += arrays_bytes(keys);
            unregistered_rows += batch.num_rows();
            if unregistered_rows < STEP && part.len() < rows {
                continue;
            }
            unregistered_rows = 0;
            // The keys are registered in `rows_memory` from here on.
            drop(split_off(memory, std::mem::take(&mut keys_bytes)));
            let bytes = part.bytes();
            rows_memory.try_grow(bytes.saturating_sub(registered))?;
            registered = registered.max(bytes);
        }
        Ok(part)
    };
    let parts = workers.map(parts, convert)?;
    rows_memory.try_resize(parts.iter().map(RowsPart::bytes).sum())?;
    Ok(parts)
}

/// Divides batches into parts of about `rows` rows, at least one part. Batches are sliced for that.
pub(crate) fn divide(batches: Vec<RecordBatch>, rows: usize) -> Vec<Vec<RecordBatch>> {
    let (mut parts, mut part) = (vec![], vec![]);
    let mut room = rows;
    for mut batch in batches {
        while batch.num_rows() > room {
            if room > 0 {
                part.push(batch.slice(0, room));
            }
            parts.push(std::mem::take(&mut part));
            batch = batch.slice(room, batch.num_rows() - room);
            room = rows;
        }
        room -= batch.num_rows();
        part.push(batch);
    }
    parts.push(part);
    parts
}

/// Splits off at most `bytes` of a reservation.
pub(crate) fn split_off(memory: &MemoryReservation, bytes: usize) -> MemoryReservation {
    memory.split(bytes.min(memory.size()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int32Array};

    use super::*;

    #[test]
    fn batches_of_any_length_are_divided_evenly() {
        for lengths in [vec![], vec![10], vec![0, 3, 1, 90, 0, 6], vec![1; 100]] {
            let total: i32 = lengths.iter().sum();
            let mut next = 0;
            let batches = lengths.iter().map(|len| {
                let values: ArrayRef = Arc::new(Int32Array::from_iter_values(next..next + len));
                next += len;
                RecordBatch::try_from_iter([("v", values)]).unwrap()
            });
            let batches: Vec<RecordBatch> = batches.collect();
            for rows in [1, 7, 33, 1000] {
                let parts = divide(batches.clone(), rows);
                let (last, others) = parts.split_last().unwrap();
                let len =
                    |part: &[RecordBatch]| part.iter().map(RecordBatch::num_rows).sum::<usize>();
                assert!(others.iter().all(|part| len(part) == rows));
                assert!(len(last) <= rows);
                let values = parts.iter().flatten().flat_map(|batch| {
                    let values = batch.column(0).as_any().downcast_ref::<Int32Array>();
                    values.unwrap().values().to_vec()
                });
                assert!(values.eq(0..total));
            }
        }
    }
}
