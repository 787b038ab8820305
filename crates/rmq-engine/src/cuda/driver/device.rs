//! An open device: its context and its error state.
//!
//! Any error other than a lack of memory retires the device: a failed kernel leaves a context in which every call
//! fails, and the driver does not say which other errors do so. Calls on a retired device fail at once. Memory and
//! streams that are dropped later ignore the driver's errors.

use std::fmt;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUresult};

use super::devices::devices;
use super::fault_injection::{Fault, Faults};
use super::libcuda::{CudaError, check};
use crate::EngineError;

/// A device with its primary context, which other libraries in this process may share.
pub struct Device {
    ordinal: usize,
    handle: CUdevice,
    context: CUcontext,
    /// Why the device was retired.
    failed: OnceLock<String>,
    pub faults: Faults,
}

// SAFETY: the driver's functions may be called from any thread, with the same context on several at once.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens a device and retains its primary context.
    ///
    /// # Errors
    /// [`EngineError::NoDevice`] if there is no such device or the engine can't use it.
    pub fn open(ordinal: usize) -> Result<Self, EngineError> {
        let none = |why: &str| EngineError::NoDevice {
            why: format!("CUDA device {ordinal} can't be used: {why}"),
        };
        let all = devices()?;
        let info = all
            .get(ordinal)
            .ok_or_else(|| none(&format!("the driver knows {}", all.len())))?;
        if let Some(why) = &info.unusable {
            return Err(none(why));
        }
        let mut device = Self {
            ordinal,
            handle: 0,
            context: std::ptr::null_mut(),
            failed: OnceLock::new(),
            faults: Faults::default(),
        };
        let number = i32::try_from(ordinal).map_err(|_| none("no such number"))?;
        // SAFETY: the driver is initialised, as devices were found; pointers are valid for the calls.
        let opened = unsafe {
            check(sys::cuDeviceGet(&raw mut device.handle, number)).and_then(|()| {
                check(sys::cuDevicePrimaryCtxRetain(
                    &raw mut device.context,
                    device.handle,
                ))
            })
        };
        opened.map_err(|why| none(&why.to_string()))?;
        Ok(device)
    }

    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Why the device was retired; `None` if it is in use.
    pub fn failed(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// Calls the driver with the device's context current on this thread. `what` completes "the device can't …" in
    /// errors.
    ///
    /// # Errors
    /// [`EngineError::Device`] if the call fails or the device is retired.
    pub fn call(
        &self,
        what: &'static str,
        call: impl FnOnce() -> CUresult,
    ) -> Result<(), EngineError> {
        if let Some(why) = self.failed() {
            return Err(self.error(what, why.to_owned()));
        }
        // SAFETY: the context is retained until `self` is dropped.
        check(unsafe { sys::cuCtxSetCurrent(self.context) })
            .and_then(|()| check(call()))
            .map_err(|reason| self.fail(what, reason))
    }

    /// Calls the driver as [`Device::call`] does, for memory; `false` if there is not enough.
    ///
    /// # Errors
    /// Those of [`Device::call`]. A lack of memory is none.
    pub fn allocate(
        &self,
        what: &'static str,
        call: impl FnOnce() -> CUresult,
    ) -> Result<bool, EngineError> {
        let mut enough = true;
        self.call(what, || {
            let result = if self.faults.should_fail(Fault::Allocation) {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY
            } else {
                call()
            };
            enough = result != CUresult::CUDA_ERROR_OUT_OF_MEMORY;
            if enough {
                result
            } else {
                CUresult::CUDA_SUCCESS
            }
        })?;
        Ok(enough)
    }

    /// Calls the driver as [`Device::call`] does, for work that fault injection can make fail.
    ///
    /// # Errors
    /// Those of [`Device::call`].
    pub fn call_or_fault(
        &self,
        fault: Fault,
        what: &'static str,
        call: impl FnOnce() -> CUresult,
    ) -> Result<(), EngineError> {
        self.call(what, || {
            if self.faults.should_fail(fault) {
                CUresult::CUDA_ERROR_UNKNOWN
            } else {
                call()
            }
        })
    }

    /// Calls the driver and ignores errors: for releasing resources, which may fail on a retired device.
    pub fn call_ignoring_errors(&self, call: impl FnOnce() -> CUresult) {
        // SAFETY: as in `call`.
        if unsafe { sys::cuCtxSetCurrent(self.context) } == CUresult::CUDA_SUCCESS {
            let _ = call();
        }
    }

    /// Converts the error of a failed call. Any error other than a lack of memory retires the device. (Streams, modules
    /// and launches also need memory of the driver.)
    fn fail(&self, what: &'static str, reason: CudaError) -> EngineError {
        let error = self.error(what, reason.to_string());
        if reason.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return error;
        }
        if self.failed.set(error.to_string()).is_ok() {
            log::error!("{error}; it is not used again");
        }
        error
    }

    fn error(&self, what: &'static str, why: String) -> EngineError {
        EngineError::Device {
            ordinal: self.ordinal,
            what,
            why,
        }
    }

    /// Returns the free and total bytes of the device's memory, as all processes use it.
    ///
    /// # Errors
    /// Those of [`Device::call`].
    pub fn memory(&self) -> Result<(usize, usize), EngineError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: pointers are valid for the call.
        self.call("tell its free memory", || unsafe {
            sys::cuMemGetInfo_v2(&raw mut free, &raw mut total)
        })?;
        Ok((free, total))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once, in `open`; everything created in the context holds the device, so all of it is
        // dropped.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.handle) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("ordinal", &self.ordinal)
            .field("failed", &self.failed.get())
            .finish_non_exhaustive()
    }
}
