//! Aggregates of ranges of sorted rows: counts, sums, order statistics and single values. Minima and maxima are
//! the index's.
//!
//! - `counts`: non-NULL values of a range, by prefix counts.
//! - `prefix_sums`: exact sums, by prefix sums; delegates sums of floats.
//! - `float_sums`, built of `sum_tree`, `outliers` and `double_double`: sums of floats that are rounded once.
//! - `order_statistics`: medians, percentiles, numbers of distinct values.
//! - `values`: the values at positions.

pub(crate) mod accumulate;
pub mod counts;
pub(crate) mod double_double;
pub mod float_sums;
pub mod order_statistics;
pub(crate) mod outliers;
pub mod prefix_sums;
pub(crate) mod sum_tree;
pub mod values;
