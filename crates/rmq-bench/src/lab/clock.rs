//! The device's own clock.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult};

/// `cuEventElapsedTime`: the older of two functions, which is in every driver. The bindings have the newer one alone.
type ElapsedTime = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;

use rmq_engine::EngineError;
use rmq_engine::cuda::device::Device;

/// A mark in a queue, which knows when it was passed.
#[derive(Debug)]
pub struct Mark {
    device: Arc<Device>,
    pub event: CUevent,
}

impl Mark {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, EngineError> {
        let mut event = std::ptr::null_mut();
        let kind = CUevent_flags::CU_EVENT_DEFAULT as u32;
        // SAFETY: the pointer is good for the call.
        device.call("make an event", || unsafe {
            sys::cuEventCreate(&raw mut event, kind)
        })?;
        Ok(Self {
            device: Arc::clone(device),
            event,
        })
    }

    /// Seconds from an earlier mark to this one. Both were passed.
    pub(super) fn since(&self, earlier: &Self) -> Result<f64, EngineError> {
        let mut milliseconds = 0.0;
        // SAFETY: the library was loaded, or there were no device; the function has that type. Events are of this context, the
        // pointer is good for the call.
        self.device.call("tell the time", || unsafe {
            match sys::culib().get::<ElapsedTime>(b"cuEventElapsedTime") {
                Ok(elapsed) => elapsed(&raw mut milliseconds, earlier.event, self.event),
                Err(_) => CUresult::CUDA_ERROR_NOT_FOUND,
            }
        })?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: made in this context, destroyed once.
        self.device.quietly(|| unsafe {
            let _: CUresult = sys::cuEventDestroy_v2(self.event);
            CUresult::CUDA_SUCCESS
        });
    }
}
