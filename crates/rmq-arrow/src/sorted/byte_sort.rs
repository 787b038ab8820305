//! Sorts rows by keys in Arrow's row format, which compare as bytes.
//!
//! 1. The first 8 bytes of each key, after those that all keys of each group have, are one integer, and rows are sorted
//!    by these as by other keys ([`sort_groups`]).
//! 2. Rows of one group with equal integers are sorted by the next 8 bytes, and so on until all keys are told apart or
//!    end.
//!
//! For n rows this takes O(n) for each 8 bytes that are compared, and up to 40 bytes of memory per row meanwhile.

use std::ops::Range;
use std::sync::Arc;

use arrow::row::Rows;
use datafusion_common::Result;

use crate::common::workers::{STEP, Workers};
use crate::sorted::group_sort::{SortContext, sort_groups};
use crate::sorted::id_table::number;
use crate::sorted::permutation::RowPermutation;
use crate::sorted::sorted_rows::row_at;
use rmq_engine::{Column, Encoding};

/// Bytes of memory per row while rows with equal bytes so far are sorted by the next ones: rows, integers, sorted
/// integers, and their order.
const BYTES_PER_ROW: usize = 2 * size_of::<u32>() + 2 * size_of::<u64>();

/// Sorts rows by their keys within each group, stably. `permutation` moves rows to their groups; `starts` has the first
/// position of each group, and the end of the last. Returns the permutation that sorts the rows; the keys stay in input
/// order. Its memory is reserved with the context and stays reserved.
///
/// # Errors
/// The context's errors: memory is exhausted, or the work is cancelled.
pub fn sort_bytes(
    keys: &Rows,
    starts: &[usize],
    permutation: RowPermutation,
    context: SortContext,
) -> Result<RowPermutation> {
    let SortContext { memory, workers } = context;
    memory.try_grow(permutation.order_bytes())?;
    let order = permutation.order(workers)?;
    let key = |position: usize| keys.row(row_at(order, position));
    let groups = starts.windows(2).map(|ends| ends[0]..ends[1]);
    let is_unsorted = |group: &Range<usize>| !group.clone().is_sorted_by(|a, b| key(*a) <= key(*b));
    let mut ties: Vec<Range<usize>> = groups.filter(is_unsorted).collect();
    if ties.is_empty() {
        return Ok(permutation);
    }
    // The order, the positions of all rows, and two numbers of 16 bits for each.
    let words = permutation.len() + 2 * keys.num_rows();
    memory.try_grow(words * size_of::<u32>())?;
    let mut order = match order {
        Some(order) => order.to_vec(),
        None => (0..permutation.len()).map(number).collect(),
    };
    let mut from = 0;
    while !ties.is_empty() {
        from = common_bytes(keys, from, &order, &ties, workers)?;
        ties = sort_ties(keys, from, &mut order, &ties, context)?;
        from += size_of::<u64>();
    }
    RowPermutation::from_order(&order, keys.num_rows(), workers)
}

/// The number of bytes, at least `from`, that are equal in all keys of each of these ranges.
fn common_bytes(
    keys: &Rows,
    from: usize,
    order: &[u32],
    ties: &[Range<usize>],
    workers: Workers,
) -> Result<usize> {
    let key = |row: u32| keys.row(row as usize).data();
    let mut common = usize::MAX;
    for range in ties {
        let first = key(order[range.start]);
        for rows in order[range.clone()].chunks(STEP) {
            workers.check()?;
            for row in rows {
                let pairs = first.iter().zip(key(*row)).take(common);
                common = pairs.take_while(|(a, b)| a == b).count();
                if common <= from {
                    return Ok(from);
                }
            }
        }
    }
    Ok(common)
}

/// Sorts the rows of each of these ranges by the 8 bytes of their keys from `from` on; those before are equal. Returns
/// the ranges of rows that are still to be told apart.
fn sort_ties(
    keys: &Rows,
    from: usize,
    order: &mut [u32],
    ties: &[Range<usize>],
    context: SortContext,
) -> Result<Vec<Range<usize>>> {
    let memory = &context.memory.new_empty();
    let workers = context.workers;
    let mut starts = vec![0];
    for range in ties {
        starts.push(starts[starts.len() - 1] + range.len());
    }
    let len = starts[ties.len()];
    memory.try_grow(len * BYTES_PER_ROW)?;
    let mut rows = Vec::with_capacity(len);
    for range in ties {
        rows.extend_from_slice(&order[range.clone()]);
    }
    let column = [Column::new(
        Arc::new(integers(keys, &rows, from, workers)?),
        Encoding::unsigned(),
    )];
    let context = SortContext { memory, workers };
    let identity = RowPermutation::identity(len);
    let (sorted, permutation) =
        sort_groups(&column, Encoding::unsigned(), &starts, identity, context)?;
    let sources = permutation.order(workers)?;
    let mut rest = vec![];
    for (range, ends) in ties.iter().zip(starts.windows(2)) {
        workers.check()?;
        for (row, at) in order[range.clone()].iter_mut().zip(ends[0]..) {
            *row = rows[row_at(sources, at)];
        }
        let mut first = range.start;
        for equal in sorted[ends[0]..ends[1]].chunk_by(|a, b| a == b) {
            let range = first..first + equal.len();
            first = range.end;
            // Keys with equal bytes that end here are equal.
            let goes_on =
                |row: &u32| keys.row(*row as usize).data().len() > from + size_of::<u64>();
            if range.len() > 1 && order[range.clone()].iter().any(goes_on) {
                rest.push(range);
            }
        }
    }
    Ok(rest)
}

