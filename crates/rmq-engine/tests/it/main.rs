//! All integration tests in one binary, to be carried to a machine with a GPU.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_search;
mod engine;
mod key_search;
mod oracle;
