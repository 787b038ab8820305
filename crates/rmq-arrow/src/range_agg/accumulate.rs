//! Copies and prefix sums of columns, by several threads.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::ArrowPrimitiveType;
use datafusion_common::Result;

use crate::common::workers::Workers;
use crate::sorted::permutation::steps;

/// Copies the values of arrays, one after another, with zeros for NULLs.
///
/// # Errors
/// If the query is cancelled.
pub fn copy_values<T: ArrowPrimitiveType>(
    arrays: &[ArrayRef],
    zero: T::Native,
    to: &mut [T::Native],
    workers: Workers,
) -> Result<()> {
    let mut rest = to;
    let parts = steps(arrays.iter().map(Array::len)).into_iter();
    let parts = parts.map(|(array, rows)| {
        let (here, after) = std::mem::take(&mut rest).split_at_mut(rows.len());
        rest = after;
        (arrays[array].slice(rows.start, rows.len()), here)
    });
    workers.map(
        parts.collect(),
        |(array, here): (ArrayRef, &mut [T::Native])| {
            let values = array.as_primitive::<T>();
            here.copy_from_slice(values.values());
            if let Some(nulls) = values.nulls().filter(|nulls| nulls.null_count() > 0) {
                let null_values = here.iter_mut().zip(nulls).filter(|(_, valid)| !valid);
                null_values.for_each(|(value, _)| *value = zero);
            }
            Ok(())
        },
    )?;
    Ok(())
}

/// Replaces each value by the sum of all values up to it. `add` is associative.
///
/// Each thread adds up a part of the values. Then it adds the sum of the parts before while it writes the prefix sums
/// of its part.
///
/// # Errors
/// If the query is cancelled.
pub fn accumulate<T: Copy + Default + Send + Sync>(
    values: &mut [T],
    add: impl Fn(T, T) -> T + Sync,
    workers: Workers,
) -> Result<()> {
    let ranges = workers.ranges(values.len(), 1);
    let mut sums = vec![];
    if ranges.len() > 1 {
        let all_but_last = ranges[..ranges.len() - 1].to_vec();
        sums = workers.map(all_but_last, |range| {
            let values = values[range].iter();
            Ok(values.fold(T::default(), |sum, value| add(sum, *value)))
        })?;
    }
    let mut rest = values;
    let mut sum = T::default();
    let mut parts = vec![];
    for (part, range) in ranges.into_iter().enumerate() {
        let (here, after) = rest.split_at_mut(range.len());
        rest = after;
        parts.push((here, sum));
        if let Some(more) = sums.get(part) {
            sum = add(sum, *more);
        }
    }
    workers.map(parts, |(values, before): (&mut [T], T)| {
        let mut sum = before;
        for value in values {
            sum = add(sum, *value);
            *value = sum;
        }
        Ok(())
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up_what_one_adds_up() {
        for values in [0, 1, 1000, 700_001] {
            let mut expected: Vec<u64> = (0..values).map(|i| i * i).collect();
            let values = expected.clone();
            let mut sum = 0;
            for value in &mut expected {
                sum += *value;
                *value = sum;
            }
            for threads in [1, 2, 5] {
                let mut found = values.clone();
                let workers = Workers::new(threads, &|| Ok(()));
                accumulate(&mut found, |a, b| a + b, workers).expect("no error");
                assert_eq!(found, expected);
            }
        }
    }
}
