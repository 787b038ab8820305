//! The operator of joins by a range of a key.
//!
//! `exec` is the operator, `exec_plan` what plans and rules know of it. `build_side` collects, sorts and indexes the
//! build side, `spill` stores the rows of a build side that memory can't hold, and `probe` joins the probe side with
//! either. `reach` reads no more of files than the windows of the probe side need, and `task_slices` has each task of a
//! divided plan do so. `optimizer::physical` has the rules about it.

pub(crate) mod aggregate_table;
pub(crate) mod bounds;
pub(crate) mod build_columns;
pub(crate) mod build_side;
pub(crate) mod data_size;
pub(crate) mod device_aggregates;
pub(crate) mod devices;
pub(crate) mod engine_choice;
pub(crate) mod exec;
pub(crate) mod exec_plan;
pub(crate) mod interval_bounds;
pub(crate) mod metrics;
pub(crate) mod mode;
pub(crate) mod pair_distance;
pub(crate) mod parts;
pub(crate) mod probe;
pub(crate) mod reach;
pub(crate) mod row_join;
pub(crate) mod row_properties;
pub(crate) mod row_threshold;
pub(crate) mod shifted_bounds;
pub(crate) mod spill;
pub(crate) mod task_slices;
