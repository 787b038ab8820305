//! All integration tests in one binary: each more would link DataFusion once again.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_search;
#[cfg(feature = "sql")]
mod cuda_sql;
#[cfg(feature = "sql")]
mod devices;
#[cfg(feature = "sql")]
mod dictionaries;
mod engine;
#[cfg(feature = "sql")]
mod fake;
#[cfg(feature = "sql")]
mod few_rows;
#[cfg(feature = "sql")]
mod late_index;
mod oracle;
#[cfg(feature = "sql")]
mod plans;
#[cfg(feature = "sql")]
mod prevailing;
#[cfg(feature = "sql")]
mod properties;
mod random;
#[cfg(feature = "sql")]
mod range_join;
#[cfg(feature = "sql")]
mod range_join_devices;
#[cfg(feature = "sql")]
mod reasons;
#[cfg(feature = "sql")]
mod robustness;
#[cfg(feature = "sql")]
mod runs;
#[cfg(feature = "sql")]
mod spilling;
#[cfg(feature = "sql")]
mod sql_files;
#[cfg(feature = "sql")]
mod staleness;
#[cfg(feature = "sql")]
mod support;
#[cfg(feature = "sql")]
mod ties;
#[cfg(feature = "sql")]
mod unique_groups;
