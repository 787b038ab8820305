//! The listing of the smallest values of ranges, by range minima alone, so for any index.
//!
//! The smallest value of a range is its minimum. It splits the range in two, and each part has a minimum: the next
//! value is the smallest of all parts that are left, which a heap finds. The `k` smallest values of a range take at
//! most `2k - 1` range minima and O(k log k) comparisons, however long the range is. Many ranges are split together, so
//! that each batch of minima has two for each of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::crossings::{RowList, check_inputs, check_length};
use crate::error::EngineError;
use crate::key::{Encoding, Key};
use crate::outputs::Outputs;

/// The number of ranges that are split together.
const RANGES_AT_ONCE: usize = 512;

/// A part of a range, by the key and the position of its minimum: `(key, position, left, right)`.
type RangePart<K> = (K, i64, i64, i64);

/// Answers ranges by their left and right ends.
type Answer<'a, K> = dyn Fn(&[i64], &[i64]) -> Result<Outputs<K>, EngineError> + 'a;

/// A range whose smallest values are listed.
struct Search<K> {
    /// The parts that have not been split, the one with the smallest value first.
    parts: BinaryHeap<Reverse<RangePart<K>>>,
    found: Vec<i64>,
    /// The number of values to be found.
    count: usize,
}

/// Implements [`RangeIndex::list_smallest`].
///
/// `answer` returns the values of some ranges, as bits of this encoding, and their positions in a column of `len` rows.
///
/// [`RangeIndex::list_smallest`]: crate::RangeIndex::list_smallest
pub(crate) fn list_smallest<K: Key>(
    (len, encoding): (usize, Encoding<K>),
    answer: &Answer<'_, K>,
    left: &[i64],
    right: &[i64],
    counts: &[usize],
    out: &mut RowList,
) -> Result<(), EngineError> {
    check_inputs(left, right, left.len())?;
    check_length("the slice for counts", left.len(), counts.len())?;
    out.clear();
    // Lengths of slices fit `i64`.
    let last = i64::try_from(len).unwrap_or(i64::MAX) - 1;
    let ranges = left
        .iter()
        .zip(right)
        .map(|(l, r)| (*l.max(&0), *r.min(&last)));
    let ranges: Vec<_> = ranges.zip(counts.iter().copied()).collect();
    for ranges in ranges.chunks(RANGES_AT_ONCE) {
        for search in search(encoding, answer, ranges)? {
            out.positions.extend(search.found);
            out.ends.push(out.positions.len());
        }
    }
    Ok(())
}

/// Lists the smallest values of some ranges, which are clipped to the column, each with the number of these.
fn search<K: Key>(
    encoding: Encoding<K>,
    answer: &Answer<'_, K>,
    ranges: &[((i64, i64), usize)],
) -> Result<Vec<Search<K>>, EngineError> {
    let searches = ranges.iter().map(|(_, count)| Search {
        parts: BinaryHeap::new(),
        found: vec![],
        count: *count,
    });
    let mut searches: Vec<Search<K>> = searches.collect();
    // The parts whose minima are needed, by the number of their search.
    let (mut of_search, mut left, mut right) = (vec![], vec![], vec![]);
    for (number, ((first, last), count)) in ranges.iter().enumerate() {
        if *count > 0 && first <= last {
            of_search.push(number);
            left.push(*first);
            right.push(*last);
        }
    }
    while !of_search.is_empty() {
        let outputs = answer(&left, &right)?;
        let Outputs {
            values: Some(values),
            positions: Some(positions),
            valid,
        } = &outputs
        else {
            return Err(EngineError::NoPositions);
        };
        for (i, number) in of_search.iter().enumerate() {
            if valid[i / 64] >> (i % 64) & 1 == 1 {
                let part = (encoding.encode(values[i]), positions[i], left[i], right[i]);
                searches[*number].parts.push(Reverse(part));
            }
        }
        // Both parts of a search follow each other.
        of_search.dedup();
        let active = std::mem::take(&mut of_search);
        left.clear();
        right.clear();
        for number in active {
            let search = &mut searches[number];
            let Some(Reverse((_, position, first, last))) = search.parts.pop() else {
                continue;
            };
            search.found.push(position);
            if search.found.len() == search.count {
                continue;
            }
            let before = of_search.len();
            for (first, last) in [(first, position - 1), (position + 1, last)] {
                if first <= last {
                    of_search.push(number);
                    left.push(first);
                    right.push(last);
                }
            }
            if of_search.len() == before && !search.parts.is_empty() {
                // Nothing is left of this part. An empty range has the search continue with the others.
                of_search.push(number);
                left.push(0);
                right.push(-1);
            }
        }
    }
    Ok(searches)
}
