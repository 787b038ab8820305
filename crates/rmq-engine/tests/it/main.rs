//! All integration tests in one binary, which can be copied to a machine with a GPU.

mod crossings;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_order_statistics;
#[cfg(feature = "cuda")]
mod cuda_range_join;
mod engine;
#[cfg(feature = "cuda")]
mod float_case;
#[cfg(feature = "cuda")]
mod join_case;
mod key_search;
mod oracle;
mod segmented;
mod smallest;
