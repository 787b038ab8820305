//! The range join between the rewrite rules and the operators: one logical node, and the planner that makes the
//! operator of it.

mod dml;
mod key_join;
mod key_planner;
mod node;
mod planner;
mod prepare;

pub use key_join::{KeyAggregate, KeyFunction, KeyJoinSpec, KeyRangeJoin, Unmatched};
pub(crate) use node::is_same_plan;
pub use node::{RangeCall, RangeJoin, Source, TableColumn};
pub use planner::RmqQueryPlanner;
pub use prepare::{Lookup, PrepareIndexes};
