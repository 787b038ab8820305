#![doc = include_str!("../README.md")]

mod column;
#[doc(hidden)]
#[cfg(feature = "cuda")]
pub mod cost_model;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod engine;
mod error;
mod index;
mod key;
#[cfg(feature = "cuda")]
mod key_search;
mod outputs;

pub use column::{Column, SharedSlice, Validity};
pub use engine::{BuildOptions, ColumnSize, Engine, RangeIndex};
pub use error::EngineError;
pub use index::{Index, Value};
pub use key::{Encoding, Extreme, Key, Plain};
#[cfg(feature = "cuda")]
pub use key_search::{KeyBound, KeyRanges, KeySearch, SortedKeys};
pub use outputs::{Answers, Memory, Outputs};
