//! Joins the probe side with a build side on disk: builds one spill run at a time, probes it with the buffered rows of
//! all partitions, and merges the partial aggregates of the runs, or returns the rows of each (`row_stream`).

pub(crate) mod merge;
pub(crate) mod merge_states;
pub(crate) mod prevailing;
pub(crate) mod probe_buffer;
pub(crate) mod request;
pub(crate) mod row_side;
pub(crate) mod row_stream;
pub(crate) mod row_visit;
pub(crate) mod run_cache;
pub(crate) mod run_loader;
pub(crate) mod shared_scan;
pub(crate) mod side;
