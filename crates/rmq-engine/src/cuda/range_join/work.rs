//! What the steps of a build share: a stream, the device's memory, kernels, and the flag that stops the build.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::CUdeviceptr;

use crate::EngineError;
use crate::cuda::driver::module::{Function, Module};
use crate::cuda::driver::stream::Stream;
use crate::cuda::gpu::Gpu;
use crate::cuda::memory::device_memory::DeviceMemory;
use crate::cuda::memory::pinned::{DeviceValue, PinnedBlock};

/// The stream of a build. Memory that is freed while the stream uses it is safe: the driver waits first.
#[derive(Debug)]
pub struct Work<'a> {
    // The first field: its drop waits for copies to the block.
    stream: Stream,
    /// Small results on their way to the host.
    block: PinnedBlock,
    pub gpu: &'a Arc<Gpu>,
    stop: &'a AtomicBool,
}

/// The most bytes that [`Work::read`] reads.
const READ_BYTES: usize = 4096;

impl<'a> Work<'a> {
    /// # Errors
    /// Those of the device.
    pub fn new(gpu: &'a Arc<Gpu>, stop: &'a AtomicBool) -> Result<Self, EngineError> {
        Ok(Self {
            stream: Stream::new(&gpu.device)?,
            block: gpu.pinned.take(READ_BYTES)?,
            gpu,
            stop,
        })
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Waits for all work that was enqueued, and checks whether the build was stopped.
    ///
    /// # Errors
    /// [`EngineError::Stopped`] if so, else those of the device.
    pub fn finish_step(&self) -> Result<(), EngineError> {
        self.stream.wait()?;
        self.check_stopped()
    }

    /// Ends a build that was stopped.
    ///
    /// # Errors
    /// [`EngineError::Stopped`] if so.
    pub fn check_stopped(&self) -> Result<(), EngineError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(EngineError::Stopped);
        }
        Ok(())
    }

    /// Allocates memory of the budget for `len` numbers.
    ///
    /// # Errors
    /// Those of [`DeviceMemory::within`].
    pub fn allocate<T>(&self, len: u64) -> Result<DeviceMemory, EngineError> {
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        let bytes = bytes.saturating_mul(size_of::<T>());
        DeviceMemory::within(&self.gpu.budget, &self.gpu.device, bytes)
    }

    /// Finds a kernel.
    ///
    /// # Errors
    /// Those of [`Modules::function`](crate::cuda::driver::module::Modules::function).
    pub fn kernel(&self, module: Module, name: &str) -> Result<Function, EngineError> {
        self.gpu.modules.function(module, name)
    }

    /// Enqueues a kernel.
    ///
    /// # Errors
    /// Those of [`Stream::launch`].
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn launch<const N: usize>(
        &self,
        kernel: Function,
        threads: u64,
        arguments: [*mut c_void; N],
    ) -> Result<(), EngineError> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.stream.launch(kernel, threads, arguments) }
    }

    /// Waits for all work, and returns `N` numbers of the device's memory.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Safety
    /// The memory from `from` on has `N` numbers when the work is done.
    pub unsafe fn read<T: DeviceValue, const N: usize>(
        &mut self,
        from: CUdeviceptr,
    ) -> Result<[T; N], EngineError> {
        let bytes = N * size_of::<T>();
        assert!(bytes <= READ_BYTES, "more than the block has room for");
        // SAFETY: the block is long enough; the caller guarantees that the memory is.
        unsafe { self.stream.copy_to_host(self.block.start(), from, bytes)? };
        self.stream.wait()?;
        let mut numbers = [T::default(); N];
        numbers.copy_from_slice(self.block.slice_mut(0, N));
        Ok(numbers)
    }
}
