//! The index of a column on the devices of an engine.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::answer::{AnswerKernel, OutputPointers, QueryChunk};
use super::build::{self, ColumnSource};
use super::crossing::{CrossingKernel, CrossingQueries, crossing_kernel};
use super::layout::{DeviceIndex, Layout};
use super::shape::Shape;
use crate::crossings::{Crossings, RangeEnd};
use crate::cuda::driver::module::Function;
use crate::cuda::gpu::Gpu;
use crate::cuda::key::CudaKey;
use crate::cuda::memory::device_memory::DeviceMemory;
use crate::cuda::memory::pinned::DeviceValue;
use crate::cuda::replicas::{Replica, build_on_each, run_on_one};
use crate::cuda::tuning::BATCH;
use crate::{
    Answers, BuildOptions, Column, ColumnSize, Encoding, EngineError, OutputBuffer, Outputs,
    RangeIndex,
};

/// An index with a replica on each device.
pub struct CudaIndex<K> {
    rows: usize,
    encoding: Encoding<K>,
    has_positions: bool,
    /// Bytes on each device, the column included.
    bytes: usize,
    /// None for an empty column.
    replicas: Vec<IndexReplica>,
}

/// The index on one device.
struct IndexReplica {
    /// Points into `_memory`.
    index: Box<DeviceIndex>,
    _memory: DeviceMemory,
    kernels: AnswerKernels,
    chunk_bytes: u32,
    wide_positions: bool,
    gpu: Arc<Gpu>,
}

/// The kernels that answer queries, by the answers that they write.
#[derive(Clone, Copy)]
struct AnswerKernels {
    value: Function,
    /// None in an index without positions.
    position: Option<Function>,
    both: Option<Function>,
}

/// The answers that a kernel writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelOutput {
    /// Values.
    Value,
    /// Leftmost positions.
    Position,
    /// Values and leftmost positions.
    Both,
}

impl KernelOutput {
    /// The output as it appears in the names of kernels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Position => "position",
            Self::Both => "both",
        }
    }
}

/// Finds the kernel that answers queries on an index of a shape, with bounds of 64 bits if `wide_positions`.
///
/// # Errors
/// Those of [`Modules::function`](crate::cuda::driver::module::Modules::function).
pub fn answer_kernel<K: CudaKey>(
    gpu: &Gpu,
    shape: Shape,
    wide_positions: bool,
    output: KernelOutput,
) -> Result<Function, EngineError> {
    let by_groups = wide_positions || shape.levels_by_groups;
    let name = format!(
        "answer_{}_c{}_p{}_{}_{}",
        K::NAME,
        shape.chunk_bytes,
        if wide_positions { 64 } else { 32 },
        if by_groups { "groups" } else { "threads" },
        output.name()
    );
    gpu.modules.function(K::ANSWER, &name)
}

impl<K: CudaKey> CudaIndex<K> {
    /// Builds the index on every device that has room for it. `shape` replaces the best shape for the column.
    ///
    /// # Errors
    /// [`EngineError::TooLong`], [`EngineError::Validity`], [`EngineError::Stopped`], and if all devices fail the error
    /// of the first one.
    pub fn build(
        gpus: &[Arc<Gpu>],
        column: &Column<K>,
        options: &BuildOptions,
        shape: Option<Shape>,
        stop: &AtomicBool,
    ) -> Result<Self, EngineError> {
        let bits = column.bits();
        let mut validity = column.validity();
        if let Some(bitmap) = validity {
            bitmap.check(bits.len())?;
            validity = validity.filter(|bitmap| bitmap.null_count(bits.len()) > 0);
        }
        let source = ColumnSource {
            bits,
            encoding: column.encoding(),
            validity,
            positions: options.positions,
            threads: options.threads,
            stop,
        };
        let size = ColumnSize {
            rows: bits.len(),
            key_bytes: size_of::<K>(),
            nulls: validity.is_some(),
        };
        let layout = Layout::new(size, options.positions, shape)?;
        let gpus = if bits.is_empty() { &[] } else { gpus };
        let replicas = build_on_each(gpus, "an index", |gpu| {
            source.check_stopped()?;
            IndexReplica::build(gpu, source, &layout)
        })?;
        source.check_stopped()?;
        Ok(Self {
            rows: bits.len(),
            encoding: column.encoding(),
            has_positions: options.positions,
            bytes: if replicas.is_empty() {
                0
            } else {
                usize::try_from(layout.bytes).unwrap_or(usize::MAX)
            },
            replicas,
        })
    }

    fn output_pointers(&self, out: &mut Answers<'_, K>) -> OutputPointers {
        fn pinned<T>(replicas: &[IndexReplica], slice: &[T]) -> bool {
            replicas.iter().any(|one| one.gpu.pinned.contains(slice))
        }
        OutputPointers {
            pinned: pinned(&self.replicas, out.valid)
                && out
                    .values
                    .as_deref()
                    .is_none_or(|values| pinned(&self.replicas, values))
                && out
                    .positions
                    .as_deref()
                    .is_none_or(|positions| pinned(&self.replicas, positions)),
            values: (out.values.as_mut())
                .map_or(std::ptr::null_mut(), |values| values.as_mut_ptr().cast()),
            value_bytes: size_of::<K>(),
            positions: (out.positions.as_mut())
                .map_or(std::ptr::null_mut(), |positions| positions.as_mut_ptr()),
            valid: out.valid.as_mut_ptr(),
        }
    }
}

