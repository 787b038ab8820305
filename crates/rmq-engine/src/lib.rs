//! Engines that answer batches of range-minimum queries.
//!
//! An engine knows slices and bounds: no Arrow arrays, no `DataFusion`. [`Engine`] makes a [`RangeIndex`] of a
//! [`Column`]; the index answers batches of inclusive ranges `(l, r)` with the smallest key in each and with the
//! leftmost position where it stands. Values are seen as order-preserving unsigned [`Key`]s of 32, 64 or 128 bits
//! ([`Encoding`]), so that one kernel a width serves every type, and the maximum is the minimum of the complement.
//!
//! [`cpu`] is the engine for CPUs, `cuda` that for NVIDIA GPUs; [`alone`] is the CPU's for plain Rust slices, without any
//! of these words:
//!
//! ```
//! use rmq_engine::alone::Index;
//!
//! let prices = [4.5_f32, 3.0, 7.25, 3.0, 9.0];
//! let index = Index::min(&prices)?;
//! assert_eq!(index.value(2..=4), Some(3.0));
//! assert_eq!(index.position(0..), Some(1));
//! # Ok::<(), rmq_engine::EngineError>(())
//! ```
//!
//! The shape, a hierarchy of chunk minima that is searched level by level, stems from *GPU-RMQ: Accelerating Range
//! Minimum Queries on Modern GPUs* (Kreis et al., 2026).

pub mod alone;
#[cfg(feature = "cuda")]
pub mod choice;
mod column;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod key;
mod output;
#[cfg(feature = "cuda")]
mod search;

use std::fmt::Debug;
use std::sync::Arc;

pub use column::{Column, SharedSlice, Validity};
pub use error::EngineError;
pub use key::{Encoding, Key, Plain};
pub use output::{Memory, Outputs};
#[cfg(feature = "cuda")]
pub use search::{KeyBound, KeyRanges, KeySearch, SortedKeys};

/// Which end of the order is sought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extreme {
    /// The smallest value.
    Min,
    /// The greatest value.
    Max,
}

impl Extreme {
    /// `min` or `max`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Min => "min",
            Self::Max => "max",
        }
    }
}

/// Where a batch of answers goes; what is wanted follows from which outputs are there.
///
/// `n` is the number of queries, the length of the bounds.
#[derive(Debug)]
pub struct Answers<'a, K> {
    /// The value with the smallest key of each range, `n` of them, as the bits that the column has for it. Where the range
    /// holds no value, the bits of [`Key::MAX`].
    pub values: Option<&'a mut [K]>,
    /// The leftmost position of that minimum, 0-based, `n` of them; 0 where the range holds no value.
    pub positions: Option<&'a mut [i64]>,
    /// A bitmap, least significant bit first, of `n.div_ceil(64)` words: a bit is set where the range holds a value
    /// that is not NULL. Bits past `n` are cleared.
    pub valid: &'a mut [u64],
}

impl<K> Answers<'_, K> {
    /// That all slices fit `left`.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] with the name of the first slice that does not.
    pub fn check(&self, left: &[i64], right: &[i64]) -> Result<(), EngineError> {
        self.check_lengths(left.len(), right.len())
    }

    /// That all slices fit `n` left bounds, of which there are `right` right ones.
    pub(crate) fn check_lengths(&self, n: usize, right: usize) -> Result<(), EngineError> {
        let fits = |what, expected, found| {
            if expected == found {
                Ok(())
            } else {
                Err(EngineError::Lengths {
                    what,
                    expected,
                    found,
                })
            }
        };
        fits("the slice of right bounds", n, right)?;
        if let Some(values) = &self.values {
            fits("the slice for values", n, values.len())?;
        }
        if let Some(positions) = &self.positions {
            fits("the slice for positions", n, positions.len())?;
        }
        fits(
            "the bitmap of valid answers",
            n.div_ceil(64),
            self.valid.len(),
        )
    }
}

