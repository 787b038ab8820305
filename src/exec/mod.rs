//! Physical operators, each in a folder: `range_lookup` adds columns that are looked up by position, `range_join` joins
//! by a range of a key, `unique_groups` aggregates groups that are known to be single rows, `window_frame` answers
//! window functions over frames that slide. `common` is what they share.

pub(crate) mod common;
pub(crate) mod create_index;
pub(crate) mod group_statistics;
pub(crate) mod range_join;
pub(crate) mod range_lookup;
pub(crate) mod unique_groups;
pub(crate) mod window_frame;
