//! Logical rules: what people wrote, as range joins. One SQL shape a file.

mod calls;
mod conditional;
mod frame_call;
mod order;
mod scalar_call;

pub use frame_call::CheckFrameCalls;
pub(crate) use order::{check_states_order, ends_in_order_by};
pub use scalar_call::RangeCallToJoin;
