//! Joins the probe side with a build side on disk: one run after the other is built and probed with the buffered rows
//! of all partitions, and the partial aggregates of the runs are merged, or the rows of each are returned.
//!
//! One stream (`stream`), one visit of runs (`visit`) and one cache of the run in memory (`run_cache`) serve joins that
//! return aggregates (`partials`) and those that return rows (`pairs`). Where both sides come in no order, they are
//! divided by hashes of the equality keys first (`divide_runs`, `probe_parts`).

pub(crate) mod divide_runs;
pub(crate) mod merge;
pub(crate) mod merge_states;
pub(crate) mod pairs;
pub(crate) mod partials;
pub(crate) mod prevailing;
pub(crate) mod probe_buffer;
pub(crate) mod probe_parts;
pub(crate) mod run_cache;
pub(crate) mod run_loader;
pub(crate) mod run_set;
pub(crate) mod side;
pub(crate) mod stream;
pub(crate) mod visit;
