//! A CUDA stream: copies, fills and kernels in order.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    self, CUdeviceptr, CUevent, CUevent_flags, CUresult, CUstream, CUstream_flags,
};

use super::device::Device;
use super::fault_injection::Fault;
use super::module::Function;
use crate::EngineError;

/// Threads per block, for which all kernels are compiled.
pub const BLOCK_THREADS: u64 = 256;

/// How long a wait polls before the thread sleeps: about as long as waking it takes.
const SPIN_TIME: Duration = Duration::from_micros(20);

/// A queue of copies and kernels that run one after another, concurrently with other streams.
///
/// Its methods only enqueue work: memory passed to them must stay valid and unchanged until [`Stream::wait`] returns
/// without an error or the stream is dropped.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    handle: CUstream,
    /// Recorded at the end of the queue by a wait: a thread can sleep on an event, while it spins on a stream.
    end: CUevent,
}

// SAFETY: the driver's functions may be called from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream that is independent of the default stream, which other libraries may use.
    ///
    /// # Errors
    /// Those of [`Device::call`].
    pub fn new(device: &Arc<Device>) -> Result<Self, EngineError> {
        let mut stream = Self {
            device: Arc::clone(device),
            handle: std::ptr::null_mut(),
            end: std::ptr::null_mut(),
        };
        let kind = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the pointer is valid for the call.
        device.call("make a stream", || unsafe {
            sys::cuStreamCreate(&raw mut stream.handle, kind)
        })?;
        let kind = CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32
            | CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: as above.
        device.call("make an event", || unsafe {
            sys::cuEventCreate(&raw mut stream.end, kind)
        })?;
        Ok(stream)
    }

    /// Enqueues a copy of `bytes` bytes from host memory to the device. A copy from pinned memory runs concurrently
    /// with others.
    ///
    /// # Errors
    /// Those of [`Device::call`].
    ///
    /// # Safety
    /// Source and destination are at least that long and stay valid until the stream was waited for; until then the
    /// source is not written to.
    pub unsafe fn copy_to_device(
        &self,
        to: CUdeviceptr,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), EngineError> {
        // SAFETY: guaranteed by the caller.
        self.device
            .call_or_fault(Fault::Copy, "copy to it", || unsafe {
                sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.handle)
            })
    }

    /// Enqueues a copy of `bytes` bytes from the device to host memory.
    ///
    /// # Errors
    /// Those of [`Device::call`].
    ///
    /// # Safety
    /// Source and destination are at least that long and stay valid until the stream was waited for; until then the
    /// destination is neither read nor written.
    pub unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: CUdeviceptr,
        bytes: usize,
    ) -> Result<(), EngineError> {
        // SAFETY: guaranteed by the caller.
        self.device
            .call_or_fault(Fault::Copy, "copy from it", || unsafe {
                sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.handle)
            })
    }

    /// Enqueues a fill of device memory with a byte.
    ///
    /// # Errors
    /// Those of [`Device::call`].
    ///
    /// # Safety
    /// The memory is at least that long and stays valid until the stream was waited for.
    pub unsafe fn memset(
        &self,
        at: CUdeviceptr,
        byte: u8,
        bytes: usize,
    ) -> Result<(), EngineError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: guaranteed by the caller.
        self.device
            .call_or_fault(Fault::Launch, "fill memory", || unsafe {
                sys::cuMemsetD8Async(at, byte, bytes, self.handle)
            })
    }

    /// Enqueues a kernel with `threads` threads, rounded up to whole blocks.
    ///
    /// # Errors
    /// [`EngineError::TooLong`] for more blocks than a grid has, else those of [`Device::call`].
    ///
    /// # Safety
    /// `arguments` have the kernel's types in its order ([`argument`]); memory they point to is as long as the kernel
    /// expects and stays valid until the stream was waited for.
    pub unsafe fn launch(
        &self,
        kernel: Function,
        threads: u64,
        mut arguments: impl AsMut<[*mut c_void]>,
    ) -> Result<(), EngineError> {
        let Ok(blocks) = u32::try_from(threads.div_ceil(BLOCK_THREADS)) else {
            // 2^40 threads: no device has memory for that many entries.
            return Err(EngineError::TooLong { rows: usize::MAX });
        };
        if blocks == 0 {
            return Ok(());
        }
        // SAFETY: guaranteed by the caller; the driver copies the arguments before it returns.
        self.device
            .call_or_fault(Fault::Launch, "launch a kernel", || unsafe {
                sys::cuLaunchKernel(
                    kernel.0,
                    blocks,
                    1,
                    1,
                    BLOCK_THREADS as u32,
                    1,
                    1,
                    0,
                    self.handle,
                    arguments.as_mut().as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            })
    }

    /// Enqueues an event.
    ///
    /// # Errors
    /// Those of [`Device::call`].
    ///
    /// # Safety
    /// The event belongs to the context of the stream's device and is not destroyed.
    pub unsafe fn record(&self, event: CUevent) -> Result<(), EngineError> {
        // SAFETY: guaranteed by the caller.
        self.device.call("mark its queue", || unsafe {
            sys::cuEventRecord(event, self.handle)
        })
    }

    /// Waits until the enqueued work is done.
    ///
    /// # Errors
    /// Those of [`Device::call`], also for work that was enqueued without an error and failed later.
    pub fn wait(&self) -> Result<(), EngineError> {
        let what = "finish its work";
        // SAFETY: the event and the stream are of this context.
        self.device.call(what, || unsafe {
            sys::cuEventRecord(self.end, self.handle)
        })?;
        let started = Instant::now();
        let mut done = false;
        while !done && started.elapsed() < SPIN_TIME {
            // SAFETY: the event is of this context.
            self.device.call(what, || unsafe {
                match sys::cuEventQuery(self.end) {
                    CUresult::CUDA_ERROR_NOT_READY => CUresult::CUDA_SUCCESS,
                    result => {
                        done = true;
                        result
                    }
                }
            })?;
            std::hint::spin_loop();
        }
        // SAFETY: as above.
        self.device.call_or_fault(Fault::Wait, what, || unsafe {
            sys::cuEventSynchronize(self.end)
        })
    }
}

impl Drop for Stream {
    /// Waits until no enqueued work runs any more, successful or not.
    fn drop(&mut self) {
        // SAFETY: created in this context, destroyed once; null if creation failed.
        self.device.call_ignoring_errors(|| unsafe {
            if !self.end.is_null() {
                sys::cuEventDestroy_v2(self.end);
            }
            if self.handle.is_null() {
                return CUresult::CUDA_SUCCESS;
            }
            let _ = sys::cuStreamSynchronize(self.handle);
            sys::cuStreamDestroy_v2(self.handle)
        });
    }
}

/// Points to a kernel argument, which must outlive the launch call only.
pub fn argument<T: Copy>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}
