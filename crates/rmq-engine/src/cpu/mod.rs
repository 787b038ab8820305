//! The engine for CPUs.
//!
//! The index is a hierarchy of chunk minima with a sparse table on top (`levels.rs`): 0.27 bytes for each value of 4 bytes and 0.54 for
//! each of 8, with positions 0.30 and 0.57. The column itself is borrowed; only one with NULLs is copied, as keys. The search
//! (`search.rs`) starts at the level that fits a range, goes down only where a block's minimum promises more, and works
//! on many queries at once to hide the latency of memory. Vector instructions are chosen at run time ([`Simd`]). An index may be built
//! late (`late.rs`): once it is known that enough is asked of it.
//!
//! The hierarchy of chunk minima is that of *GPU-RMQ: Accelerating Range Minimum Queries on Modern GPUs* (Kreis et al., 2026);
//! the pruning and the tiles fit it to the caches and vectors of a CPU core. `benches/README.md` has what was measured.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::inline_always,
    clippy::many_single_char_names,
    clippy::needless_bitwise_bool,
    clippy::similar_names,
    clippy::verbose_bit_mask,
    clippy::wildcard_imports,
    reason = "bit work: numbers are cut on purpose, branches avoided; `l`, `r` and `q` are the papers' names"
)]

mod build;
mod dispatch;
mod late;
mod levels;
mod memory;
mod pieces;
mod search;
mod simd;
mod tile;
mod validity;

use std::fmt;
use std::sync::Arc;

use build::Source;
use dispatch::CpuKey;
pub use late::{Late, late_u32, late_u64, late_u128};
use levels::{Layout, Levels};
use memory::Memory;
pub use memory::Numbers;
use search::Context;
pub use simd::Simd;
pub use simd::prefetch;
use validity::NextValid;

use super::{
    Answers, BuildOptions, Column, ColumnSize, Encoding, Engine, EngineError, Key, RangeIndex,
    SharedSlice,
};

/// The engine for CPUs: see the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct CpuEngine {
    simd: Simd,
}

impl Default for CpuEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl CpuEngine {
    /// With the best vector instructions of this machine.
    #[must_use]
    pub fn new() -> Self {
        Self { simd: Simd::best() }
    }

    /// With these vector instructions: for tests and comparisons.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] where this machine lacks them.
    pub fn with_simd(simd: Simd) -> Result<Self, EngineError> {
        Ok(Self {
            simd: simd.check()?,
        })
    }

    /// The vector instructions it uses.
    #[must_use]
    pub fn simd(&self) -> Simd {
        self.simd
    }

    fn build<K: CpuKey>(
        self,
        column: &Column<K>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<K>>, EngineError> {
        Ok(Arc::new(CpuIndex::build(column, options, self.simd)?))
    }
}

impl Engine for CpuEngine {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn build_u32(
        &self,
        column: Column<u32>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u32>>, EngineError> {
        self.build(&column, options)
    }

    fn build_u64(
        &self,
        column: Column<u64>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u64>>, EngineError> {
        self.build(&column, options)
    }

    fn build_u128(
        &self,
        column: Column<u128>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u128>>, EngineError> {
        self.build(&column, options)
    }

    fn memory_bytes(&self, size: ColumnSize, options: &BuildOptions) -> usize {
        // A lead adds at most one block a level; the largest is asked for.
        let lead = levels::BLOCK - 1;
        let levels = match size.key_bytes {
            ..=4 => Layout::new::<u32>(size.rows, lead, options.positions),
            5..=8 => Layout::new::<u64>(size.rows, lead, options.positions),
            _ => Layout::new::<u128>(size.rows, lead, options.positions),
        };
        let index = levels.map_or(usize::MAX, |layout| layout.bytes());
        if !size.nulls {
            return index;
        }
        let copy = size.rows.saturating_mul(size.key_bytes);
        index
            .saturating_add(copy)
            .saturating_add(NextValid::bytes_for(size.rows))
    }
}

/// An index over a slice that is borrowed, for [`alone`](super::alone).
macro_rules! index_slice {
    ($name:ident, $key:ty) => {
        pub(super) fn $name<'a>(
            values: &'a [$key],
            encoding: Encoding<$key>,
            options: &BuildOptions,
        ) -> Result<Box<dyn RangeIndex<$key> + 'a>, EngineError> {
            let storage = Storage::Slice(values);
            let len = values.len();
            let index = CpuIndex::over(storage, len, encoding, None, options, Simd::best())?;
            Ok(Box::new(index))
        }
    };
}

index_slice!(index_u32, u32);
index_slice!(index_u64, u64);
index_slice!(index_u128, u128);

/// A column with its hierarchy of chunk minima.
struct CpuIndex<'a, K> {
    column: Storage<'a, K>,
    len: usize,
    lead: usize,
    /// How the values of `column` become keys.
    encoding: Encoding<K>,
    /// How keys become the bits that were handed in.
    decoding: Encoding<K>,
    levels: Levels<K>,
    valid: Option<NextValid>,
    simd: Simd,
}

/// Where the values of an indexed column are.
enum Storage<'a, K> {
    /// Borrowed, no NULLs.
    Shared(SharedSlice<K>),
    /// Borrowed, no NULLs.
    Slice(&'a [K]),
    /// A copy of encoded keys, [`Key::MAX`] for NULL.
    Copy(Memory),
}

impl<K: CpuKey> CpuIndex<'static, K> {
    /// Indexes a shared column.
    fn build(column: &Column<K>, options: &BuildOptions, simd: Simd) -> Result<Self, EngineError> {
        let len = column.len();
        let nulls = column
            .validity()
            .filter(|validity| validity.null_count(len) > 0);
        let Some(validity) = nulls else {
            let encoding = column.encoding();
            let storage = Storage::Shared(column.shared_bits().clone());
            return Self::over(storage, len, encoding, None, options, simd);
        };
        let (keys, valid) = build::without_nulls(column, validity, options.threads)?;
        let index = Self::over(
            Storage::Copy(keys),
            len,
            Encoding::unsigned(),
            Some(valid),
            options,
            simd,
        )?;
        Ok(Self {
            decoding: column.encoding(),
            ..index
        })
    }
}

