//! Tables and functions that a session of the package `datafusion` lends to one of ours: `connect(session=…)`.
//!
//! The owner writes a plan that scans a table, or a call of a function, with our codec among its own. Here it is read.
//! So tables of files come as their definition and are read by this library; others are scanned by the owner.

use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::{Result, TableReference, plan_err};
use datafusion::datasource::{ViewTable, source_as_provider};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{Expr, LogicalPlan, WindowFunctionDefinition};
use datafusion_ffi::proto::logical_extension_codec::FFI_LogicalExtensionCodec;
use datafusion_ffi::table_provider::ForeignTableProvider;
use datafusion_proto::bytes::logical_plan_from_bytes_with_extension_codec;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::logical_plan::from_proto::parse_expr;
use datafusion_proto::protobuf::LogicalExprNode;
use prost::Message;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors::from_datafusion;
use crate::ffi::codec::NumberCodec;
use crate::ffi::{capsules, logical_codec};
use crate::session::Session;
use crate::shared::{BorrowedFunction, Shared};

/// A table of another session.
#[pyclass(frozen, module = "datafusion_rmq._native")]
pub struct LentTable {
    table: Arc<dyn TableProvider>,
}

#[pymethods]
impl LentTable {
    /// Whether it is a definition, from which this library reads the table, so that it can be used until the
    /// definition changes.
    #[getter]
    fn is_definition(&self) -> bool {
        !self.table.is::<ForeignTableProvider>() && !self.table.is::<ViewTable>()
    }
}

impl LentTable {
    /// The table by a name of these parts.
    pub fn named(&self, parts: Vec<String>) -> Result<(TableReference, Arc<dyn TableProvider>)> {
        let name = match <[String; 1]>::try_from(parts) {
            Ok([table]) => TableReference::bare(table),
            Err(parts) => match <[String; 2]>::try_from(parts) {
                Ok([schema, table]) => TableReference::partial(schema, table),
                Err(parts) => match <[String; 3]>::try_from(parts) {
                    Ok([catalog, schema, table]) => TableReference::full(catalog, schema, table),
                    Err(parts) => return plan_err!("no table has the name {}", parts.join(".")),
                },
            },
        };
        Ok((name, Arc::clone(&self.table)))
    }
}

/// A session of the package `datafusion` as a lender.
#[pyclass(frozen, module = "datafusion_rmq._native")]
pub struct Lender {
    pub shared: Arc<Shared>,
    pub codec: Arc<NumberCodec>,
}

#[pymethods]
impl Lender {
    /// What lends to a session.
    #[new]
    fn new(session: &Session) -> Self {
        let shared = Arc::clone(&session.shared);
        let codec = Arc::new(NumberCodec::new(&shared.ctx.state()));
        Self { shared, codec }
    }

    /// The capsule of the codec that the owner's plans are written with.
    fn logical_codec<'py>(&self, owner: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCapsule>> {
        logical_codec(&self.codec, owner)
    }

    /// The table that a plan scans, which the owner has written.
    #[expect(clippy::unused_self, reason = "the codec is among those of the owner")]
    fn table(&self, owner: &Bound<'_, PyAny>, plan: &[u8]) -> PyResult<LentTable> {
        let codec = codec_of(owner)?;
        let table = table(plan, &self.shared, codec.as_ref()).map_err(from_datafusion)?;
        Ok(LentTable { table })
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

fn table(
    plan: &[u8],
    shared: &Shared,
    codec: &dyn LogicalExtensionCodec,
) -> Result<Arc<dyn TableProvider>> {
    let context = shared.ctx.task_ctx();
    let plan = logical_plan_from_bytes_with_extension_codec(plan, &context, codec)?;
    if let LogicalPlan::TableScan(scan) = &plan
        && scan.filters.is_empty()
        && scan.fetch.is_none()
    {
        let table = source_as_provider(&scan.source)?;
        let columns = table.schema().fields().len();
        let has_all = |columns_read: &Vec<usize>| columns_read.iter().copied().eq(0..columns);
        if scan.projection.as_ref().is_none_or(has_all) {
            return Ok(table);
        }
    }
    Ok(Arc::new(ViewTable::new(plan, None)))
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
