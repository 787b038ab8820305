//! What the windows of a probe side can reach, and a build side that reads, or at least sorts, no more than that.
//!
//! ```text
//!   probe side   ──▶ read ahead, up to a budget ──▶ windows ──▶ Reach: disjoint intervals of the range key,
//!                                                                and the values of each equality key, if these are few
//!   build side   ──▶ ReachedRowsExec ──▶ its scan prunes files, row groups and pages by the same conditions
//!                ──▶ collected rows  ──▶ those that are reached, where the scan can't prune
//! ```
//!
//! A build row that no window reaches changes no aggregate and matches no row, so it is dropped before it is copied and
//! sorted. Where only the rows nearest to a bound count, no bound tells how far these are: they are sought in slices of
//! the range key. Joins that return build rows without a match have no reach.

pub(crate) mod build_extent;
pub(crate) mod collected_reach;
pub(crate) mod intervals;
pub(crate) mod key_set;
mod key_values;
pub(crate) mod nearest_rows;
pub(crate) mod nearest_slices;
pub(crate) mod probe_keys;
pub(crate) mod pruned_plan;
pub(crate) mod reached_rows;
pub(crate) mod row_groups;
pub(crate) mod seekers;
pub(crate) mod sought;
pub(crate) mod statistics_reach;
pub(crate) mod whole_keys;
pub(crate) mod window_reach;
