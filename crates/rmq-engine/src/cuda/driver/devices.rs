//! Which GPUs there are, and which of them serve.

use std::ffi::{CStr, c_int};

use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute, CUresult};

use super::driver::{self, CudaVersion, check};
use crate::EngineError;

/// The oldest devices that our kernels are compiled for.
const OLDEST: (u32, u32) = (8, 0);

/// A GPU as its driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// By this number the driver knows it; `CUDA_VISIBLE_DEVICES` may renumber.
    pub ordinal: usize,
    /// Such as `NVIDIA H200`.
    pub name: String,
    /// Such as `(9, 0)`.
    pub compute_capability: (u32, u32),
    /// All of its memory.
    pub total_bytes: usize,
    /// The CUDA version that the driver serves.
    pub driver: CudaVersion,
    /// Nothing where the engine can use it; else why it can't, in one line.
    pub unusable: Option<String>,
}

/// The devices of this machine.
///
/// Takes some 100 ms the first time, while the driver starts. Opens no device.
///
/// # Errors
/// [`EngineError::NoDevice`], with the reason in one line: no driver, one too old, or no device.
pub fn devices() -> Result<Vec<DeviceInfo>, EngineError> {
    let none = |why| EngineError::NoDevice { why };
    let driver = driver::driver().map_err(none)?;
    let mut count = 0;
    // SAFETY: the driver is initialised, the pointer is good for the call.
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
    if let Err(why) = read(ordinal, &mut info) {
        info.unusable = Some(format!("it does not answer: {}", driver::Reason(why)));
    }
    info
}

fn read(ordinal: c_int, info: &mut DeviceInfo) -> Result<(), CUresult> {
    let ask = |result| check(result).map_err(|why| why.0);
    let mut device: CUdevice = 0;
    let mut name = [0; 256];
    // SAFETY: the driver is initialised, pointers are good for the calls; the name is written with its end within the length
    // told.
    unsafe {
        ask(sys::cuDeviceGet(&raw mut device, ordinal))?;
        ask(sys::cuDeviceGetName(name.as_mut_ptr(), 256, device))?;
        info.name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
        ask(sys::cuDeviceTotalMem_v2(&raw mut info.total_bytes, device))?;
    }
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: as above.
        ask(unsafe { sys::cuDeviceGetAttribute(&raw mut value, which, device) })?;
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
