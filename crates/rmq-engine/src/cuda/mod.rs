//! The engine for NVIDIA GPUs.
//!
//! It builds without CUDA's toolkit and runs on machines without a driver, on which [`devices`] and
//! [`CudaEngine::open`] return an error with the reason in one line.
//!
//! Bottom to top: `driver` wraps the CUDA driver; `memory` has device memory, pinned memory and uploads; `gpu` is an
//! open device with its kernels and buffers, and `replicas` replicates data over several of them; `rmq` builds and
//! queries range-minimum indexes, `wavelet_matrix` answers order statistics, `range_join` sorts, searches and answers
//! build sides of range joins. [`CudaEngine`] opens devices and builds all of them.

#![allow(
    clippy::cast_possible_truncation,
    clippy::inline_always,
    reason = "machines with such a GPU have 64-bit sizes; truncated values are checked first"
)]

#[doc(hidden)]
pub mod batch_buffers;
mod bus;
#[doc(hidden)]
pub mod driver;
#[doc(hidden)]
pub mod gpu;
#[doc(hidden)]
pub mod kernels;
#[doc(hidden)]
pub mod key;
#[doc(hidden)]
pub mod memory;
mod range_join;
#[doc(hidden)]
pub mod replicas;
#[doc(hidden)]
pub mod rmq;
#[doc(hidden)]
pub mod tuning;
mod wavelet_matrix;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::{
    BuildOptions, Column, ColumnSize, Engine, EngineError, RangeIndex, RangeJoinIndex,
    RangeJoinInput, RankIndex, RankLevels,
};
pub use driver::devices::{DeviceInfo, devices};
#[doc(hidden)]
pub use driver::fault_injection::Fault;
pub use driver::libcuda::CudaVersion;
use gpu::Gpu;
use key::CudaKey;
use range_join::index::CudaRangeJoin;
use rmq::index::CudaIndex;
use rmq::layout::Layout;
#[doc(hidden)]
pub use rmq::shape::Shape;
use wavelet_matrix::CudaWaveletMatrix;

/// Options for opening a [`CudaEngine`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CudaOptions {
    /// Ordinals of the devices to use; each one holds every index. If empty, the first usable device.
    pub devices: Vec<usize>,
    /// The most bytes that indexes may take of each device's memory; by default 90 % of what is free when the engine is
    /// opened.
    pub memory_limit: Option<usize>,
    /// The shape of indexes, for tests and measurements; by default the best one for each column.
    #[doc(hidden)]
    pub shape: Option<Shape>,
}

/// A device of an engine and its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceUse {
    /// The device's number.
    pub ordinal: usize,
    /// Bytes that this engine's indexes take.
    pub used: usize,
    /// The most bytes that they may take.
    pub limit: usize,
    /// Why the device was retired; `None` if it is in use.
    pub failed: Option<String>,
}

/// The engine for NVIDIA GPUs. Clones share devices and their memory.
///
/// A device is retired on any error other than a lack of memory. A batch is answered by another device of the engine
/// then; if there is none left, the batch ends in an error. The caller decides whether the CPU answers instead
/// ([`EngineError::of_device`]).
#[derive(Debug, Clone)]
pub struct CudaEngine {
    gpus: Arc<[Arc<Gpu>]>,
    shape: Option<Shape>,
    /// Set to stop builds.
    stop: Arc<AtomicBool>,
}

impl CudaEngine {
    /// Opens devices, which takes about 200 ms per device.
    ///
    /// # Errors
    /// [`EngineError::NoDevice`] if there is no such device or it is not usable, [`EngineError::Device`] if it fails.
    pub fn open(options: &CudaOptions) -> Result<Self, EngineError> {
        let mut ordinals = options.devices.clone();
        if ordinals.is_empty() {
            let all = devices()?;
            // If none is usable, opening the first one returns the reason.
            let first = all.iter().find(|device| device.unusable.is_none());
            ordinals.push(first.or(all.first()).map_or(0, |device| device.ordinal));
        }
        let mut gpus: Vec<Arc<Gpu>> = Vec::new();
        for ordinal in ordinals {
            if gpus.iter().all(|gpu| gpu.device.ordinal() != ordinal) {
                gpus.push(Arc::new(Gpu::open(ordinal, options.memory_limit)?));
            }
        }
        Ok(Self {
            gpus: gpus.into(),
            shape: options.shape,
            stop: Arc::default(),
        })
    }

