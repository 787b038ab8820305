//! TODO

pub(crate) mod arrange;
pub(crate) mod bucket_sort;
pub(crate) mod candidates;
pub(crate) mod device_keys;
pub(crate) mod group_ids;
pub(crate) mod groups;
pub(crate) mod interner;
pub(crate) mod order_keys;
pub(crate) mod permutation;
pub(crate) mod sort_rows;
pub(crate) mod sorted_rows;
