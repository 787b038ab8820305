//! The physical operator of range joins, and the relations whose rows it asks.

mod blocking;
mod decision;
mod gather;
mod key_build;
mod key_collect;
mod key_devices;
mod key_engine;
mod key_few;
mod key_join;
mod key_merge;
mod key_metrics;
mod key_order;
mod key_pieces;
mod key_prevailing;
mod key_room;
mod key_side;
mod key_spill;
mod key_stream;
mod load;
mod metrics;
mod once;
mod prepare;
mod range_join;
mod relation;
mod stream;
mod time_bounds;

pub(crate) use key_engine::JoinEngine;
pub use key_join::KeyJoinExec;
pub(crate) use prepare::{PhysicalLookup, PrepareIndexesExec};
pub(crate) use range_join::PhysicalCall;
pub use range_join::RangeJoinExec;
pub(crate) use relation::{Demand, Relation, RelationSource, expected_rows};