    /// Returns the devices in the order in which they were opened, retired ones included.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceUse> {
        let gpus = self.gpus.iter();
        gpus.map(|gpu| DeviceUse {
            ordinal: gpu.device.ordinal(),
            used: gpu.budget.used(),
            limit: gpu.budget.limit(),
            failed: gpu.device.failed().map(str::to_owned),
        })
        .collect()
    }

    /// Returns the free bytes of a device's memory, as all processes use it; `None` for a device that is not of this
    /// engine or has failed.
    #[must_use]
    pub fn free_bytes(&self, ordinal: usize) -> Option<usize> {
        let gpu = self
            .gpus
            .iter()
            .find(|gpu| gpu.device.ordinal() == ordinal)?;
        gpu.device.memory().ok().map(|(free, _)| free)
    }

    /// Returns the nanoseconds that a byte takes on the way to the device with the slowest bus or back, as measured
    /// when the devices were opened.
    #[must_use]
    pub fn bus_byte(&self) -> Option<f64> {
        self.gpus
            .iter()
            .filter_map(|gpu| gpu.bus_byte)
            .reduce(f64::max)
    }

    /// Returns a clone whose builds end in [`EngineError::Stopped`] soon after `stop` is set.
    #[must_use]
    pub fn until(&self, stop: Arc<AtomicBool>) -> Self {
        Self {
            stop,
            ..self.clone()
        }
    }

    /// Returns the bytes that the index of a column takes on each device, the column included; `usize::MAX` if the
    /// column is too long.
    #[must_use]
    pub fn device_bytes(&self, size: ColumnSize, options: &BuildOptions) -> usize {
        let layout = Layout::new(size, options.positions, self.shape);
        layout.map_or(usize::MAX, |layout| {
            usize::try_from(layout.bytes).unwrap_or(usize::MAX)
        })
    }

    /// Makes the `nth` driver call of a kind fail on every device, counted from 1 and from now on; 0 disarms. Returns
    /// whether an earlier fault was still armed.
    #[doc(hidden)]
    #[expect(clippy::must_use_candidate, reason = "most callers ignore the result")]
    pub fn inject(&self, fault: Fault, nth: u64) -> bool {
        let mut armed = false;
        for gpu in self.gpus.iter() {
            armed |= gpu.device.faults.arm(fault, nth);
        }
        armed
    }

    fn build<K: CudaKey>(
        &self,
        column: &Column<K>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<K>>, EngineError> {
        let index = CudaIndex::build(&self.gpus, column, options, self.shape, &self.stop)?;
        Ok(Arc::new(index))
    }
}

impl Engine for CudaEngine {
    fn name(&self) -> &'static str {
        "cuda"
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

    fn build_range_join(
        &self,
        input: &RangeJoinInput<'_>,
        threads: usize,
    ) -> Result<Option<Arc<dyn RangeJoinIndex>>, EngineError> {
        let built = CudaRangeJoin::build(&self.gpus, input, threads, self.shape, &self.stop)?;
        Ok(Some(Arc::new(built)))
    }

    fn range_join_bytes(&self, input: &RangeJoinInput<'_>) -> usize {
        range_join::size::building_bytes(input, self.shape)
    }

    fn copy_ranks(
        &self,
        levels: RankLevels<'_>,
        threads: usize,
    ) -> Result<Option<Arc<dyn RankIndex>>, EngineError> {
        let copied = CudaWaveletMatrix::copy(&self.gpus, levels, threads)?;
        Ok(Some(Arc::new(copied)))
    }

    /// Returns 0: an index takes memory of its devices only.
    fn memory_bytes(&self, _: ColumnSize, _: &BuildOptions) -> usize {
        0
    }
}
