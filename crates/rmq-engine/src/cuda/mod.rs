//! The engine for NVIDIA GPUs.
//!
//! A program with it builds without CUDA's toolkit and runs on machines without a driver: [`devices`] and [`CudaEngine::open`]
//! then say so in one line.

#![allow(
    clippy::cast_possible_truncation,
    clippy::inline_always,
    reason = "sizes are of 64 bits on every machine with such a GPU; what is cut was compared before"
)]

#[doc(hidden)]
pub mod build;
#[doc(hidden)]
pub mod device;
#[doc(hidden)]
pub mod devices;
#[doc(hidden)]
pub mod driver;
#[doc(hidden)]
pub mod fault;
#[doc(hidden)]
pub mod gpu;
#[doc(hidden)]
pub mod index;
#[doc(hidden)]
pub mod key;
#[doc(hidden)]
pub mod lane;
#[doc(hidden)]
pub mod layout;
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod module;
#[doc(hidden)]
pub mod narrow;
#[doc(hidden)]
pub mod paper;
#[doc(hidden)]
pub mod pinned;
#[doc(hidden)]
pub mod plan;
#[doc(hidden)]
pub mod replicas;
#[doc(hidden)]
pub mod search;
#[doc(hidden)]
pub mod stream;
#[doc(hidden)]
pub mod tuning;
#[doc(hidden)]
pub mod upload;
#[doc(hidden)]
pub mod validity;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::{
    BuildOptions, Column, ColumnSize, Engine, EngineError, KeySearch, RangeIndex, SortedKeys,
};
pub use devices::{DeviceInfo, devices};
pub use driver::CudaVersion;
#[doc(hidden)]
pub use fault::Fault;
use gpu::Gpu;
use index::CudaIndex;
use key::CudaKey;
use plan::{Choice, Plan};
use search::CudaSearch;
#[doc(hidden)]
pub use tuning::Shape;

/// Which kernel answers: all give the same answers. Those other than [`CudaKernel::Auto`] are the ones of "GPU-RMQ:
/// Accelerating Range Minimum Queries on Modern GPUs" (Kreis et al., 2026), to be measured against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CudaKernel {
    /// Our own search.
    #[default]
    Auto,
    /// GPU-RMQ's coalesced loads (CL) with a queue in each warp, the paper's better one on large columns.
    Coalesced,
    /// The same without the queue: the threads of a group all load their query.
    MultiLoad,
    /// GPU-RMQ's vector loads (VL).
    Vector,
    /// No index: every range is read from end to end. On a large column a batch takes long, and nothing stops it.
    FullScan,
}

/// How a [`CudaEngine`] is to be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaOptions {
    /// Ordinals of the devices to use; each holds every index. None: the first that serves.
    pub devices: Vec<usize>,
    /// How many bytes of each device's memory may be used; 90 % of what is free when the engine is opened where not said.
    pub memory_limit: Option<usize>,
    /// Which kernel answers.
    pub kernel: CudaKernel,
    /// Whether a column whose devices all failed is answered by the CPU engine, which then builds an index of its own; else
    /// an error comes back.
    pub fallback: bool,
    /// The shape of indexes, for tests and measurements; the best known where not said.
    #[doc(hidden)]
    pub shape: Option<Shape>,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            memory_limit: None,
            kernel: CudaKernel::Auto,
            fallback: true,
            shape: None,
        }
    }
}

/// A device of an engine and its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceUse {
    /// Which device.
    pub ordinal: usize,
    /// Bytes in use by this engine.
    pub used: usize,
    /// Bytes that it may use.
    pub limit: usize,
    /// Why it is no longer used, if so.
    pub failed: Option<String>,
}

/// The engine for NVIDIA GPUs: see the [module](self). Clones share devices and their memory.
#[derive(Debug, Clone)]
pub struct CudaEngine {
    gpus: Arc<[Arc<Gpu>]>,
    fallback: bool,
    choice: Choice,
    /// Builds stop where it is set.
    stop: Arc<AtomicBool>,
}

