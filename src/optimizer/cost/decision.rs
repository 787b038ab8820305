//! Whether a range join is worth its sort. It is where DataFusion's join would compare many pairs of rows that are not
//! in the range; a hash join is done with every pair at once where keys are nearly unique.
//!
//! Each question is answered where the facts are known:
//!
//! | question | known from | answered for |
//! |---|---|---|
//! | is the probe side tiny and the build side large? | the logical plan | `grouped_join` of datafusion-rmq-logical, in `rules::common::max_rows` |
//! | a join that returns rows: few rows, or few pairs? | statistics, a sample | `physical::joins_to_range_joins` |
//! | a join with GROUP BY: few pairs, and memory for a hash table? | the same | `planner::join_choices` |
//!
//! That a probe side is small after all, and reaches little of the build side, the operator finds out when it has read
//! both (`exec::range_join::reach::collected_reach`).

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryLimit;

use crate::exec::common::statistics::{exact_rows, expected_rows, statistics};
use crate::optimizer::cost::equal_rows::{Sides, equal_rows};
use crate::optimizer::cost::sources::source_of;
use crate::optimizer::cost::unique_keys::are_unique;
use datafusion_rmq_logical::rules::common::max_rows::{FEW_ROWS, MAX_EAGERLY_SORTED_ROWS};

/// A range join sorts a build row in about 50 ns, and finds the range of a probe row in about 100 ns; a hash join
/// spends a fifth of that on them.
const BUILD_ROW_NS: f64 = 40.0;
const PROBE_ROW_NS: f64 = 80.0;

/// In about this many nanoseconds a hash join compares a pair, and a range join one of a range by a further condition.
const PAIR_NS: f64 = 10.0;

/// And about as many for each operator of a condition on the pair.
const OPERATOR_NS: f64 = 5.0;

/// The same where an aggregate reads the pairs, which a range join does not make.
const AGGREGATED_PAIR_NS: f64 = 20.0;

/// Pairs on which a query spends more than this are worth a note.
const NOTED_NS: f64 = 1e9;

/// Where the number of probe rows is not known, this many build rows with the same keys are worth a sort.
const MANY_EQUAL_ROWS: f64 = 32.0;

/// From this many rows of a range on, an accumulator's state is found in less time than `DataFusion` spends on its
/// pairs.
const MERGED_ROWS: f64 = 500.0;

/// A hash join cannot spill. Its table, and the rows in it, may take this many times the bytes of the smaller side,
/// with room for other operators.
const HASH_JOIN_BYTES: usize = 4;

/// Sorted rows whose order statistics are built may take this many times the bytes of the build side.
const SORTED_BYTES: usize = 8;

/// What is known of the pairs of rows with equal keys.
#[derive(Debug, Clone, Copy, PartialEq)]
enum PairCount {
    /// A hash join would spend less on them than a range join on sorting. The number of build rows with the same keys
    /// as a probe row, on average.
    Few(f64),
    /// A hash join would spend more.
    Many,
    Unknown,
}

/// Whether `DataFusion`'s join spends so long on this many pairs, with this many operators in the condition on each,
/// that it is worth a note.
#[expect(clippy::cast_precision_loss, reason = "estimates need few digits")]
pub(crate) fn are_slow_to_join(pairs: u128, operators: usize) -> bool {
    pairs as f64 * (PAIR_NS + OPERATOR_NS * operators as f64) > NOTED_NS
}

/// The same of an aggregate that reads them.
#[expect(clippy::cast_precision_loss, reason = "estimates need few digits")]
pub(crate) fn are_slow_to_aggregate(pairs: u128) -> bool {
    pairs as f64 * AGGREGATED_PAIR_NS > NOTED_NS
}

/// Why a join that returns rows should be faster as `DataFusion` plans it, if it should. Of each range about
/// `filtered_rows` are compared by a further condition, row by row.
pub(crate) fn why_row_join_stays(
    sides: &Sides,
    is_bounded_twice: bool,
    returns_pairs: bool,
    filtered_rows: Option<f64>,
) -> Result<Option<String>> {
    let has_few = |side| exact_rows(side).is_some_and(|rows| rows <= FEW_ROWS);
    if has_few(sides.probe) || has_few(sides.build) {
        return Ok(Some("it has few rows on one side".to_string()));
    }
    if sides.on.is_empty() {
        return Ok(None);
    }
    if !is_bounded_twice && returns_pairs {
        let reason = "a range with one end has too many of the pairs that a hash join compares: add the other end, as \
                      in q.ts BETWEEN t.ts - INTERVAL '1 day' AND t.ts for q.ts <= t.ts";
        return Ok(Some(reason.to_string()));
    }
    let filtered = filtered_rows.unwrap_or(0.0);
    Ok(match count_pairs(sides, PAIR_NS, filtered)? {
        PairCount::Many => None,
        PairCount::Few(rows) if filtered > 0.0 => Some(format!(
            "about {filtered:.0} of the {rows:.0} rows with equal keys are in its range, each of which its filter \
             compares"
        )),
        PairCount::Unknown if is_bounded_twice => None,
        PairCount::Unknown => Some(
            "nothing tells how many rows have the same keys, and its range has one end".to_string(),
        ),
        PairCount::Few(rows) => Some(few_equal(rows)),
    })
}

