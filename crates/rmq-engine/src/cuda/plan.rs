//! What a column is to become: our index or the paper's, and the kernels that answer from it.

use std::ffi::c_void;

use super::CudaKernel;
use super::build::{Source, build};
use super::gpu::Gpu;
use super::key::CudaKey;
use super::layout::{Index, Layout};
use super::memory::DeviceMemory;
use super::module::{Function, Module};
use super::paper::{self, Paper, PaperIndex, PaperLayout};
use super::stream::argument;
use super::tuning::Shape;
use crate::{ColumnSize, EngineError};

/// What an engine was told.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    pub kernel: CudaKernel,
    /// The best known where not said.
    pub shape: Option<Shape>,
}

/// How a column is laid out and asked.
#[derive(Debug)]
pub enum Plan {
    Ours(Box<Layout>),
    Papers(Box<PaperLayout>),
}

/// What kernels get of an index.
#[derive(Debug)]
pub enum AnyIndex {
    Ours(Box<Index>),
    Papers(Box<PaperIndex>),
}

/// What a kernel writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    Value,
    Position,
    Both,
}

impl Plan {
    pub fn of(choice: Choice, size: ColumnSize, positions: bool) -> Result<Self, EngineError> {
        let paper = match choice.kernel {
            CudaKernel::Auto => {
                let layout = Layout::of(size, positions, choice.shape)?;
                return Ok(Self::Ours(Box::new(layout)));
            }
            CudaKernel::Coalesced => Paper::Coalesced,
            CudaKernel::MultiLoad => Paper::MultiLoad,
            CudaKernel::Vector => Paper::Vector,
            CudaKernel::FullScan => Paper::FullScan,
        };
        let layout = PaperLayout::of(paper, size, positions, choice.shape)?;
        Ok(Self::Papers(Box::new(layout)))
    }

    /// Bytes on a device, the column included.
    pub fn bytes(&self) -> usize {
        let bytes = match self {
            Self::Ours(layout) => layout.bytes,
            Self::Papers(layout) => layout.bytes,
        };
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Whether kernels take positions of 64 bits.
    pub fn wide(&self) -> bool {
        match self {
            Self::Ours(layout) => layout.shape.wide_positions,
            Self::Papers(layout) => layout.wide,
        }
    }

    /// Threads that answer a query.
    pub fn threads(&self) -> u64 {
        match self {
            Self::Ours(_) => 1,
            Self::Papers(layout) => layout.paper.threads(),
        }
    }

    /// The kernel that answers.
    pub fn kernel<K: CudaKey>(&self, gpu: &Gpu, wanted: Wanted) -> Result<Function, EngineError> {
        let (key, width) = (K::NAME, if self.wide() { 64 } else { 32 });
        match self {
            Self::Ours(layout) => {
                let chunk = layout.shape.chunk_bytes;
                let wanted = match wanted {
                    Wanted::Value => "value",
                    Wanted::Position => "position",
                    Wanted::Both => "both",
                };
                let name = format!("answer_{key}_c{chunk}_p{width}_{wanted}");
                gpu.modules.function(K::ANSWER, &name)
            }
            // For positions they write values as well where there is room for them.
            Self::Papers(layout) => {
                let name = layout.paper.name(key, width, wanted != Wanted::Value);
                gpu.modules.function(Module::Paper, &name)
            }
        }
    }

    /// Uploads the column and builds its index in the memory that comes back.
    pub fn build<K: CudaKey>(
        &self,
        gpu: &Gpu,
        source: Source<'_, K>,
    ) -> Result<(AnyIndex, DeviceMemory), EngineError> {
        match self {
            Self::Ours(layout) => {
                let (index, memory) = build(gpu, source, layout)?;
                Ok((AnyIndex::Ours(Box::new(index)), memory))
            }
            Self::Papers(layout) => {
                let (index, memory) = paper::build(gpu, source, layout)?;
                Ok((AnyIndex::Papers(Box::new(index)), memory))
            }
        }
    }
}

impl AnyIndex {
    /// Values in the column.
    pub fn rows(&self) -> u64 {
        match self {
            Self::Ours(index) => index.n,
            Self::Papers(index) => index.column.n,
        }
    }

    /// The first argument of a kernel that answers.
    pub fn argument(&self) -> *mut c_void {
        match self {
            Self::Ours(index) => argument(&**index),
            Self::Papers(index) => argument(&**index),
        }
    }
}
