//! Range-minimum queries for Apache DataFusion.
pub mod engine;
#[cfg(feature = "sql")]
mod exec;
#[cfg(feature = "sql")]
mod functions;
#[cfg(feature = "sql")]
mod index;
#[cfg(feature = "sql")]
mod options;
#[cfg(feature = "sql")]
mod plan;
#[cfg(feature = "sql")]
mod rewrite;
#[cfg(feature = "sql")]
mod session;
#[cfg(feature = "sql")]
pub use session::{SessionStateBuilderExt, register};
