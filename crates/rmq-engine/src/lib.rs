#![doc = include_str!("../README.md")]
#![warn(clippy::pedantic)]
#![allow(
    clippy::single_match_else,
    reason = "two arms beside each other show both cases"
)]

mod candidate_ranges;
mod column;
mod comparison;
#[doc(hidden)]
#[cfg(feature = "cuda")]
pub mod cost_model;
pub mod cpu;
mod crossings;
#[cfg(feature = "cuda")]
pub mod cuda;
mod engine;
mod error;
mod index;
mod index_of_parts;
mod key;
mod list_smallest;
mod order_statistics;
mod outputs;
mod range_join;

pub use candidate_ranges::CandidateRanges;
pub use column::{Column, SharedSlice, Validity};
pub use comparison::Comparison;
pub use crossings::{Crossings, ListLimits, RangeEnd, RowList};
pub use engine::{BuildOptions, ColumnSize, Engine, RangeIndex, RankIndex, RankLevels};
pub use error::EngineError;
pub use index::{Index, Value};
pub use index_of_parts::SegmentedIndex;
pub use key::{Encoding, Extreme, Key};
pub use order_statistics::{OrderStatistics, RangeDistinct};
pub use outputs::{Answers, OutputBuffer, Outputs};
pub use range_join::{
    Addends, ColumnChunks, ExtremeIndex, OutputValues, PartGroups, ProbeBound, RangeJoinAnswer,
    RangeJoinColumn, RangeJoinIndex, RangeJoinInput, RangeJoinOutput, RangeJoinProbe,
    RangeJoinTimes, RangeRow, RowGroups, RowIds,
};
