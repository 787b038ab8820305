//! The GPUs of this machine, and which of them the engine can use.

use std::ffi::{CStr, c_int};

use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute, CUresult};

use super::libcuda::{self, CudaError, CudaVersion, check};
use crate::EngineError;

/// The lowest compute capability that our kernels are compiled for.
const OLDEST: (u32, u32) = (8, 0);

/// A GPU as its driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The driver's number for it, which depends on `CUDA_VISIBLE_DEVICES`.
    pub ordinal: usize,
    /// Such as `NVIDIA H200`.
    pub name: String,
    /// Such as `(9, 0)`.
    pub compute_capability: (u32, u32),
    /// Size of its memory.
    pub total_bytes: usize,
    /// The CUDA version that the driver supports.
    pub driver: CudaVersion,
    /// Why the engine can't use it, in one line; `None` if it can.
    pub unusable: Option<String>,
}

/// Lists the devices of this machine without opening them.
///
/// The first call takes about 100 ms to start the driver.
///
/// # Errors
/// [`EngineError::NoDevice`], with the reason in one line: no driver, a driver that is too old, or no device.
pub fn devices() -> Result<Vec<DeviceInfo>, EngineError> {
    let none = |why| EngineError::NoDevice { why };
    let driver = libcuda::version().map_err(none)?;
    let mut count = 0;
    // SAFETY: the driver is initialised; the pointer is valid for the call.
    check(unsafe { sys::cuDeviceGetCount(&raw mut count) }).map_err(|why| {
        none(format!(
            "the NVIDIA driver does not count its devices: {why}"
        ))
    })?;
    if count <= 0 {
        return Err(none("the NVIDIA driver finds no device".to_owned()));
    }
    Ok((0..count)
        .map(|ordinal| describe(ordinal, driver))
        .collect())
}

fn describe(ordinal: c_int, driver: CudaVersion) -> DeviceInfo {
    let mut info = DeviceInfo {
        ordinal: usize::try_from(ordinal).unwrap_or_default(),
        name: String::new(),
        compute_capability: (0, 0),
        total_bytes: 0,
        driver,
        unusable: None,
    };
    if let Err(why) = read_attributes(ordinal, &mut info) {
        info.unusable = Some(format!("it does not answer: {}", CudaError(why)));
    }
    info
}

fn read_attributes(ordinal: c_int, info: &mut DeviceInfo) -> Result<(), CUresult> {
    let call = |result| check(result).map_err(|why| why.0);
    let mut device: CUdevice = 0;
    let mut name = [0; 256];
    // SAFETY: the driver is initialised; pointers are valid for the calls; the name is written with its terminator
    // within the given length.
    unsafe {
        call(sys::cuDeviceGet(&raw mut device, ordinal))?;
        call(sys::cuDeviceGetName(name.as_mut_ptr(), 256, device))?;
        info.name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
        call(sys::cuDeviceTotalMem_v2(&raw mut info.total_bytes, device))?;
    }
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: as above.
        call(unsafe { sys::cuDeviceGetAttribute(&raw mut value, which, device) })?;
        Ok(value.unsigned_abs())
    };
    info.compute_capability = (
        attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    if info.compute_capability < OLDEST {
        let ((major, minor), (oldest, zero)) = (info.compute_capability, OLDEST);
        info.unusable = Some(format!(
            "its compute capability is {major}.{minor}; {oldest}.{zero} or later is needed"
        ));
    }
    let prohibited = sys::CUcomputemode_enum::CU_COMPUTEMODE_PROHIBITED as u32;
    if attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)? == prohibited {
        info.unusable = Some("its compute mode is set to prohibited".to_owned());
    }
    Ok(())
}
