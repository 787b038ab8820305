//! The seam between SQL and silicon: what makes indexes, and what answers batches of range-minimum queries.

use std::fmt::Debug;
use std::sync::Arc;

use crate::column::Column;
use crate::error::EngineError;
use crate::key::Key;
use crate::outputs::{Answers, Outputs};

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