/// A column made ready for range-minimum queries. Shared between threads; each answers its own batches.
pub trait RangeIndex<K: Key>: Send + Sync + Debug {
    /// Number of values in the column, NULLs included.
    fn len(&self) -> usize;

    /// Whether the column has no value.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether [`Answers::positions`] can be asked for.
    fn has_positions(&self) -> bool;

    /// Bytes of the index alone: levels, tables, offsets and what skips NULLs.
    fn index_bytes(&self) -> usize;

    /// All bytes of this machine's memory that this object owns: the index, and a copy of the column if it made one. A
    /// borrowed column is not counted, nor is the memory of a GPU.
    fn memory_bytes(&self) -> usize;

    /// Bytes of GPU memory that this object owns, on each of its devices.
    fn device_bytes(&self) -> usize {
        0
    }

    /// Memory for the answers of `queries` ranges, from where this index writes them fastest. (Any other serves too.)
    fn outputs(&self, queries: usize, values: bool, positions: bool) -> Outputs<K> {
        Outputs::allocated(queries, values, positions)
    }

    /// Answers one batch on the calling thread.
    ///
    /// `left` and `right` are inclusive positions, clipped to `[0, len)`; where then `left > right`, the range is
    /// empty. Batches of some thousand queries are best: the engine works on many at once to hide the latency of
    /// memory.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] where slices do not fit each other, [`EngineError::NoPositions`] where positions are
    /// asked of an index built without them; engines may add their own.
    fn answer(&self, left: &[i64], right: &[i64], out: Answers<'_, K>) -> Result<(), EngineError>;

    /// Answers one batch whose bounds lie in several places, left and right of each, as if they lay in one. An engine that copies
    /// bounds anyway gathers them so.
    ///
    /// # Errors
    /// As [`RangeIndex::answer`].
    fn answer_gathered(
        &self,
        parts: &[(&[i64], &[i64])],
        out: Answers<'_, K>,
    ) -> Result<(), EngineError> {
        if let [(left, right)] = parts {
            return self.answer(left, right, out);
        }
        let (left, right): (Vec<_>, Vec<_>) = parts.iter().copied().unzip();
        self.answer(&left.concat(), &right.concat(), out)
    }
}

/// How an index is to be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuildOptions {
    /// Prepare for [`Answers::positions`]: some 0.04 bytes a value more.
    pub positions: bool,
    /// How many threads may build, the calling one included. Small columns take one whatever this says.
    pub threads: usize,
}

impl Default for BuildOptions {
    /// With positions, on one thread.
    fn default() -> Self {
        Self {
            positions: true,
            threads: 1,
        }
    }
}

/// The size of a column before it is there, to reserve memory for its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnSize {
    /// Number of values.
    pub rows: usize,
    /// Bytes of a key: 4, 8 or 16.
    pub key_bytes: usize,
    /// Whether there may be NULLs.
    pub nulls: bool,
}

/// What makes indexes: the seam between SQL and silicon.
pub trait Engine: Send + Sync + Debug {
    /// A short name, such as `cpu`.
    fn name(&self) -> &'static str;

    /// An index over 32-bit keys.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] and its like; never panics.
    fn build_u32(
        &self,
        column: Column<u32>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u32>>, EngineError>;

    /// An index over 64-bit keys.
    ///
    /// # Errors
    /// As [`Engine::build_u32`].
    fn build_u64(
        &self,
        column: Column<u64>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u64>>, EngineError>;

    /// An index over 128-bit keys.
    ///
    /// # Errors
    /// As [`Engine::build_u32`].
    fn build_u128(
        &self,
        column: Column<u128>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u128>>, EngineError>;

    /// An upper bound of [`RangeIndex::memory_bytes`] for a column of that size, known before anything is built.
    fn memory_bytes(&self, size: ColumnSize, options: &BuildOptions) -> usize;
}
