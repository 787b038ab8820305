//! The physical operator of range joins, and the relations whose rows it asks.

mod decision;
mod gather;
mod key_build;
mod key_collect;
mod key_join;
mod key_metrics;
mod key_prevailing;
mod key_stream;
mod load;
mod metrics;
mod once;
mod prepare;
mod range_join;
mod relation;
mod stream;

pub use key_join::KeyJoinExec;
pub(crate) use prepare::{PhysicalLookup, PrepareIndexesExec};
pub(crate) use range_join::PhysicalCall;
pub use range_join::RangeJoinExec;
pub(crate) use relation::{Demand, Relation, RelationSource, expected_rows};
