//! The CUDA driver library: detects it and its version, and formats its error codes.
//!
//! cudarc loads the library and its functions on first call, and panics if one is missing. [`version`] therefore looks
//! up every function that this engine calls before any of them is called.

use std::ffi::CStr;
use std::fmt;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};

/// The version of CUDA that a driver supports, such as 12.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion {
    /// 12 in 12.4.
    pub major: u32,
    /// 4 in 12.4.
    pub minor: u32,
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The oldest version that loads our kernels (PTX ISA 8.0): drivers R525 and later.
const OLDEST: CudaVersion = CudaVersion {
    major: 12,
    minor: 0,
};

/// Every driver function that the engine calls. Calling one that is not listed here may panic.
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

/// Initialises the driver and returns its version, or the reason why it cannot be used. Runs once per process.
pub fn version() -> Result<CudaVersion, String> {
    static DRIVER: OnceLock<Result<CudaVersion, String>> = OnceLock::new();
    DRIVER.get_or_init(initialise).clone()
}

fn initialise() -> Result<CudaVersion, String> {
    // SAFETY: loading NVIDIA's library runs its initialisers, which have no preconditions.
    if !unsafe { sys::is_culib_present() } {
        return Err("no NVIDIA driver: libcuda was not found".to_owned());
    }
    // SAFETY: the library is present.
    let library = unsafe { sys::culib() };
    let missing = FUNCTIONS.iter().find(|name| {
        // SAFETY: the symbol is looked up, not called.
        unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err()
    });
    if let Some(name) = missing {
        return Err(format!(
            "the NVIDIA driver is too old: it lacks {name}; R525 (CUDA {OLDEST}) or later is needed"
        ));
    }
    let mut version = 0;
    // SAFETY: the pointer is valid for the call, which needs no initialised driver.
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
    // SAFETY: no preconditions; this is the first call of every program.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS => Ok(version),
        CUresult::CUDA_ERROR_NO_DEVICE => Err("the NVIDIA driver finds no device".to_owned()),
        other => Err(format!(
            "the NVIDIA driver does not start: {}",
            CudaError(other)
        )),
    }
}

/// Converts a result code of the driver.
///
/// # Errors
/// Every code other than success.
pub fn check(result: CUresult) -> Result<(), CudaError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        other => Err(CudaError(other)),
    }
}

/// An error code of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaError(pub CUresult);

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
            let mut text = std::ptr::null();
            // SAFETY: the pointer is valid for the call; the returned text is a constant of the library.
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
