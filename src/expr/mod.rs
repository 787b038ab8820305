//! SQL functions: the scalar form of range functions, the window form, the form in join conditions, and functions that
//! rewritten queries use.

pub(crate) mod abs;
pub(crate) mod arg_extreme;
pub(crate) mod decimal_average;
pub(crate) mod distance;
pub(crate) mod duration;
pub(crate) mod first_last;
pub(crate) mod float_bound;
pub(crate) mod frame_udf;
pub(crate) mod index_lookup;
pub(crate) mod interval_bound;
pub(crate) mod interval_product;
pub(crate) mod key_bound;
pub(crate) mod key_frame;
pub(crate) mod late_error;
pub(crate) mod length_bound;
pub(crate) mod nullable;
pub(crate) mod order_key;
pub(crate) mod parts;
pub(crate) mod range_calls;
pub(crate) mod range_udf;
pub(crate) mod shifted_bound;
pub(crate) mod text_range;
pub(crate) mod ticks;
pub(crate) mod total_order;
