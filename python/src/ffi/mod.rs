//! The extension of a session of the package `datafusion`: a query planner and codecs, which that package's library
//! calls by `DataFusion`'s foreign function interface.
//!
//! ```text
//!   owner: SessionContext of datafusion            here
//!     logical plan, optimized ── bytes ──▶ ForeignPlanner: the plan of a session of ours, or of the planner before
//!     FFI_ExecutionPlan       ◀── number ──  OwnedPlan
//!       rows of the result    ◀── Arrow ──     executed by our runtime
//!       scans of its tables   ── Arrow ──▶
//! ```
//!
//! Both libraries are in one process. So tables, functions and plans cross as they are, in place of bytes: `numbers.rs`.

mod capsules;
mod codec;
mod lender;
mod numbers;
mod owned_plan;
mod planner;

use std::collections::HashMap;
use std::sync::Arc;

use datafusion_ffi::execution::FFI_TaskContextProvider;
use datafusion_ffi::proto::logical_extension_codec::FFI_LogicalExtensionCodec;
use datafusion_ffi::proto::physical_extension_codec::FFI_PhysicalExtensionCodec;
use datafusion_ffi::query_planner::FFI_QueryPlanner;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

pub use crate::ffi::lender::{Lender, LentTable};

use crate::ffi::codec::NumberCodec;
use crate::ffi::planner::ForeignPlanner;
use crate::runtime::{handle, run};
use crate::shared::Shared;

/// What a session of the package `datafusion` is given: codecs and a query planner, and the session that they share.
#[pyclass(frozen, module = "datafusion_rmq._native")]
pub struct Extension {
    shared: Arc<Shared>,
    codec: Arc<NumberCodec>,
}

#[pymethods]
impl Extension {
    /// Opens the session with the options of these full names.
    #[new]
    fn new(py: Python<'_>, options: HashMap<String, String>) -> PyResult<Self> {
        let shared = Arc::new(run(py, Shared::open(options, None))?);
        let codec = Arc::new(NumberCodec::new(&shared.ctx.state()));
        Ok(Self { shared, codec })
    }

    /// The capsule of the codec of logical plans, for an owner.
    fn logical_codec<'py>(&self, owner: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCapsule>> {
        logical_codec(&self.codec, owner)
    }

    /// The capsule of the codec of physical plans, for an owner.
    fn physical_codec<'py>(&self, owner: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCapsule>> {
        let (provider, codec) = (task_contexts(owner)?, Arc::clone(&self.codec));
        let runtime = handle(owner.py())?;
        let codec = FFI_PhysicalExtensionCodec::new(codec, Some(runtime), provider);
        capsules::write(owner.py(), codec)
    }

    /// The capsule of the query planner, for an owner that has these codecs and whose planner was `fallback`.
    fn planner<'py>(
        &self,
        owner: &Bound<'py, PyAny>,
        fallback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let codec = |name: &str| owner.call_method1(name, (owner,));
        let logical = codec("__datafusion_logical_extension_codec__")?;
        let logical: FFI_LogicalExtensionCodec = capsules::read(&logical)?;
        let physical = codec("__datafusion_physical_extension_codec__")?;
        let physical: FFI_PhysicalExtensionCodec = capsules::read(&physical)?;
        let fallback: FFI_QueryPlanner = capsules::read(fallback)?;
        let planner = Arc::new(ForeignPlanner {
            shared: Arc::clone(&self.shared),
            fallback: (&fallback).into(),
            runtime: handle(owner.py())?,
        });
        let planner = FFI_QueryPlanner::new_with_ffi_codecs(planner, logical, physical);
        capsules::write(owner.py(), planner)
    }
}

/// The capsule of a codec of logical plans, for an owner.
fn logical_codec<'py>(
    codec: &Arc<NumberCodec>,
    owner: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let (provider, runtime) = (task_contexts(owner)?, handle(owner.py())?);
    let codec = FFI_LogicalExtensionCodec::new(Arc::clone(codec) as _, Some(runtime), provider);
    capsules::write(owner.py(), codec)
}

/// What gives the owner's task contexts to codecs.
fn task_contexts(owner: &Bound<'_, PyAny>) -> PyResult<FFI_TaskContextProvider> {
    let provider = owner.call_method0("__datafusion_task_context_provider__")?;
    capsules::read(&provider)
}
