//! The extension of a session of the package `datafusion`: a query planner and codecs, which that package's library
//! calls by `DataFusion`'s foreign function interface.
//!
//! ```text
//!   owner: SessionContext of datafusion            here
//!     logical plan, optimized ── bytes ──▶ OwnerPlanner: the plan of a session of ours, or of the planner before
//!     FFI_ExecutionPlan       ◀── number ──  OwnedPlan
//!       rows of the result    ◀── Arrow ──     executed by our runtime
//!       scans of its tables   ── Arrow ──▶
//! ```
//!
//! Both libraries are in one process. So tables, functions and plans cross as numbers, in place of bytes: `numbers.rs`.

mod capsules;
mod codec;
pub mod functions;
pub mod lender;
mod lending;
pub mod lent_table;
mod numbers;
mod options;
mod owned_plan;
mod planner;

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::logical_expr::ScalarUDF;
use datafusion_ffi::config::extension_options::FFI_ExtensionOptions;
use datafusion_ffi::proto::logical_extension_codec::FFI_LogicalExtensionCodec;
use datafusion_ffi::proto::physical_extension_codec::FFI_PhysicalExtensionCodec;
use datafusion_ffi::query_planner::FFI_QueryPlanner;
use datafusion_ffi::udaf::FFI_AggregateUDF;
use datafusion_ffi::udf::FFI_ScalarUDF;
use datafusion_ffi::udtf::FFI_TableFunction;
use datafusion_ffi::udwf::FFI_WindowUDF;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::ffi::capsules::task_contexts;
use crate::ffi::codec::{NumberCodec, logical_codec};
use crate::ffi::functions::{LentRangeFunction, LentTableFunction, OwnFunctions};
use crate::ffi::lender::Lender;
use crate::ffi::lending::Lending;
use crate::ffi::planner::OwnerPlanner;
use crate::runtime::{handle, run};
use crate::shared::Shared;

/// What a session of the package `datafusion` is given: codecs and a query planner, and the session that they share.
#[pyclass(frozen, module = "datafusion_rmq._native")]
pub struct Extension {
    shared: Arc<Shared>,
    codec: Arc<NumberCodec>,
    functions: OwnFunctions,
}

/// Functions by name, as capsules.
type Capsules<'py> = Vec<(String, Bound<'py, PyCapsule>)>;

#[pymethods]
impl Extension {
    /// Opens the session with the options of these full names.
    #[new]
    fn new(py: Python<'_>, options: HashMap<String, String>) -> PyResult<Self> {
        let shared = Arc::new(run(py, Shared::open(options, None))?);
        let state = shared.ctx.state();
        Ok(Self {
            codec: Arc::new(NumberCodec::new(&state)),
            functions: OwnFunctions::of(&state),
            shared,
        })
    }

    /// The capsule of options, by which an owner accepts `SET rmq.…`. The planner checks what is set.
    #[staticmethod]
    fn options(py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
        capsules::write(py, FFI_ExtensionOptions::default())
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

    /// What reads tables of an owner that has these codecs.
    fn lender(&self) -> Lender {
        Lender {
            shared: Arc::clone(&self.shared),
            codec: Arc::clone(&self.codec),
        }
    }

    /// The scalar, aggregate, window and table functions, for an owner whose tables `lend` returns.
    fn functions<'py>(
        &self,
        owner: &Bound<'py, PyAny>,
        lend: Py<PyAny>,
    ) -> PyResult<(Capsules<'py>, Capsules<'py>, Capsules<'py>, Capsules<'py>)> {
        let py = owner.py();
        let lending = Lending::new(Arc::clone(&self.shared), lend);
        let scalars = self.functions.scalars.iter().map(|(name, function)| {
            let function = LentRangeFunction::new(Arc::clone(function), lending.clone());
            let function = FFI_ScalarUDF::from(Arc::new(ScalarUDF::from(function)));
            Ok((name.clone(), capsules::write(py, function)?))
        });
        let aggregates = self.functions.aggregates.iter().map(|(name, function)| {
            let function = FFI_AggregateUDF::from(Arc::clone(function));
            Ok((name.clone(), capsules::write(py, function)?))
        });
        let windows = self.functions.windows.iter().map(|(name, function)| {
            let function = FFI_WindowUDF::from(Arc::clone(function));
            Ok((name.clone(), capsules::write(py, function)?))
        });
        let (provider, runtime) = (task_contexts(owner)?, handle(py)?);
        let tables = self.functions.tables.iter().map(|(name, function)| {
            let function = LentTableFunction::new(Arc::clone(function), lending.clone());
            let codec = Some(Arc::clone(&self.codec) as _);
            let (runtime, provider) = (Some(runtime.clone()), provider.clone());
            let function = FFI_TableFunction::new(Arc::new(function), runtime, provider, codec);
            Ok((name.clone(), capsules::write(py, function)?))
        });
        Ok((
            scalars.collect::<PyResult<_>>()?,
            aggregates.collect::<PyResult<_>>()?,
            windows.collect::<PyResult<_>>()?,
            tables.collect::<PyResult<_>>()?,
        ))
    }

    /// The capsule of the query planner, for an owner that has these codecs, whose tables `lend` returns, and whose
    /// planner was `fallback`.
    fn planner<'py>(
        &self,
        owner: &Bound<'py, PyAny>,
        lend: Py<PyAny>,
        fallback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let codec = |name: &str| owner.call_method1(name, (owner,));
        let logical = codec("__datafusion_logical_extension_codec__")?;
        let logical: FFI_LogicalExtensionCodec = capsules::read(&logical)?;
        let physical = codec("__datafusion_physical_extension_codec__")?;
        let physical: FFI_PhysicalExtensionCodec = capsules::read(&physical)?;
        let fallback: FFI_QueryPlanner = capsules::read(fallback)?;
        let planner = Arc::new(OwnerPlanner {
            lending: Lending::new(Arc::clone(&self.shared), lend),
            functions: self.functions.clone(),
            fallback: (&fallback).into(),
            runtime: handle(owner.py())?,
            process: std::process::id(),
        });
        let planner = FFI_QueryPlanner::new_with_ffi_codecs(planner, logical, physical);
        capsules::write(owner.py(), planner)
    }
}
