//! A queue of work on a device.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    self, CUdeviceptr, CUevent, CUevent_flags, CUresult, CUstream, CUstream_flags,
};

use super::device::Device;
use super::fault::Fault;
use super::module::Function;
use crate::EngineError;

/// Threads of a block: what all kernels are made for.
pub const THREADS: u64 = 256;

/// How long a wait asks again and again before the thread sleeps: about as long as waking it takes.
const SPIN: Duration = Duration::from_micros(20);

/// Copies and kernels, one after another, beside those of other streams.
///
/// Its methods only put work in the queue, so memory that they are given must stay as it is until [`Stream::wait`] came back
/// without an error or the stream is dropped.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    handle: CUstream,
    /// Recorded at the end of the queue to wait for it: a thread sleeps on an event, on a stream it spins.
    end: CUevent,
}

// SAFETY: the driver's functions may be called from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn new(device: &Arc<Device>) -> Result<Self, EngineError> {
        let mut made = Self {
            device: Arc::clone(device),
            handle: std::ptr::null_mut(),
            end: std::ptr::null_mut(),
        };
        // Independent of the default stream, which other libraries may use.
        let kind = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the pointer is good for the call.
        device.call("make a stream", || unsafe {
            sys::cuStreamCreate(&raw mut made.handle, kind)
        })?;
        let kind = CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32
            | CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: as above.
        device.call("make an event", || unsafe {
            sys::cuEventCreate(&raw mut made.end, kind)
        })?;
        Ok(made)
    }

    /// Copies `bytes` from host memory to the device.
    ///
    /// # Safety
    /// Both ends are that long, and stay until the stream was waited for; until then nobody writes the host's end. For the copy to
    /// run beside others, that end is pinned.
    pub unsafe fn copy_up(
        &self,
        to: CUdeviceptr,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), EngineError> {
        // SAFETY: as the caller vouches.
        self.device
            .call_or_fault(Fault::Copy, "copy to it", || unsafe {
                sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.handle)
            })
    }

    /// Copies `bytes` from the device to host memory.
    ///
    /// # Safety
    /// As [`Stream::copy_up`], and until the stream was waited for nobody reads the host's end either.
    pub unsafe fn copy_down(
        &self,
        to: *mut u8,
        from: CUdeviceptr,
        bytes: usize,
    ) -> Result<(), EngineError> {
        // SAFETY: as the caller vouches.
        self.device
            .call_or_fault(Fault::Copy, "copy from it", || unsafe {
                sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.handle)
            })
    }

    /// Fills memory of the device with a byte.
    ///
    /// # Safety
    /// The memory is that long and stays until the stream was waited for.
    pub unsafe fn fill(&self, at: CUdeviceptr, byte: u8, bytes: usize) -> Result<(), EngineError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as the caller vouches.
        self.device
            .call_or_fault(Fault::Launch, "fill memory", || unsafe {
                sys::cuMemsetD8Async(at, byte, bytes, self.handle)
            })
    }

    /// Runs a kernel with at least `threads` threads in whole blocks.
    ///
    /// # Safety
    /// `arguments` are of the kernel's types in its order ([`argument`]); memory they point to is as long as the kernel
    /// expects and stays until the stream was waited for.
    pub unsafe fn launch<const N: usize>(
        &self,
        kernel: Function,
        threads: u64,
        mut arguments: [*mut c_void; N],
    ) -> Result<(), EngineError> {
        let Ok(blocks) = u32::try_from(threads.div_ceil(THREADS)) else {
            // 2^40 threads: no device has memory for what they would work on.
            return Err(EngineError::TooLong { rows: usize::MAX });
        };
        if blocks == 0 {
            return Ok(());
        }
        // SAFETY: as the caller vouches; the driver copies the arguments before it returns.
        self.device
            .call_or_fault(Fault::Launch, "launch a kernel", || unsafe {
                sys::cuLaunchKernel(
                    kernel.0,
                    blocks,
                    1,
                    1,
                    THREADS as u32,
                    1,
                    1,
                    0,
                    self.handle,
                    arguments.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            })
    }

    /// Puts a mark in the queue.
    pub fn mark(&self, mark: CUevent) -> Result<(), EngineError> {
        // SAFETY: the event and the stream are of this context.
        self.device.call("mark its queue", || unsafe {
            sys::cuEventRecord(mark, self.handle)
        })
    }

    /// Waits until all that was put in the queue is done.
    pub fn wait(&self) -> Result<(), EngineError> {
        let what = "finish its work";
        // SAFETY: the event and the stream are of this context.
        self.device.call(what, || unsafe {
            sys::cuEventRecord(self.end, self.handle)
        })?;
        let started = Instant::now();
        let mut done = false;
        while !done && started.elapsed() < SPIN {
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
    /// Waits until nothing of the queue runs any more, however it ended.
    fn drop(&mut self) {
        // SAFETY: made in this context, destroyed once; null where making failed.
        self.device.quietly(|| unsafe {
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

/// An argument of a kernel, which must outlive the launch only.
pub fn argument<T: Copy>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}
