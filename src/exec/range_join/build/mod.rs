//! TODO

pub(crate) mod build;
pub(crate) mod collect;
pub(crate) mod input_order;
pub(crate) mod side;
pub(crate) mod value_index;
