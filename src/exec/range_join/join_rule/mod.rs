//! The optimizer rule that replaces DataFusion's joins over a range by range joins that return rows. `condition` finds the range in a join's filter,
//! `cost` tells whether the join would compare pairs of rows one by one.

pub(crate) mod condition;
pub(crate) mod cost;
pub(crate) mod rule;
