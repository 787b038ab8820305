//! PTX modules and the kernels in them, compiled by the driver for its device on first use.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUfunction, CUjit_option, CUmodule};

use super::device::Device;
use crate::EngineError;

/// The PTX of a module.
#[derive(Clone, Copy)]
pub struct Module {
    /// Identifies the module: two modules of one device have different names.
    pub name: &'static str,
    /// PTX without zero bytes.
    pub ptx: &'static str,
}

/// A kernel, valid while its [`Modules`] live.
#[derive(Debug, Clone, Copy)]
pub struct Function(pub CUfunction);

// SAFETY: a handle that the driver takes from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The modules loaded on a device.
#[derive(Debug)]
pub struct Modules {
    device: Arc<Device>,
    /// By name.
    loaded: Mutex<BTreeMap<&'static str, Loaded>>,
}

#[derive(Debug, Clone, Copy)]
struct Loaded(CUmodule);

// SAFETY: a handle that the driver takes from any thread.
unsafe impl Send for Loaded {}

impl Modules {
    pub fn new(device: &Arc<Device>) -> Self {
        Self {
            device: Arc::clone(device),
            loaded: Mutex::default(),
        }
    }

    /// Finds a kernel by its name. The first kernel of a module takes longer: the driver compiles the whole module.
    ///
    /// # Errors
    /// [`EngineError::Device`] if the driver does not load the module or the module has no such kernel.
    ///
    /// # Panics
    /// If the PTX has a zero byte.
    pub fn function(&self, module: Module, name: &str) -> Result<Function, EngineError> {
        let loaded = {
            let mut all = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            match all.get(module.name) {
                Some(loaded) => *loaded,
                None => *all.entry(module.name).or_insert(self.load(module)?),
            }
        };
        let name = CString::new(name).unwrap_or_default();
        let mut function = Function(std::ptr::null_mut());
        // SAFETY: the module is loaded in this context; pointers are valid for the call.
        self.device.call("find a kernel", || unsafe {
            sys::cuModuleGetFunction(&raw mut function.0, loaded.0, name.as_ptr())
        })?;
        Ok(function)
    }

    fn load(&self, module: Module) -> Result<Loaded, EngineError> {
        let ptx = CString::new(module.ptx).expect("PTX has no zero byte");
        let mut log = [0_u8; 4096];
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // The driver takes the size by value, in the space of a pointer.
        let mut values: [*mut c_void; 2] = [
            log.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(log.len()),
        ];
        let mut loaded = Loaded(std::ptr::null_mut());
        // SAFETY: the PTX ends in a zero byte; there are as many values as options; the log has the given length.
        let result = self.device.call("load kernels", || unsafe {
            sys::cuModuleLoadDataEx(
                &raw mut loaded.0,
                ptx.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        });
        if result.is_err() {
            let log = CStr::from_bytes_until_nul(&log).unwrap_or_default();
            log::error!("{}: {}", module.name, log.to_string_lossy());
        }
        result.map(|()| loaded)
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        let loaded = self
            .loaded
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for module in loaded.values() {
            // SAFETY: loaded in this context and unloaded once; everything that runs its kernels holds `self`.
            self.device
                .call_ignoring_errors(|| unsafe { sys::cuModuleUnload(module.0) });
        }
    }
}