impl<'a, K: CpuKey> CpuIndex<'a, K> {
    fn over(
        column: Storage<'a, K>,
        len: usize,
        encoding: Encoding<K>,
        valid: Option<NextValid>,
        options: &BuildOptions,
        simd: Simd,
    ) -> Result<Self, EngineError> {
        let values = column.values(len);
        let lead = levels::lead(values);
        // The slice may have changed since its length was taken.
        if values.len() != len {
            return Err(EngineError::ColumnMoved);
        }
        let mut levels = Levels::new(Layout::new::<K>(len, lead, options.positions)?)?;
        let source = Source {
            values,
            lead,
            encoding,
        };
        build::fill_levels(&mut levels, source, simd, options.threads)?;
        Ok(Self {
            column,
            len,
            lead,
            encoding,
            decoding: encoding,
            levels,
            valid,
            simd,
        })
    }
}

impl<K: CpuKey> Storage<'_, K> {
    fn values(&self, len: usize) -> &[K] {
        match self {
            Self::Shared(shared) => (**shared).as_ref(),
            Self::Slice(slice) => slice,
            Self::Copy(memory) => memory.slice(0, len),
        }
    }
}

impl<K: CpuKey> RangeIndex<K> for CpuIndex<'_, K> {
    fn len(&self) -> usize {
        self.len
    }

    fn has_positions(&self) -> bool {
        self.levels.has_positions()
    }

    fn index_bytes(&self) -> usize {
        self.levels.layout().bytes() + self.valid.as_ref().map_or(0, NextValid::bytes)
    }

    fn memory_bytes(&self) -> usize {
        let copy = match &self.column {
            Storage::Copy(memory) => memory.bytes(),
            Storage::Shared(_) | Storage::Slice(_) => 0,
        };
        self.index_bytes() + copy
    }

    fn answer(
        &self,
        left: &[i64],
        right: &[i64],
        mut out: Answers<'_, K>,
    ) -> Result<(), EngineError> {
        out.check(left, right)?;
        if out.positions.is_some() && !self.has_positions() {
            return Err(EngineError::NoPositions);
        }
        let column = self.column.values(self.len);
        // The search reads within `len` values from a given alignment; memory that changed is not searched.
        if column.len() != self.len || levels::lead(column) != self.lead {
            return Err(EngineError::ColumnMoved);
        }
        let context = Context {
            column,
            lead: self.lead,
            encoding: self.encoding,
            levels: &self.levels,
            valid: self.valid.as_ref(),
        };
        let keys = Answers {
            values: out.values.as_deref_mut(),
            positions: out.positions,
            valid: out.valid,
        };
        // SAFETY: a `CpuEngine` has available instructions only, and length and lead were compared above.
        unsafe { K::answer(self.simd, context, left, right, keys) };
        if let Some(values) = out.values.filter(|_| self.decoding != Encoding::unsigned()) {
            for value in values {
                *value = self.decoding.decode(*value);
            }
        }
        Ok(())
    }
}

impl<K: Key> fmt::Debug for CpuIndex<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuIndex")
            .field("len", &self.len)
            .field("encoding", &self.encoding)
            .field("nulls", &self.valid.is_some())
            .field("simd", &self.simd)
            .finish_non_exhaustive()
    }
}
