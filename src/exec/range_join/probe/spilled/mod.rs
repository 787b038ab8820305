//! Joins the probe side with a build side on disk: one run after the other is built and probed with the buffered rows
//! of all partitions, and the partial aggregates of the runs are merged, or the rows of each are returned.
//!
//! One stream (`stream`), one visit of runs (`visit`) and one cache of the run in memory (`run_cache`) serve joins that
//! return aggregates (`partials`) and those that return rows (`pairs`). Where both sides come in no order, they are
//! divided by hashes of the equality keys first (`divide_runs`, `probe_buckets`).
//!
//! A turn reads a run, or as much of it as there is memory for, builds it and probes it. One part of a run is in memory
//! at a time, for all partitions. What is left of a run is a stack of work: rows of the run, and the probe row to go on
//! with, as less of a run may fit into memory when it is read again.
//!
//! The merge asks runs for the values that decide (the range key, the value, else the row's position) where an
//! aggregate chooses a row, and for what was rounded off where it is a sum of floats. Pairs leave as they are found: a
//! turn ends when as many rows are ready as a partition may hold. Marks of build rows are by the place of a row in its
//! run, which a column beside the row columns tells. Pairs come in no order, and a plan is made before it is known
//! whether rows are spilled, so an operator that returns pairs promises none, unless its probe side has no end: then
//! nothing is spilled.

pub(crate) mod divide_runs;
pub(crate) mod merge;
pub(crate) mod pairs;
pub(crate) mod partials;
pub(crate) mod probe_buckets;
pub(crate) mod probe_buffer;
pub(crate) mod run_cache;
pub(crate) mod run_loader;
pub(crate) mod run_set;
pub(crate) mod side;
pub(crate) mod stream;
pub(crate) mod visit;
