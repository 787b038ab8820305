//! TODO

pub(crate) mod aggregates;
pub(crate) mod condition;
pub(crate) mod correlated;
pub(crate) mod explicit;
pub(crate) mod grouped_join;
pub(crate) mod lateral;
pub(crate) mod rejection;
pub(crate) mod scalar_subquery;
pub(crate) mod side_sizes;
