//! What the windows of a probe side can reach, and a build side that reads no more than that.
//!
//! ```text
//!   probe side   ──▶ read ahead, up to a budget ──▶ windows ──▶ Reach: disjoint intervals of the range key,
//!                                                                and the values of each equality key, if these are few
//!   build side   ──▶ ReachedRowsExec ──▶ its scan prunes files, row groups and pages by the same conditions
//! ```
//!
//! A build row that no window reaches changes no aggregate and matches no row, so it is dropped before it is copied and
//! sorted. Only joins whose windows are closed by the bounds themselves have a reach: not those with prevailing rows,
//! and not those that return build rows without a match.

pub(crate) mod intervals;
pub(crate) mod pruned_plan;
pub(crate) mod reached_rows;
pub(crate) mod window_reach;
