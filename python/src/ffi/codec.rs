//! The codec: tables and functions of the owner come as numbers, plans of ours go as numbers.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::{Result, TableReference, not_impl_err};
use datafusion::execution::{SessionState, TaskContext};
use datafusion::logical_expr::{AggregateUDF, Extension, LogicalPlan, ScalarUDF, WindowUDF};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_ffi::proto::logical_extension_codec::FFI_LogicalExtensionCodec;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::ffi::capsules::{self, task_contexts};
use crate::ffi::functions::LentRangeFunction;
use crate::ffi::numbers::Numbers;
use crate::ffi::owned_plan::OwnedPlan;
use crate::runtime::handle;

/// How the bytes of a function begin that both libraries have, and is meant by its name.
const KNOWN: &[u8] = b"rmq name";

/// The operator of DELETE and UPDATE, which `DataFusion` cannot write. It is the owner's and comes back to it.
const DELETES: &str = "DmlResultExec";

/// Writes and reads what `DataFusion` does not know how to.
#[derive(Debug)]
pub struct NumberCodec {
    tables: Numbers<Arc<dyn TableProvider>>,
    plans: Numbers<Arc<dyn ExecutionPlan>>,
    scalars: Functions<ScalarUDF>,
    aggregates: Functions<AggregateUDF>,
    windows: Functions<WindowUDF>,
}

impl NumberCodec {
    /// A codec that takes functions of this session for those of the same name of the owner.
    pub fn new(state: &SessionState) -> Self {
        Self {
            tables: Numbers::default(),
            plans: Numbers::default(),
            scalars: Functions::new(state.scalar_functions()),
            aggregates: Functions::new(state.aggregate_functions()),
            windows: Functions::new(state.window_functions()),
        }
    }
}

/// Functions of one kind.
#[derive(Debug)]
struct Functions<F> {
    known: HashMap<String, Arc<F>>,
    others: Numbers<Arc<F>>,
}

impl<F> Functions<F> {
    fn new(known: &HashMap<String, Arc<F>>) -> Self {
        Self {
            known: known.clone(),
            others: Numbers::default(),
        }
    }

    fn write(&self, name: &str, function: Arc<F>, bytes: &mut Vec<u8>) {
        if self.known.contains_key(name) {
            bytes.extend(KNOWN);
        } else {
            self.others.write(function, bytes);
        }
    }

    fn read(&self, name: &str, bytes: &[u8]) -> Result<Arc<F>> {
        let known = self.known.get(name).filter(|_| bytes == KNOWN);
        match known {
            Some(known) => Ok(Arc::clone(known)),
            None => self.others.take(bytes, &format!("the function {name}")),
        }
    }
}

impl LogicalExtensionCodec for NumberCodec {
    fn try_decode(&self, _: &[u8], _: &[LogicalPlan], _: &TaskContext) -> Result<Extension> {
        not_impl_err!("DataFusion 55 passes no extension nodes between libraries")
    }

    fn try_encode(&self, node: &Extension, _: &mut Vec<u8>) -> Result<()> {
        let name = node.node.name();
        not_impl_err!("DataFusion 55 passes no extension nodes between libraries: {name}")
    }

    fn try_decode_table_provider(
        &self,
        bytes: &[u8],
        name: &TableReference,
        _: SchemaRef,
        _: &TaskContext,
    ) -> Result<Arc<dyn TableProvider>> {
        self.tables.take(bytes, &format!("the table {name}"))
    }

    fn try_encode_table_provider(
        &self,
        _: &TableReference,
        table: Arc<dyn TableProvider>,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        self.tables.write(table, bytes);
        Ok(())
    }

    fn try_decode_udf(&self, name: &str, bytes: &[u8]) -> Result<Arc<ScalarUDF>> {
        self.scalars.read(name, bytes)
    }

    fn try_encode_udf(&self, function: &ScalarUDF, bytes: &mut Vec<u8>) -> Result<()> {
        let shared = Arc::new(function.clone());
        if function.inner().is::<LentRangeFunction>() {
            // Reading a plan, too, finds out the types of its calls.
            self.scalars.others.write(shared, bytes);
        } else {
            self.scalars.write(function.name(), shared, bytes);
        }
        Ok(())
    }

    fn try_decode_udaf(&self, name: &str, bytes: &[u8]) -> Result<Arc<AggregateUDF>> {
        self.aggregates.read(name, bytes)
    }

    fn try_encode_udaf(&self, function: &AggregateUDF, bytes: &mut Vec<u8>) -> Result<()> {
        let shared = Arc::new(function.clone());
        self.aggregates.write(function.name(), shared, bytes);
        Ok(())
    }

    fn try_decode_udwf(&self, name: &str, bytes: &[u8]) -> Result<Arc<WindowUDF>> {
        self.windows.read(name, bytes)
    }

    fn try_encode_udwf(&self, function: &WindowUDF, bytes: &mut Vec<u8>) -> Result<()> {
        let shared = Arc::new(function.clone());
        self.windows.write(function.name(), shared, bytes);
        Ok(())
    }
}

impl PhysicalExtensionCodec for NumberCodec {
    fn try_decode(
        &self,
        bytes: &[u8],
        _: &[Arc<dyn ExecutionPlan>],
        _: &TaskContext,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.plans.take(bytes, "the plan")
    }

    fn try_encode(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        if !plan.is::<OwnedPlan>() && plan.name() != DELETES {
            return not_impl_err!("{} is no plan of datafusion_rmq", plan.name());
        }
        self.plans.write(plan, bytes);
        Ok(())
    }
}

/// The capsule of a codec of logical plans, for an owner.
pub fn logical_codec<'py>(
    codec: &Arc<NumberCodec>,
    owner: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let (provider, runtime) = (task_contexts(owner)?, handle(owner.py())?);
    let codec = FFI_LogicalExtensionCodec::new(Arc::clone(codec) as _, Some(runtime), provider);
    capsules::write(owner.py(), codec)
}
