//! What operators share: the state of a run, blocking work, batches for devices, the choice of the engine, metrics,
//! plan properties, methods, keys and identities, output batches, versions of files, statistics, notes in EXPLAIN, the
//! filters that inputs may evaluate, guards against mistakes of rules, the order of rows and their positions in it, and
//! joins that stop when they are told.

pub(crate) mod added_columns;
pub(crate) mod another_run;
pub(crate) mod blocking;
pub(crate) mod device_batcher;
pub(crate) mod engine_choice;
pub(crate) mod file_versions;
pub(crate) mod filter_pushdown;
pub(crate) mod guards;
pub(crate) mod metrics;
pub(crate) mod note;
pub(crate) mod once_per_run;
pub(crate) mod ordered_rows;
pub(crate) mod output_batches;
pub(crate) mod parquet_metadata;
pub(crate) mod pieces;
pub(crate) mod plan_identity;
pub(crate) mod plan_key;
pub(crate) mod plan_methods;
pub(crate) mod row_positions;
pub(crate) mod statistic_copies;
pub(crate) mod statistics;
pub(crate) mod stop;
pub(crate) mod versioned_scan;
