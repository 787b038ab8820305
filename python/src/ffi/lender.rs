//! Tables and functions that a session of the package `datafusion` lends to one of ours: `connect(session=…)`.
//!
//! The owner writes a plan that scans a table, or a call of a function, with our codec among its own. Here it is read.
//! So tables of files come as their definition and are read by this library; others are scanned by the owner.

use std::sync::Arc;

use datafusion::common::{Result, plan_err};
use datafusion::datasource::{ViewTable, source_as_provider};
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{Expr, LogicalPlan, WindowFunctionDefinition};
use datafusion_ffi::proto::logical_extension_codec::FFI_LogicalExtensionCodec;
use datafusion_proto::bytes::logical_plan_from_bytes_with_extension_codec;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::logical_plan::from_proto::parse_expr;
use datafusion_proto::protobuf::LogicalExprNode;
use prost::Message;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors::from_datafusion;
use crate::ffi::capsules::{self, task_contexts};
use crate::ffi::codec::{NumberCodec, logical_codec};
use crate::ffi::functions::{range_calls, with_session_functions};
use crate::ffi::lending::Lending;
use crate::ffi::lent_table::LentTable;
use crate::shared::{BorrowedFunction, Shared};

/// A session of the package `datafusion` as a lender.
#[pyclass(frozen, module = "datafusion_rmq._native")]
pub struct Lender {
    pub shared: Arc<Shared>,
    pub codec: Arc<NumberCodec>,
}

impl Lender {
    /// What lends to a session.
    pub fn new(shared: Arc<Shared>) -> Self {
        let codec = Arc::new(NumberCodec::new(&shared.ctx.state()));
        Self { shared, codec }
    }
}

#[pymethods]
impl Lender {
    /// The catalog and schema of names without one in a session of the package `datafusion`.
    #[staticmethod]
    fn defaults(owner: &Bound<'_, PyAny>) -> PyResult<(String, String)> {
        let context = (&task_contexts(owner)?).try_into();
        let context: Arc<TaskContext> = context.map_err(from_datafusion)?;
        let catalog = &context.session_config().options().catalog;
        Ok((
            catalog.default_catalog.clone(),
            catalog.default_schema.clone(),
        ))
    }

    /// The capsule of the codec that the owner's plans are written with.
    fn logical_codec<'py>(&self, owner: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCapsule>> {
        logical_codec(&self.codec, owner)
    }

    /// The table that a plan scans, which the owner has written. `lend` returns other tables.
    fn table(&self, owner: &Bound<'_, PyAny>, plan: &[u8], lend: Py<PyAny>) -> PyResult<LentTable> {
        let codec = codec_of(owner)?;
        let lending = Lending::new(Arc::clone(&self.shared), lend);
        table(plan, &lending, codec.as_ref()).map_err(from_datafusion)
    }

    /// Registers the function of a call, which the owner has written.
    fn add_function(&self, owner: &Bound<'_, PyAny>, name: String, call: &[u8]) -> PyResult<()> {
        let codec = codec_of(owner)?;
        let function = function(call, &self.shared, codec.as_ref()).map_err(from_datafusion)?;
        self.shared.borrow_function(name, function);
        Ok(())
    }
}

/// All codecs of the owner, which know whose codec has written what.
fn codec_of(owner: &Bound<'_, PyAny>) -> PyResult<Arc<dyn LogicalExtensionCodec>> {
    let codec = owner.call_method1("__datafusion_logical_extension_codec__", (owner,))?;
    let codec: FFI_LogicalExtensionCodec = capsules::read(&codec)?;
    Ok((&codec).into())
}

fn table(plan: &[u8], lending: &Lending, codec: &dyn LogicalExtensionCodec) -> Result<LentTable> {
    let context = lending.shared().ctx.task_ctx();
    let plan = logical_plan_from_bytes_with_extension_codec(plan, &context, codec)?;
    if let LogicalPlan::TableScan(scan) = &plan {
        let table = source_as_provider(&scan.source)?;
        if let Some(view) = table.downcast_ref::<ViewTable>() {
            return lent_view(view, lending);
        }
        let columns = table.schema().fields().len();
        let has_all = |columns_read: &Vec<usize>| columns_read.iter().copied().eq(0..columns);
        let is_whole = scan.filters.is_empty() && scan.fetch.is_none();
        if is_whole && scan.projection.as_ref().is_none_or(has_all) {
            let named = vec![];
            return Ok(LentTable::new(table, named));
        }
    }
    lent_view(&ViewTable::new(plan, None), lending)
}

/// A view, with the tables that its range functions name.
fn lent_view(view: &ViewTable, lending: &Lending) -> Result<LentTable> {
    let (plan, definition) = (view.logical_plan().clone(), view.definition().cloned());
    let (plan, named) = match range_calls(&plan)? {
        None => (plan, vec![]),
        Some(statement) => {
            let (named, state) = (lending.frames(&statement)?, lending.shared().ctx.state());
            let plan = lending.with_frames(&named, || with_session_functions(plan, &state))?;
            (plan, named)
        }
    };
    let table = Arc::new(ViewTable::new(plan, definition));
    Ok(LentTable::new(table, named))
}

fn function(
    call: &[u8],
    shared: &Shared,
    codec: &dyn LogicalExtensionCodec,
) -> Result<BorrowedFunction> {
    let call = LogicalExprNode::decode(call)
        .map_err(|error| DataFusionError::External(Box::new(error)))?;
    let call = parse_expr(&call, shared.ctx.task_ctx().as_ref(), codec)
        .map_err(|error| DataFusionError::External(Box::new(error)))?;
    match call {
        Expr::ScalarFunction(call) => Ok(BorrowedFunction::Scalar(call.func.as_ref().clone())),
        Expr::AggregateFunction(call) => {
            Ok(BorrowedFunction::Aggregate(call.func.as_ref().clone()))
        }
        Expr::WindowFunction(call) => match &call.fun {
            WindowFunctionDefinition::WindowUDF(function) => {
                Ok(BorrowedFunction::Window(function.as_ref().clone()))
            }
            WindowFunctionDefinition::AggregateUDF(function) => {
                Ok(BorrowedFunction::Aggregate(function.as_ref().clone()))
            }
        },
        other => plan_err!("{other} is no call of a function"),
    }
}
