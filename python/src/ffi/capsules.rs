//! The capsules by which the library of the package `datafusion` passes structures of `DataFusion`'s foreign function
//! interface. This file has the only unsafe code of the crate, besides the export of the ADBC driver.

use std::ffi::CStr;

use datafusion_ffi::config::extension_options::FFI_ExtensionOptions;
use datafusion_ffi::execution::FFI_TaskContextProvider;
use datafusion_ffi::proto::logical_extension_codec::FFI_LogicalExtensionCodec;
use datafusion_ffi::proto::physical_extension_codec::FFI_PhysicalExtensionCodec;
use datafusion_ffi::query_planner::FFI_QueryPlanner;
use datafusion_ffi::udaf::FFI_AggregateUDF;
use datafusion_ffi::udf::FFI_ScalarUDF;
use datafusion_ffi::udtf::FFI_TableFunction;
use datafusion_ffi::udwf::FFI_WindowUDF;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// A structure that capsules of one name hold.
pub trait Content: Clone + Send + 'static {
    /// The name.
    const NAME: &CStr;

    /// The function that tells the major version of `DataFusion` that made it.
    fn version(&self) -> Option<unsafe extern "C" fn() -> u64> {
        None
    }
}

impl Content for FFI_TaskContextProvider {
    const NAME: &CStr = c"datafusion_task_context_provider";
}

impl Content for FFI_ExtensionOptions {
    const NAME: &CStr = c"datafusion_extension_options";
}

impl Content for FFI_ScalarUDF {
    const NAME: &CStr = c"datafusion_scalar_udf";
}

impl Content for FFI_AggregateUDF {
    const NAME: &CStr = c"datafusion_aggregate_udf";
}

impl Content for FFI_WindowUDF {
    const NAME: &CStr = c"datafusion_window_udf";
}

impl Content for FFI_TableFunction {
    const NAME: &CStr = c"datafusion_table_function";
}

impl Content for FFI_LogicalExtensionCodec {
    const NAME: &CStr = c"datafusion_logical_extension_codec";

    fn version(&self) -> Option<unsafe extern "C" fn() -> u64> {
        Some(self.version)
    }
}

impl Content for FFI_PhysicalExtensionCodec {
    const NAME: &CStr = c"datafusion_physical_extension_codec";

    fn version(&self) -> Option<unsafe extern "C" fn() -> u64> {
        Some(self.version)
    }
}

impl Content for FFI_QueryPlanner {
    const NAME: &CStr = c"datafusion_query_planner";

    fn version(&self) -> Option<unsafe extern "C" fn() -> u64> {
        Some(self.version)
    }
}

/// A capsule of this content.
pub fn write<T: Content>(py: Python<'_>, content: T) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, content, T::NAME)
}

/// The content of a capsule.
///
/// # Errors
/// A `TypeError` for another object or a capsule of another name, a `RuntimeError` for one of another major version of
/// `DataFusion`.
pub fn read<T: Content>(capsule: &Bound<'_, PyAny>) -> PyResult<T> {
    let name = T::NAME.to_string_lossy();
    let capsule = capsule
        .cast::<PyCapsule>()
        .map_err(|_| PyTypeError::new_err(format!("a capsule {name} is needed, not {capsule}")))?;
    let content = capsule.pointer_checked(Some(T::NAME))?.cast::<T>();
    #[expect(unsafe_code, reason = "a capsule is a pointer")]
    // SAFETY: by DataFusion's protocol a capsule of this name holds this structure, whose layout is that of C, and the
    // capsule lives during the call. Python's part of the package has compared the major versions before, between which
    // the layout may differ.
    let content = unsafe { content.as_ref() }.clone();
    if let Some(version) = content.version() {
        #[expect(unsafe_code, reason = "the structure has it as a function of C")]
        // SAFETY: the function takes nothing and returns a number.
        let theirs = unsafe { version() };
        let ours = datafusion_ffi::version();
        if theirs != ours {
            return Err(PyRuntimeError::new_err(format!(
                "{name} is of DataFusion {theirs}, and datafusion_rmq has DataFusion {ours}"
            )));
        }
    }
    Ok(content)
}

/// What gives the owner's task contexts to codecs.
pub fn task_contexts(owner: &Bound<'_, PyAny>) -> PyResult<FFI_TaskContextProvider> {
    let provider = owner.call_method0("__datafusion_task_context_provider__")?;
    read(&provider)
}