impl Replica for IndexReplica {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

impl IndexReplica {
    fn build<K: CudaKey>(
        gpu: &Arc<Gpu>,
        source: ColumnSource<'_, K>,
        layout: &Layout,
    ) -> Result<Self, EngineError> {
        let wide_positions = layout.shape.wide_positions;
        let find = |output| answer_kernel::<K>(gpu, layout.shape, wide_positions, output);
        let find_if_positions = |output| source.positions.then(|| find(output)).transpose();
        let kernels = AnswerKernels {
            value: find(KernelOutput::Value)?,
            position: find_if_positions(KernelOutput::Position)?,
            both: find_if_positions(KernelOutput::Both)?,
        };
        let (index, memory) = build::build(gpu, source, layout)?;
        Ok(Self {
            index: Box::new(index),
            _memory: memory,
            kernels,
            chunk_bytes: layout.shape.chunk_bytes,
            wide_positions,
            gpu: Arc::clone(gpu),
        })
    }

    /// Answers the `queries` of a batch, which was split into chunks.
    ///
    /// # Safety
    /// `out` has room for the answers of all chunks, and nothing else accesses it meanwhile.
    unsafe fn answer(
        &self,
        queries: usize,
        chunks: &[QueryChunk<'_>],
        out: OutputPointers,
    ) -> Result<(), EngineError> {
        let function = match (out.values.is_null(), out.positions.is_null()) {
            (_, true) => Some(self.kernels.value),
            (true, false) => self.kernels.position,
            (false, false) => self.kernels.both,
        };
        let kernel = AnswerKernel {
            index: &self.index,
            function: function.ok_or(EngineError::NoPositions)?,
            wide_positions: self.wide_positions,
        };
        self.gpu.in_chunks(
            queries,
            |buffers, queries| {
                let (first, chunk) = (queries.start, &chunks[queries.start / BATCH]);
                // SAFETY: the buffers are idle. The rest is guaranteed by the caller, as `in_chunks` waits.
                unsafe { kernel.send(buffers, chunk, first, out) }
            },
            |buffers, staged| {
                // SAFETY: as above.
                unsafe { buffers.deliver(staged) };
                Ok(())
            },
        )
    }
}

/// Allocates memory for answers, pinned if possible.
fn output_memory<T: DeviceValue>(replica: Option<&IndexReplica>, len: usize) -> OutputBuffer<T> {
    replica
        .and_then(|replica| replica.gpu.pinned.allocate(len).ok())
        .unwrap_or_else(|| vec![T::default(); len].into())
}

impl<K: CudaKey> RangeIndex<K> for CudaIndex<K> {
    fn len(&self) -> usize {
        self.rows
    }

    fn encoding(&self) -> Encoding<K> {
        self.encoding
    }

    fn has_positions(&self) -> bool {
        self.has_positions
    }

    fn index_bytes(&self) -> usize {
        self.bytes.saturating_sub(self.rows * size_of::<K>())
    }

    fn memory_bytes(&self) -> usize {
        0
    }

    fn device_bytes(&self) -> usize {
        self.bytes
    }

    fn outputs(&self, queries: usize, values: bool, positions: bool) -> Outputs<K> {
        let mut replicas = self.replicas.iter();
        let usable = replicas.find(|replica| replica.gpu.device.failed().is_none());
        Outputs {
            values: values.then(|| output_memory(usable, queries)),
            positions: positions.then(|| output_memory(usable, queries)),
            valid: output_memory(usable, queries.div_ceil(64)),
        }
    }

    fn answer(&self, left: &[i64], right: &[i64], out: Answers<'_, K>) -> Result<(), EngineError> {
        self.answer_gathered(&[(left, right)], out)
    }

    fn answer_gathered(
        &self,
        parts: &[(&[i64], &[i64])],
        mut out: Answers<'_, K>,
    ) -> Result<(), EngineError> {
        let mut queries = 0;
        for (left, right) in parts {
            if left.len() != right.len() {
                return Err(EngineError::Lengths {
                    what: "the slice of right bounds",
                    expected: left.len(),
                    found: right.len(),
                });
            }
            queries += left.len();
        }
        out.check_lengths(queries, queries)?;
        if out.positions.is_some() && !self.has_positions {
            return Err(EngineError::NoPositions);
        }
        if self.rows == 0 {
            if let Some(values) = out.values {
                values.fill(self.encoding.decode(K::MAX));
            }
            if let Some(positions) = out.positions {
                positions.fill(0);
            }
            out.valid.fill(0);
            return Ok(());
        }
        if queries == 0 {
            return Ok(());
        }
        let chunks = QueryChunk::split(parts);
        run_on_one(&self.replicas, "the index", |replica| {
            let pointers = self.output_pointers(&mut out);
            // SAFETY: the pointers are those of `out`, whose lengths were checked.
            unsafe { replica.answer(queries, &chunks, pointers) }
        })
    }

    fn crossings(
        &self,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
        end: RangeEnd,
        mut out: Crossings<'_>,
    ) -> Result<(), EngineError> {
        out.check(left, right, thresholds.len())?;
        if self.rows == 0 {
            out.positions.fill(0);
            out.valid.fill(0);
            return Ok(());
        }
        let queries = CrossingQueries {
            left,
            right,
            thresholds,
        };
        run_on_one(&self.replicas, "the index", |replica| {
            let (chunk_bytes, wide) = (replica.chunk_bytes, replica.wide_positions);
            let kernel = CrossingKernel {
                index: &replica.index,
                function: crossing_kernel::<K>(&replica.gpu, chunk_bytes, wide, end)?,
                wide_positions: wide,
            };
            kernel.search(&replica.gpu, &queries, &mut out)
        })
    }
}

impl<K: CudaKey> fmt::Debug for CudaIndex<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.replicas.iter();
        let devices: Vec<_> = devices.map(|one| one.gpu.device.ordinal()).collect();
        f.debug_struct("CudaIndex")
            .field("len", &self.rows)
            .field("encoding", &self.encoding)
            .field("devices", &devices)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
