//! SQL functions: the scalar form of range functions, the window form, the form in join conditions, and functions that
//! rewritten queries use.

pub mod abs;
pub mod arg_extreme;
pub mod decimal_average;
pub mod distance;
pub(crate) mod duration;
pub mod first_last;
pub(crate) mod float_bound;
pub mod frame_udf;
pub mod index_lookup;
pub(crate) mod interval_bound;
pub mod interval_product;
pub mod key_bound;
pub(crate) mod key_frame;
pub mod late_error;
pub mod length_bound;
pub(crate) mod nullable;
pub mod order_key;
pub mod order_statistic;
pub mod parts;
pub mod range_calls;
pub mod range_udf;
pub mod shifted_bound;
pub mod state_function;
pub(crate) mod text_range;
pub mod ticks;
pub mod total_order;
