//! Turns the input of the build side into a [`side::BuildSide`]: collects its partitions, sorts them by equality keys
//! and range key, and indexes the value columns. Rows that memory can't hold are spilled. Knows the aggregates that
//! the query needs, but nothing of the probe side. The session keeps some of them.

pub(crate) mod accumulated_rows;
pub(crate) mod accumulator;
pub(crate) mod aggregate;
pub(crate) mod block_states;
mod build_on_devices;
pub(crate) mod builder;
pub(crate) mod collect_or_spill;
pub(crate) mod column;
pub(crate) mod convert_keys;
pub(crate) mod device_columns;
pub(crate) mod device_join;
pub(crate) mod device_side;
pub(crate) mod failed_rows;
pub(crate) mod input_order;
pub(crate) mod kept;
mod kept_lookup;
pub(crate) mod kept_on_devices;
pub(crate) mod kept_segments;
pub(crate) mod kept_side;
pub(crate) mod lazy_structure;
pub(crate) mod matched_rows;
pub(crate) mod on_demand;
pub(crate) mod order_statistics;
pub(crate) mod origin;
pub(crate) mod persisted;
pub(crate) mod range_sources;
pub(crate) mod row_order;
pub(crate) mod side;
pub(crate) mod sort_and_index;
pub(crate) mod threshold_index;
pub(crate) mod value_index;
