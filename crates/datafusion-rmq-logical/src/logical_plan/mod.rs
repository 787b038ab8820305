//! The logical nodes, which codecs, optimizer rules and other planners see.
//!
//! - [`RangeLookup`](range_lookup::RangeLookup) adds columns looked up by position: the calls of range functions.
//! - [`RangeJoin`](range_join::RangeJoin) aggregates the rows whose key is in a range: plain SQL, and `range_join(…)`.
//!   [`AccumulatorCall`](accumulator_call::AccumulatorCall) is an aggregate of it without an index.
//! - [`NearestRows`](nearest_rows::NearestRows) returns the rows nearest an end of a range: ORDER BY with LIMIT in a
//!   lateral join.
//! - [`JoinChoice`](join_choice::JoinChoice) is an aggregate over a range join that the planner may find slower than
//!   the join it replaces.
//! - [`CreateIndex`](create_index::CreateIndex) builds an index that is kept under a name.
//! - `GroupStatistics` computes order statistics of the ranges of groups.
//! - `AllColumns` keeps the columns of a lateral join in a prepared statement.
//! - [`PrepareIndexes`](prepare_indexes::PrepareIndexes) builds indexes for calls that must stay expressions.
//!
//! `node_methods` has the methods that all of them have.

#[doc(hidden)]
pub mod accumulator_call;
pub mod all_columns;
#[doc(hidden)]
pub mod create_index;
pub mod group_statistics;
#[doc(hidden)]
pub mod join_choice;
pub mod named_index;
pub mod nearest_rows;
pub(crate) mod node_methods;
#[doc(hidden)]
pub mod prepare_indexes;
pub mod range_join;
pub mod range_lookup;
pub mod stated_order;
