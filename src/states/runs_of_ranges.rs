//! Aggregates of ranges. Consecutive equal ones are aggregated once.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, UInt32Array};
use arrow::compute::{concat, take};
use datafusion::common::Result;

use crate::states::aggregated_ranges::{AggregatedRanges, Output};
use rmq_arrow::common::row_number::row_number;

/// The aggregate of each range, and how many of these, equal ones once, states of blocks cover. `at_a_time` says of
/// different ranges how many of the first ones `prepare` should have at a time. Calls `grow` from time to time with the
/// bytes of all that is aggregated.
///
/// # Errors
/// Those of the function, of `prepare` and of `grow`.
pub(crate) fn aggregate_runs<'a>(
    ranges: &[Range<usize>],
    output: &Output,
    at_a_time: impl Fn(&[&Range<usize>]) -> usize,
    prepare: impl Fn(&[&Range<usize>]) -> Result<AggregatedRanges<'a>>,
    grow: &dyn Fn(usize) -> Result<()>,
) -> Result<(ArrayRef, usize)> {
    let runs: Vec<&[Range<usize>]> = ranges.chunk_by(PartialEq::eq).collect();
    let different: Vec<&Range<usize>> = runs.iter().map(|run| &run[0]).collect();
    let mut rest = different.as_slice();
    let (mut aggregated, mut bytes, mut wide) = (vec![], 0, 0);
    loop {
        let now;
        (now, rest) = rest.split_at(at_a_time(rest).max(1).min(rest.len()));
        let prepared = prepare(now)?;
        wide += prepared.wide();
        let values = prepared.aggregate(output, &|more| grow(bytes + more))?;
        bytes += values.get_array_memory_size();
        grow(bytes)?;
        aggregated.push(values);
        if rest.is_empty() {
            break;
        }
    }
    let parts: Vec<&dyn Array> = aggregated.iter().map(AsRef::as_ref).collect();
    let aggregated = concat(&parts)?;
    if runs.len() == ranges.len() {
        return Ok((aggregated, wide));
    }
    // Lists are as long on average.
    grow(bytes.div_ceil(runs.len()).saturating_mul(ranges.len()))?;
    let mut places = Vec::with_capacity(ranges.len());
    for (place, run) in runs.iter().enumerate() {
        places.extend(std::iter::repeat_n(row_number(place)?, run.len()));
    }
    Ok((take(&aggregated, &UInt32Array::from(places), None)?, wide))
}
