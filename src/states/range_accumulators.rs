//! Accumulators of ranges of rows, one for consecutive ranges that are equal.

use std::ops::Range;

use datafusion::common::Result;
use datafusion::logical_expr::Accumulator;

use crate::states::state_tree::CoveredRanges;

/// Passes to `take` each range that differs from the one before it, an accumulator that has seen its rows, and how many
/// equal ranges there are. `cover` has the states of blocks that cover some of them, up to `at_a_time`, if there are
/// any; otherwise `read` reads the rows of a range. Calls `check` between ranges. Returns how many of them states
/// cover.
///
/// # Errors
/// Those of the functions.
pub(crate) fn accumulate_ranges<'a>(
    ranges: &[Range<usize>],
    at_a_time: Option<usize>,
    cover: impl Fn(&[&Range<usize>]) -> Result<Option<CoveredRanges<'a>>>,
    read: impl Fn(&Range<usize>) -> Result<Box<dyn Accumulator>>,
    check: &dyn Fn() -> Result<()>,
    mut take: impl FnMut(&Range<usize>, Box<dyn Accumulator>, usize) -> Result<()>,
) -> Result<usize> {
    let runs: Vec<&[Range<usize>]> = ranges.chunk_by(PartialEq::eq).collect();
    let at_a_time = at_a_time.unwrap_or(runs.len()).max(1);
    let mut wide = 0;
    for runs in runs.chunks(at_a_time) {
        let distinct: Vec<&Range<usize>> = runs.iter().map(|run| &run[0]).collect();
        let covered = cover(&distinct)?;
        wide += covered.as_ref().map_or(0, CoveredRanges::wide);
        for (i, run) in runs.iter().enumerate() {
            check()?;
            let accumulator = match &covered {
                Some(covered) => covered.accumulate(i)?,
                None => read(&run[0])?,
            };
            take(&run[0], accumulator, run.len())?;
        }
    }
    Ok(wide)
}
