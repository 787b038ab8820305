//! The engine for NVIDIA GPUs.
//!
//! A program with it builds without CUDA's toolkit and runs on machines without a driver: [`devices`] and [`CudaEngine::open`]
//! then say so in one line.

mod devices;
mod driver;

use std::sync::Arc;

use crate::engine::{BuildOptions, Column, ColumnSize, Engine, EngineError, RangeIndex};
pub use devices::{DeviceInfo, devices};
pub use driver::CudaVersion;

/// Which kernel answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CudaKernel {
    /// Our own search.
    #[default]
    Auto,
    /// GPU-RMQ's coalesced loads (CL), the paper's better one on large columns.
    Coalesced,
    /// GPU-RMQ's vector loads (VL).
    Vector,
    /// No index: every range is read from end to end.
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
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            memory_limit: None,
            kernel: CudaKernel::Auto,
            fallback: true,
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
    _private: (),
}

impl CudaEngine {
    /// Opens devices, which takes some 200 ms a device.
    ///
    /// # Errors
    /// [`EngineError::NoDevice`] where there is no such device or it does not serve, [`EngineError::Device`] where it fails.
    pub fn open(options: &CudaOptions) -> Result<Self, EngineError> {
        let _ = options;
        devices()?;
        Err(EngineError::Unsupported("kernels"))
    }

    /// The devices in use, in the order they were asked for.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceUse> {
        Vec::new()
    }

    /// Bytes that an index of such a column takes on each device, the column included: known before anything is built.
    #[must_use]
    pub fn device_bytes(&self, size: ColumnSize, options: &BuildOptions) -> usize {
        let _ = (size, options);
        usize::MAX
    }
}

impl Engine for CudaEngine {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn build_u32(
        &self,
        _: Column<u32>,
        _: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u32>>, EngineError> {
        Err(EngineError::Unsupported("kernels"))
    }

    fn build_u64(
        &self,
        _: Column<u64>,
        _: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u64>>, EngineError> {
        Err(EngineError::Unsupported("kernels"))
    }

    fn build_u128(
        &self,
        _: Column<u128>,
        _: &BuildOptions,
    ) -> Result<Arc<dyn RangeIndex<u128>>, EngineError> {
        Err(EngineError::Unsupported("kernels"))
    }

    fn memory_bytes(&self, _: ColumnSize, _: &BuildOptions) -> usize {
        0
    }
}
