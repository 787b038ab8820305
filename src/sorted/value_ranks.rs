//! Ranks of values among the distinct values, by the sort of a build side, on all threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Float32Type, Float64Type, UInt32Type, UInt64Type};
use datafusion::common::Result;

use crate::common::ordered_type::is_ranked;
use crate::index::rank::{Ranked, rank};
use crate::sorted::group_sort::SortContext;
use crate::sorted::id_table::number;
use crate::sorted::sort_rows::{RowsPart, sort_rows};

/// Ranks values as [`rank`] does: floats in IEEE total order, so that the two zeros are different.
///
/// # Errors
/// As those of [`rank`]. The context's: memory is exhausted, or the work is cancelled.
pub(crate) fn rank_values(values: &ArrayRef, context: SortContext) -> Result<Ranked> {
    if is_ranked(values.data_type()) {
        return rank(values);
    }
    let keys = in_total_order(values);
    let ranges = context.workers.ranges(keys.len(), 1);
    let mut parts = context.workers.map(ranges, |rows| {
        let mut part = RowsPart::try_new(rows.len(), &[], keys.data_type())?;
        part.add(&[], &keys.slice(rows.start, rows.len()))?;
        Ok(part)
    })?;
    if parts.is_empty() {
        parts.push(RowsPart::try_new(0, &[], keys.data_type())?);
    }
    let (sorted, permutation) = sort_rows(parts, context)?;
    let order = permutation.order(context.workers)?;
    let order: Option<&[u32]> = order.map(|order| order.as_ref().as_ref());
    let row = |position: usize| order.map_or(position, |order| order[position] as usize);
    let is_first =
        |position: &usize| sorted.first_equal(position.saturating_sub(1), *position) == *position;
    let ranges = context.workers.ranges(sorted.len(), 1);
    let firsts = context.workers.map(ranges.clone(), |positions| {
        let firsts = positions
            .filter(is_first)
            .map(|position| number(row(position)));
        Ok(firsts.collect::<Vec<u32>>())
    })?;
    // Rows are anywhere, so that threads write between each other.
    let ranks: Vec<AtomicU32> = (0..values.len()).map(|_| AtomicU32::new(0)).collect();
    let mut before = 0;
    let parts = ranges.into_iter().zip(&firsts).map(|(positions, firsts)| {
        before += firsts.len();
        (positions, before - firsts.len())
    });
    context
        .workers
        .map(parts.collect(), |(positions, mut ranked)| {
            for position in positions {
                ranked += usize::from(is_first(&position));
                ranks[row(position)].store(number(ranked - 1), Ordering::Relaxed);
            }
            Ok(())
        })?;
    let distinct = take(values, &UInt32Array::from(firsts.concat()), None)?;
    let ranks = ranks.into_iter().map(AtomicU32::into_inner);
    Ok(Ranked {
        ranks: ranks.collect(),
        distinct,
    })
}

/// Floats as integers in the same order; other values as they are.
fn in_total_order(values: &ArrayRef) -> ArrayRef {
    match values.data_type() {
        DataType::Float32 => Arc::new(values.as_primitive::<Float32Type>().unary::<_, UInt32Type>(
            |value| {
                let bits = value.to_bits();
                bits ^ (bits.cast_signed() >> 31).cast_unsigned() | 1 << 31 & !bits
            },
        )),
        DataType::Float64 => Arc::new(values.as_primitive::<Float64Type>().unary::<_, UInt64Type>(
            |value| {
                let bits = value.to_bits();
                bits ^ (bits.cast_signed() >> 63).cast_unsigned() | 1 << 63 & !bits
            },
        )),
        _ => Arc::clone(values),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Decimal128Array, Float32Array, Float64Array, Int16Array, StringArray};
    use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};

    use crate::common::workers::Workers;

    use super::*;

    #[test]
    fn ranks_are_those_of_arrow() {
        let mut rng = fastrand::Rng::with_seed(3);
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let memory = MemoryConsumer::new("test").register(&pool);
        for rows in [0, 1, 2, 1000, 400_000] {
            let mut number = |_| match rng.u32(..12) {
                0 => None,
                _ => Some(rng.i32(-5000..5000)),
            };
            let numbers: Vec<Option<i32>> = (0..rows).map(&mut number).collect();
            let special = [
                -0.0,
                0.0,
                f64::NAN,
                -f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
            ];
            let float = |n: i32| match usize::try_from(n) {
                Ok(n) if n < special.len() => special[n],
                _ => f64::from(n) / 7.0,
            };
            let of = |n: &Option<i32>| n.map(float);
            let columns: [ArrayRef; 5] = [
                Arc::new(numbers.iter().map(of).collect::<Float64Array>()),
                #[expect(clippy::cast_possible_truncation, reason = "other values will do")]
                Arc::new(
                    numbers
                        .iter()
                        .map(|n| of(n).map(|v| v as f32))
                        .collect::<Float32Array>(),
                ),
                #[expect(clippy::cast_possible_truncation, reason = "other values will do")]
                Arc::new(
                    numbers
                        .iter()
                        .map(|n| n.map(|n| n as i16))
                        .collect::<Int16Array>(),
                ),
                Arc::new(
                    numbers
                        .iter()
                        .map(|n| n.map(i128::from))
                        .collect::<Decimal128Array>(),
                ),
                Arc::new(
                    numbers
                        .iter()
                        .map(|n| n.map(|n| n.to_string()))
                        .collect::<StringArray>(),
                ),
            ];
            for column in columns {
                let expected = rank(&column).unwrap();
                for threads in [1, 3] {
                    let check = || Ok(());
                    let workers = Workers::new(threads, &check);
                    let context = SortContext {
                        memory: &memory,
                        workers,
                    };
                    let found = rank_values(&column, context).unwrap();
                    let what = format!("{rows} of {}, {threads} threads", column.data_type());
                    assert!(found.ranks == expected.ranks, "{what}");
                    assert_eq!(&found.distinct, &expected.distinct, "{what}");
                }
            }
        }
    }
}
