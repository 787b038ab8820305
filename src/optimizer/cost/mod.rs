//! Whether sorting pays: the one place where a range join and DataFusion's join are weighed, in `decision`.
//! `equal_rows`, `range_rows` and `unique_keys` are what is known of the sides. `extremes` says whether differences may
//! wrap around, `sources` finds the table below a plan.

pub(crate) mod decision;
pub(crate) mod equal_rows;
pub(crate) mod extremes;
pub(crate) mod range_rows;
pub(crate) mod sources;
pub(crate) mod unique_keys;
