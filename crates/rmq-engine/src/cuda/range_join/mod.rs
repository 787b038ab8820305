//! Build sides of range joins on devices, and the queries of them.
//!
//! [`build`](build::build) uploads the rows as they came (`staging`, from `chunks`), sorts row numbers (`sort`,
//! `prefix_sums`) and gathers each column into what answers it (`column`, `float_sums`); `size` bounds the memory of
//! that. [`probe`](probe::answer) sends chunks of a `batch` of probe rows: search and answers (`answer_plan`, `launch`)
//! follow each other on one stream, and only the answers come back to `outputs`. [`index`] has the replicas of all
//! devices.

mod answer_plan;
mod batch;
mod build;
mod chunks;
mod column;
mod float_sums;
mod group_ids;
pub(super) mod index;
mod launch;
mod outputs;
mod prefix_sums;
mod probe;
mod rows;
pub(super) mod size;
mod sort;
mod staging;
mod work;