/// Why a join below GROUP BY should be faster as it was written, if it should and its hash table fits in memory.
pub(crate) fn why_grouped_join_stays(
    sides: &Sides,
    memory: &MemoryLimit,
) -> Result<Option<String>> {
    let rows = [sides.probe, sides.build]
        .into_iter()
        .filter_map(expected_rows);
    let are_sorted_soon = rows.sum::<usize>() <= MAX_EAGERLY_SORTED_ROWS;
    if sides.on.is_empty() || are_sorted_soon || !fits_in_memory(sides, memory) {
        return Ok(None);
    }
    Ok(match count_pairs(sides, AGGREGATED_PAIR_NS, 0.0)? {
        PairCount::Few(rows) => Some(few_equal(rows)),
        PairCount::Many | PairCount::Unknown => None,
    })
}

/// Why a join below GROUP BY whose aggregates are all accumulators' should be faster as it was written, if ranges have
/// about this many rows: the states of blocks of rows are merged only where ranges are wide.
pub(crate) fn why_accumulators_stay(rows: Option<f64>) -> Option<String> {
    match rows {
        None => Some("nothing tells how many rows its ranges have, which are read".to_string()),
        Some(rows) if rows < MERGED_ROWS => Some(format!(
            "its ranges have about {rows:.0} rows, all of which are read"
        )),
        Some(_) => None,
    }
}

/// Why a join below GROUP BY whose order statistics need the sorted rows to the end should be as it was written: the
/// rows are not spilled, and nothing shows that they fit in memory.
pub(crate) fn why_ranges_stay(sides: &Sides, memory: &MemoryLimit) -> Option<String> {
    let MemoryLimit::Finite(limit) = memory else {
        return None;
    };
    let bytes = statistics(sides.build);
    let bytes = bytes.and_then(|known| known.total_byte_size.get_value().copied());
    let fits = bytes.is_some_and(|bytes| bytes.saturating_mul(SORTED_BYTES) <= *limit);
    let reason = "nothing shows that its sorted rows, which are not spilled, fit in memory";
    (!fits).then(|| reason.to_string())
}

fn few_equal(rows: f64) -> String {
    format!("only about {rows:.1} rows have the keys of a row of the other side")
}

/// Weighs the pairs of rows with equal keys, on each of which `DataFusion`'s plan spends `pair_ns`, against the sort,
/// and against the `filtered` rows of each range that a range join compares, too.
#[expect(clippy::cast_precision_loss, reason = "estimates need few digits")]
fn count_pairs(sides: &Sides, pair_ns: f64, filtered: f64) -> Result<PairCount> {
    let build_keys: Vec<_> = sides.on.iter().map(|(_, key)| key).collect();
    let probe_keys: Vec<_> = sides.on.iter().map(|(key, _)| key).collect();
    // As many pairs as rows of the other side, at most. Of a table, less may be read for its ranges.
    let is_one_each = are_unique(sides.build, &build_keys)
        || are_unique(sides.probe, &probe_keys) && source_of(sides.build, &build_keys)?.is_none();
    if is_one_each {
        return Ok(PairCount::Few(1.0));
    }
    let Some(build_rows) = expected_rows(sides.build) else {
        return Ok(PairCount::Unknown);
    };
    let Some(equal_rows) = equal_rows(sides, build_rows)? else {
        return Ok(PairCount::Unknown);
    };
    let are_many = match expected_rows(sides.probe) {
        Some(probe_rows) => {
            let (build_rows, probe_rows) = (build_rows as f64, probe_rows as f64);
            let cost = BUILD_ROW_NS * build_rows + PROBE_ROW_NS * probe_rows;
            probe_rows * (equal_rows - filtered) * pair_ns > cost
        }
        None => equal_rows - filtered > MANY_EQUAL_ROWS,
    };
    Ok(if are_many {
        PairCount::Many
    } else {
        PairCount::Few(equal_rows)
    })
}

/// Whether a hash join of the sides of a range join, which can spill, would fit in memory.
fn fits_in_memory(sides: &Sides, memory: &MemoryLimit) -> bool {
    let MemoryLimit::Finite(limit) = memory else {
        return true;
    };
    let inputs = [sides.probe, sides.build].into_iter();
    let bytes = inputs.filter_map(|side| statistics(side)?.total_byte_size.get_value().copied());
    bytes
        .min()
        .is_some_and(|bytes| bytes.saturating_mul(HASH_JOIN_BYTES) <= *limit)
}
