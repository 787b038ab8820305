//! Joins the partitions of the probe side with the build side, in the way that suits its size: on the CPU, on devices,
//! or run by run if the build side was spilled. Reads a build side through its public methods and never changes it.

pub(crate) mod build_input;
pub(crate) mod build_state;
pub(crate) mod candidate_pairs;
pub(crate) mod candidates;
pub(crate) mod closest;
pub(crate) mod device_join;
pub(crate) mod first_match;
pub(crate) mod join_prepared;
pub(crate) mod key_errors;
pub(crate) mod nearest;
pub(crate) mod nearest_of_segments;
pub(crate) mod pair_search;
pub(crate) mod partition;
pub(crate) mod prevailing;
pub(crate) mod probe_ahead;
pub(crate) mod probe_build;
pub(crate) mod probe_input;
pub(crate) mod qualifying;
pub(crate) mod row_source;
pub(crate) mod rows;
pub(crate) mod search_window;
pub(crate) mod segments;
pub(crate) mod slices;
pub(crate) mod slicing;
pub(crate) mod spilled;
pub(crate) mod stream;
