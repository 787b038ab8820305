//! Logical rules: what people wrote, as range joins. One SQL shape a file.

mod calls;
mod condition;
mod conditional;
mod correlated;
mod explicit;
mod frame_call;
mod grouped_join;
mod infallible;
mod lateral;
mod order;
mod partials;
mod recognised;
mod scalar_call;
mod scalar_subquery;
mod side_sizes;

pub(crate) use explicit::{ExplicitJoin, Refused};
pub use frame_call::CheckFrameCalls;
pub use grouped_join::GroupedJoinToRangeJoin;
pub use lateral::LateralToRangeJoin;
pub(crate) use order::{check_states_order, ends_in_order_by};
pub use scalar_call::RangeCallToJoin;
pub use scalar_subquery::SubqueryToRangeJoin;
