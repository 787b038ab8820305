//! Rules for the range functions, `range_min(…)` in any expression and `frame_min(…) OVER (…)`: a scalar call becomes a
//! column that a `RangeLookup` below its expression adds.

pub(crate) mod calls;
pub mod frame_call;
pub(crate) mod guarded_bounds;
pub mod scalar_call;