/// The 8 bytes of the key of each row from `from` on as an integer, with zeros behind the end of a key.
fn integers(keys: &Rows, rows: &[u32], from: usize, workers: Workers) -> Result<Vec<u64>> {
    let integer = |row: &u32| {
        let bytes = keys.row(*row as usize).data();
        let bytes = bytes.get(from..).unwrap_or_default();
        bytes.first_chunk().map_or_else(
            || {
                let mut padded = [0; 8];
                padded[..bytes.len()].copy_from_slice(bytes);
                u64::from_be_bytes(padded)
            },
            |bytes| u64::from_be_bytes(*bytes),
        )
    };
    let mut integers = vec![0; rows.len()];
    let steps = integers.chunks_mut(STEP).zip(rows.chunks(STEP));
    workers.map(steps.collect(), |(to, rows): (&mut [u64], &[u32])| {
        for (to, row) in to.iter_mut().zip(rows) {
            *to = integer(row);
        }
        Ok(())
    })?;
    Ok(integers)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use arrow::array::{ArrayRef, StringArray};
    use arrow::datatypes::DataType;
    use arrow::row::{RowConverter, SortField};
    use datafusion_common::exec_err;
    use datafusion_execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};

    use super::*;

    fn row_format(texts: &[String]) -> Rows {
        let converter = RowConverter::new(vec![SortField::new(DataType::Utf8)]).unwrap();
        let texts: ArrayRef = Arc::new(StringArray::from(texts.to_vec()));
        converter.convert_columns(&[texts]).unwrap()
    }

    /// Sorts texts in groups of these lengths with a memory pool of `bytes`. Returns the order.
    fn sort(
        texts: &[String],
        lengths: &[usize],
        bytes: usize,
        workers: Workers,
    ) -> Result<Vec<u32>> {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(bytes));
        let memory = MemoryConsumer::new("test").register(&pool);
        let context = SortContext {
            memory: &memory,
            workers,
        };
        let mut starts = vec![0];
        for len in lengths {
            starts.push(starts[starts.len() - 1] + len);
        }
        let identity = RowPermutation::identity(texts.len());
        let permutation = sort_bytes(&row_format(texts), &starts, identity, context)?;
        Ok(match permutation.order(workers)? {
            Some(order) => order.to_vec(),
            None => (0..number(texts.len())).collect(),
        })
    }

    #[test]
    fn texts_are_sorted_as_by_a_stable_sort() {
        let random = &mut fastrand::Rng::with_seed(20_261_123);
        let long = "https://example.com/a/long/path/that/all/texts/have/";
        // Different, few, with a long common prefix, of different lengths that end in zeros, in order.
        let kinds: [fn(&mut fastrand::Rng, &str, usize) -> String; 5] = [
            |random, _, _| format!("{:x}", random.u64(..)),
            |random, _, _| "ab".repeat(random.usize(..4)),
            |random, long, _| format!("{long}{:04}{}", random.u32(..50), random.u32(..99)),
            |random, long, _| {
                format!(
                    "{}{}",
                    &long[..random.usize(..40)],
                    "\0".repeat(random.usize(..9))
                )
            },
            |_, _, i| format!("{i:09}"),
        ];
        for (kind, text) in kinds.iter().enumerate() {
            for lengths in [&[0][..], &[1, 0, 700, 2], &[150_000], &[5000, 100_000, 30]] {
                let rows = lengths.iter().sum();
                let texts: Vec<String> = (0..rows).map(|i| text(random, long, i)).collect();
                let mut expected: Vec<u32> = (0..number(rows)).collect();
                let mut first = 0;
                for len in lengths {
                    expected[first..first + len].sort_by_key(|row| &texts[*row as usize]);
                    first += len;
                }
                for threads in [1, 3] {
                    let workers = Workers::new(threads, &|| Ok(()));
                    let order = sort(&texts, lengths, 1 << 30, workers).unwrap();
                    assert!(order == expected, "{kind}, {lengths:?}, {threads} threads");
                }
            }
        }
    }

    #[test]
    fn a_sort_ends_when_it_is_cancelled_or_memory_is_exhausted() {
        let random = &mut fastrand::Rng::with_seed(20_261_123);
        let rows = 300_000;
        let texts = (0..rows).map(|_| format!("a common prefix, {:x}", random.u64(..)));
        let texts: Vec<String> = texts.collect();
        for bytes in [0, rows * 4, rows * 16] {
            let sorted = sort(&texts, &[rows], bytes, Workers::new(2, &|| Ok(())));
            assert!(sorted.is_err(), "{bytes} bytes");
        }
        let checks = AtomicUsize::new(0);
        let count = || {
            checks.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        sort(&texts, &[rows], 1 << 30, Workers::new(1, &count)).unwrap();
        let all = checks.load(Ordering::Relaxed);
        for last in [1, all / 3, all / 2, all - 1] {
            checks.store(0, Ordering::Relaxed);
            let end_early = || match checks.fetch_add(1, Ordering::Relaxed) {
                before if before >= last => exec_err!("the query was cancelled"),
                _ => Ok(()),
            };
            let workers = Workers::new(1, &end_early);
            assert!(
                sort(&texts, &[rows], 1 << 30, workers).is_err(),
                "after {last} of {all}"
            );
            assert_eq!(checks.load(Ordering::Relaxed), last + 1);
        }
    }
}