impl CudaEngine {
    /// Opens devices, which takes some 200 ms a device.
    ///
    /// # Errors
    /// [`EngineError::NoDevice`] where there is no such device or it does not serve, [`EngineError::Device`] where it fails.
    pub fn open(options: &CudaOptions) -> Result<Self, EngineError> {
        let mut ordinals = options.devices.clone();
        if ordinals.is_empty() {
            let all = devices()?;
            // The error of one that does not serve says why.
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
            fallback: options.fallback,
            choice: Choice {
                kernel: options.kernel,
                shape: options.shape,
            },
            stop: Arc::default(),
        })
    }

    /// The devices in use, in the order they were asked for.
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

    /// Free bytes of a device's memory, whoever uses the rest; `None` where it is not in use or does not tell.
    #[must_use]
    pub fn free_bytes(&self, ordinal: usize) -> Option<usize> {
        let gpu = self
            .gpus
            .iter()
            .find(|gpu| gpu.device.ordinal() == ordinal)?;
        gpu.device.memory().ok().map(|(free, _)| free)
    }

    /// The same engine, whose builds end in an error soon after `stop` is set.
    #[must_use]
    pub fn until(&self, stop: Arc<AtomicBool>) -> Self {
        Self {
            stop,
            ..self.clone()
        }
    }

    /// Bytes that an index of such a column takes on each device, the column included: known before anything is built.
    #[must_use]
    pub fn device_bytes(&self, size: ColumnSize, options: &BuildOptions) -> usize {
        Plan::of(self.choice, size, options.positions).map_or(usize::MAX, |plan| plan.bytes())
    }

    /// Lets the `nth` call of that kind fail, on every device, counted from 1 and from now on; none where it is 0.
    /// Returns whether an earlier fault was still to come.
    #[doc(hidden)]
    #[expect(clippy::must_use_candidate, reason = "most callers arm, few ask")]
    pub fn inject(&self, fault: Fault, nth: u64) -> bool {
        let mut armed = false;
        for gpu in self.gpus.iter() {
            armed |= gpu.device.faults.arm(fault, nth);
        }
        armed
    }

    /// Sorted keys on the devices, to be searched there: see [`KeySearch`].
    ///
    /// # Errors
    /// [`EngineError::TooLong`] from 2^32 keys on, [`EngineError::DeviceMemory`] and its like.
    pub fn sorted_u32(
        &self,
        keys: SortedKeys<'_, u32>,
        threads: usize,
    ) -> Result<Arc<dyn KeySearch<u32>>, EngineError> {
        self.sorted(keys, threads)
    }

    /// As [`Self::sorted_u32`].
    ///
    /// # Errors
    /// As there.
    pub fn sorted_u64(
        &self,
        keys: SortedKeys<'_, u64>,
        threads: usize,
    ) -> Result<Arc<dyn KeySearch<u64>>, EngineError> {
        self.sorted(keys, threads)
    }

    /// As [`Self::sorted_u32`].
    ///
    /// # Errors
    /// As there.
    pub fn sorted_u128(
        &self,
        keys: SortedKeys<'_, u128>,
        threads: usize,
    ) -> Result<Arc<dyn KeySearch<u128>>, EngineError> {
        self.sorted(keys, threads)
    }

    fn sorted<K: CudaKey>(
        &self,
        keys: SortedKeys<'_, K>,
        threads: usize,
    ) -> Result<Arc<dyn KeySearch<K>>, EngineError> {
        let search = CudaSearch::build(&self.gpus, keys, threads, &self.stop)?;
        Ok(Arc::new(search))
    }

    fn build<K: CudaKey>(
        &self,
        column: Column<K>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<K>>, EngineError> {
        let index = CudaIndex::build(
            &self.gpus,
            column,
            options,
            self.choice,
            self.fallback,
            &self.stop,
        )?;
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
        self.build(column, options)
    }

    fn build_u64(
        &self,
        column: Column<u64>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u64>>, EngineError> {
        self.build(column, options)
    }

    fn build_u128(
        &self,
        column: Column<u128>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u128>>, EngineError> {
        self.build(column, options)
    }

    /// Nothing: an index takes memory of its devices. (What the CPU engine takes after all of them failed is not foreseen.)
    fn memory_bytes(&self, _: ColumnSize, _: &BuildOptions) -> usize {
        0
    }
}
