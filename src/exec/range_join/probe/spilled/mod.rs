//! Joins the probe side with a build side on disk: builds one spill run at a time, probes it with the buffered rows of all partitions, and merges
//! the partial aggregates of the runs.

pub(crate) mod merge;
pub(crate) mod merge_states;
pub(crate) mod probe_buffer;
pub(crate) mod request;
pub(crate) mod run_loader;
pub(crate) mod shared_scan;
pub(crate) mod side;
