//! The CUDA driver of this machine: whether it is there, new enough and whole; its results as text.
//!
//! cudarc finds the library and its functions when they are first called, and panics where one is missing. So [`driver`]
//! looks for all that this engine calls before any of it is called.

use std::ffi::CStr;
use std::fmt;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};

/// The version of CUDA that a driver serves, such as 12.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion {
    /// 12 of 12.4.
    pub major: u32,
    /// 4 of 12.4.
    pub minor: u32,
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The oldest that takes our kernels (PTX ISA 8.0): drivers R525 and later.
const OLDEST: CudaVersion = CudaVersion {
    major: 12,
    minor: 0,
};

/// Every function of the driver that the engine calls. A name that is called but not listed here may panic.
const FUNCTIONS: &[&str] = &[
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
];

/// The version of the driver, initialised; or why there is none to use. Looked up once.
pub fn driver() -> Result<CudaVersion, String> {
    static DRIVER: OnceLock<Result<CudaVersion, String>> = OnceLock::new();
    DRIVER.get_or_init(find).clone()
}

fn find() -> Result<CudaVersion, String> {
    // SAFETY: loading NVIDIA's library runs its initialisers, which is what whoever installed it wants.
    if !unsafe { sys::is_culib_present() } {
        return Err("no NVIDIA driver: libcuda was not found".to_owned());
    }
    // SAFETY: the library is there.
    let library = unsafe { sys::culib() };
    let missing = FUNCTIONS.iter().find(|name| {
        // SAFETY: the symbol is looked for, not used.
        unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err()
    });
    if let Some(name) = missing {
        return Err(format!(
            "the NVIDIA driver is too old: it lacks {name}; R525 (CUDA {OLDEST}) or later is needed"
        ));
    }
    let mut version = 0;
    // SAFETY: the pointer is good for the call, which needs no initialised driver.
    check(unsafe { sys::cuDriverGetVersion(&raw mut version) })
        .map_err(|why| format!("the NVIDIA driver does not tell its version: {why}"))?;
    let version = version.unsigned_abs();
    let version = CudaVersion {
        major: version / 1000,
        minor: version % 1000 / 10,
    };
    if version < OLDEST {
        return Err(format!(
            "the NVIDIA driver is too old: it serves CUDA {version}; R525 (CUDA {OLDEST}) or later is needed"
        ));
    }
    // SAFETY: as every program begins.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS => Ok(version),
        CUresult::CUDA_ERROR_NO_DEVICE => Err("the NVIDIA driver finds no device".to_owned()),
        other => Err(format!(
            "the NVIDIA driver does not start: {}",
            Reason(other)
        )),
    }
}

/// Success or a reason.
pub fn check(result: CUresult) -> Result<(), Reason> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        other => Err(Reason(other)),
    }
}

/// What the driver says went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason(pub CUresult);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
            let mut text = std::ptr::null();
            // SAFETY: the pointer is good for the call; a text that comes back is a constant of the library.
            unsafe {
                if get(self.0, &raw mut text) != CUresult::CUDA_SUCCESS || text.is_null() {
                    return "unknown";
                }
                CStr::from_ptr(text).to_str().unwrap_or("unknown")
            }
        };
        write!(
            f,
            "{} ({})",
            text(sys::cuGetErrorString),
            text(sys::cuGetErrorName)
        )
    }
}
