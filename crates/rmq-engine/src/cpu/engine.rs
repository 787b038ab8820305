//! The engine for CPUs as an implementation of [`Engine`].

use std::sync::Arc;

use crate::column::Column;
use crate::cpu::rmq::cpu_key::CpuKey;
use crate::cpu::rmq::index::CpuIndex;
use crate::cpu::rmq::levels::{self, Layout};
use crate::cpu::rmq::next_valid::NextValid;
use crate::cpu::simd::dispatch::{Simd, SupportedSimd};
use crate::engine::{BuildOptions, ColumnSize, Engine, RangeIndex};
use crate::error::EngineError;

/// The engine for CPUs: see the [module](crate::cpu).
#[derive(Debug, Clone, Copy)]
pub struct CpuEngine {
    simd: SupportedSimd,
}

impl Default for CpuEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl CpuEngine {
    /// Creates an engine with the best instruction set of this machine.
    #[must_use]
    pub fn new() -> Self {
        Self {
            simd: SupportedSimd::best(),
        }
    }

    /// Creates an engine with the given instruction set, for tests and benchmarks.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] if this machine does not have it.
    pub fn with_simd(simd: Simd) -> Result<Self, EngineError> {
        Ok(Self {
            simd: SupportedSimd::try_new(simd)?,
        })
    }

    /// The instruction set that the engine uses.
    #[must_use]
    pub fn simd(&self) -> Simd {
        self.simd.get()
    }

    pub(crate) fn build<K: CpuKey>(
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
        // An alignment offset adds at most one block per level; this is the largest.
        let offset = levels::BLOCK - 1;
        let levels = match size.key_bytes {
            ..=4 => Layout::new::<u32>(size.rows, offset, options.positions),
            5..=8 => Layout::new::<u64>(size.rows, offset, options.positions),
            _ => Layout::new::<u128>(size.rows, offset, options.positions),
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
