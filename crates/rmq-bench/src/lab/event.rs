//! CUDA events that record the device's time.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult};

use rmq_engine::EngineError;
use rmq_engine::cuda::driver::device::Device;

/// `cuEventElapsedTime`: the older of two functions, which every driver has. The bindings declare only the newer one.
type ElapsedTime = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;

/// An event that knows the time at which its stream reached it.
#[derive(Debug)]
pub struct TimedEvent {
    device: Arc<Device>,
    pub handle: CUevent,
}

impl TimedEvent {
    /// Creates an event.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(device: &Arc<Device>) -> Result<Self, EngineError> {
        let mut handle = std::ptr::null_mut();
        let kind = CUevent_flags::CU_EVENT_DEFAULT as u32;
        // SAFETY: the pointer is valid for the call.
        device.call("make an event", || unsafe {
            sys::cuEventCreate(&raw mut handle, kind)
        })?;
        Ok(Self {
            device: Arc::clone(device),
            handle,
        })
    }

    /// Returns the seconds from an earlier event to this one; both were reached.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn seconds_since(&self, earlier: &Self) -> Result<f64, EngineError> {
        let mut milliseconds = 0.0;
        // SAFETY: a device is open, so the library is loaded; the function has that type. Both events are of this
        // context, and the pointer is valid for the call.
        self.device.call("tell the time", || unsafe {
            match sys::culib().get::<ElapsedTime>(b"cuEventElapsedTime") {
                Ok(elapsed) => elapsed(&raw mut milliseconds, earlier.handle, self.handle),
                Err(_) => CUresult::CUDA_ERROR_NOT_FOUND,
            }
        })?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for TimedEvent {
    fn drop(&mut self) {
        // SAFETY: created in this context, destroyed once.
        self.device
            .call_ignoring_errors(|| unsafe { sys::cuEventDestroy_v2(self.handle) });
    }
}
