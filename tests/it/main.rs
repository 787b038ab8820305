//! All integration tests in one binary: each more would link DataFusion once again.

#[cfg(feature = "cuda")]
mod cuda;
mod engine;
mod oracle;
#[cfg(feature = "sql")]
mod properties;
mod random;
#[cfg(feature = "sql")]
mod robustness;
#[cfg(feature = "sql")]
mod sql_files;
#[cfg(feature = "sql")]
mod staleness;
#[cfg(feature = "sql")]
mod support;
