//! The kernels' PTX and the functions in it, compiled by the driver for its device when first needed.

use std::ffi::{CStr, CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUfunction, CUjit_option, CUmodule};

use super::device::Device;
use crate::EngineError;

/// A file of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Module {
    Build,
    AnswerU32,
    AnswerU64,
    AnswerU128,
    /// Searches in sorted keys.
    Bounds,
    /// The kernels of the paper.
    Paper,
    /// Its CL with every size of group and chunk.
    PaperHeatMap,
    /// What the hardware can do, and what makes data.
    Limit,
}

const MODULES: usize = 8;

impl Module {
    fn ptx(self) -> &'static CStr {
        macro_rules! ptx {
            ($file:literal) => {
                concat!(
                    include_str!(concat!("../../kernels/", $file, ".ptx")),
                    "\0"
                )
            };
        }
        let text = match self {
            Self::Build => ptx!("ptx/build"),
            Self::AnswerU32 => ptx!("ptx/answer_u32"),
            Self::AnswerU64 => ptx!("ptx/answer_u64"),
            Self::AnswerU128 => ptx!("ptx/answer_u128"),
            Self::Bounds => ptx!("ptx/bounds"),
            Self::Paper => ptx!("baselines/ptx/paper"),
            Self::PaperHeatMap => ptx!("baselines/ptx/paper_heat_map"),
            Self::Limit => ptx!("baselines/ptx/limit"),
        };
        // Looked through for zero bytes when loaded: doing it at compile time takes long.
        CStr::from_bytes_with_nul(text.as_bytes()).expect("PTX has no zero byte")
    }
}

/// A kernel, good while its [`Modules`] live.
#[derive(Debug, Clone, Copy)]
pub struct Function(pub CUfunction);

// SAFETY: a handle that the driver takes from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// What is loaded on a device.
#[derive(Debug)]
pub struct Modules {
    device: Arc<Device>,
    loaded: Mutex<[Option<Loaded>; MODULES]>,
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

    /// A kernel by its name. The first of a module takes the driver some time, as it compiles the module.
    pub fn function(&self, module: Module, name: &str) -> Result<Function, EngineError> {
        let loaded = {
            let mut all = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            match all[module as usize] {
                Some(loaded) => loaded,
                None => *all[module as usize].insert(self.load(module)?),
            }
        };
        let name = CString::new(name).unwrap_or_default();
        let mut function = Function(std::ptr::null_mut());
        // SAFETY: the module is loaded in this context, pointers are good for the call.
        self.device.call("find a kernel", || unsafe {
            sys::cuModuleGetFunction(&raw mut function.0, loaded.0, name.as_ptr())
        })?;
        Ok(function)
    }

    fn load(&self, module: Module) -> Result<Loaded, EngineError> {
        let mut log = [0_u8; 4096];
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // The driver reads a number out of a pointer's place.
        let mut values: [*mut c_void; 2] = [
            log.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(log.len()),
        ];
        let mut loaded = Loaded(std::ptr::null_mut());
        // SAFETY: the PTX ends in a zero byte; the options have as many values, and the log has the length told.
        let result = self.device.call("load kernels", || unsafe {
            sys::cuModuleLoadDataEx(
                &raw mut loaded.0,
                module.ptx().as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        });
        if result.is_err() {
            let log = CStr::from_bytes_until_nul(&log).unwrap_or_default();
            log::error!("{module:?}: {}", log.to_string_lossy());
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
        for module in loaded.iter().flatten() {
            // SAFETY: loaded in this context and unloaded once; what runs its kernels holds `self`.
            self.device
                .quietly(|| unsafe { sys::cuModuleUnload(module.0) });
        }
    }
}
