//! Aggregates of ranges of sorted rows that need no index: counts, sums and single values.
//!
//! - `counts`: non-NULL values of a range, by prefix counts.
//! - `prefix_sums`: exact sums, by prefix sums; delegates sums of floats.
//! - `float_sums`, built of `sum_tree`, `outliers` and `double_double`: sums of floats that are rounded once.
//! - `order_statistics`: medians, percentiles, numbers of distinct values.
//! - `state_tree`, of `states`: any other aggregate, by merging the states of its accumulators. `range_accumulators`
//!   shows them the ranges.
//! - `values`: the values at positions.

pub(crate) mod accumulate;
pub(crate) mod counts;
pub(crate) mod double_double;
pub(crate) mod float_sums;
pub(crate) mod order_statistics;
pub(crate) mod outliers;
pub(crate) mod prefix_sums;
pub(crate) mod range_accumulators;
pub(crate) mod state_tree;
pub(crate) mod states;
pub(crate) mod sum_tree;
pub(crate) mod values;
