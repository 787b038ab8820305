//! The codec.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::{DataFusionError, Result, TableReference, not_impl_err, plan_err};
use datafusion::execution::{SessionStateBuilder, TaskContext};
use datafusion::logical_expr::{AggregateUDF, Extension, LogicalPlan, ScalarUDF, WindowUDF};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::physical_expr::proto_decode::PhysicalExprDecodeCtx;
use datafusion::physical_expr_common::physical_expr::proto_encode::PhysicalExprEncodeCtx;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::physical_plan::{
    DefaultPhysicalExtensionCodec, DefaultPhysicalProtoConverter, PhysicalExtensionCodec,
    PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::proto_error;
use datafusion_rmq::parts::{
    FunctionParts, MergedStates, NoteExec, OrderedRowsExec, RowPositionsExec, named_functions,
};
use datafusion_rmq::physical_plan::WindowFrameExec;
use datafusion_rmq::{SessionStateBuilderExt, SharedIndexes};

use crate::carrier::{CarriedExec, over_placeholders, with_inputs};
use crate::convert::{Decoder, Encoder};
use crate::messages::{Operator, OperatorKind, RowPositions};
use crate::operator::OurOperator;
use crate::shared_parts::SharedParts;
use crate::{envelope, functions, range_join, range_lookup};

/// Writes and reads the operators and functions of datafusion-rmq.
///
/// A clone is the same codec. Those of a process should be clones of one: it has the indexes that are kept from query
/// to query, and the devices. A plan that was read is executed once.
///
/// ```
/// # use std::sync::Arc;
/// # use datafusion::execution::SessionStateBuilder;
/// # use datafusion::prelude::*;
/// # use datafusion_proto::bytes::*;
/// # use datafusion_rmq::SessionStateBuilderExt;
/// # use datafusion_rmq_proto::RmqCodec;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> datafusion::error::Result<()> {
/// let session = SessionStateBuilder::new_with_default_features().with_rmq().build();
/// let ctx = SessionContext::new_with_state(session);
/// ctx.sql("SET rmq.join_mode = 'collected'").await?;
/// ctx.sql("CREATE TABLE p AS SELECT value AS k FROM generate_series(1, 1000)").await?.collect().await?;
/// let query = "SELECT (SELECT count(*) FROM p WHERE p.k BETWEEN q.k AND q.k + 9) AS n FROM p AS q";
/// let plan = ctx.sql(query).await?.create_physical_plan().await?;
///
/// let codec = RmqCodec::default();
/// let bytes = physical_plan_to_bytes_with_extension_codec(plan, &codec)?;
/// let plan = physical_plan_from_bytes_with_extension_codec(&bytes, &ctx.task_ctx(), &codec)?;
/// # let rows = datafusion::physical_plan::collect(plan, ctx.task_ctx()).await?;
/// # assert_eq!(rows.iter().map(|b| b.num_rows()).sum::<usize>(), 1000);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct RmqCodec {
    shared: Arc<SharedParts>,
    /// Writes and reads what is not of datafusion-rmq.
    others: Option<Arc<dyn PhysicalExtensionCodec>>,
    /// The functions that expressions within functions call.
    functions: Arc<TaskContext>,
}

impl Default for RmqCodec {
    fn default() -> Self {
        Self::new(SharedIndexes::default())
    }
}

impl RmqCodec {
    /// A codec whose range joins and lookups use these indexes and their devices where they are executed.
    #[must_use]
    pub fn new(indexes: SharedIndexes) -> Self {
        let session = SessionStateBuilder::new_with_default_features();
        Self {
            functions: session.with_rmq_sharing(&indexes).build().task_ctx(),
            shared: Arc::new(SharedParts::new(indexes)),
            others: None,
        }
    }

    /// The same codec, with another one for operators and functions that are not of datafusion-rmq. Both sides must
    /// have the same.
    #[must_use]
    pub fn with_others(self, others: Arc<dyn PhysicalExtensionCodec>) -> Self {
        Self {
            others: Some(others),
            ..self
        }
    }

    /// The same codec, with the functions of a session for the arguments of aggregates that may fail, such as
    /// `sum(1 / my_udf(v))`, which are evaluated as they were written, and for aggregates of a user that GROUP BY
    /// merges. The default is DataFusion's functions.
    #[must_use]
    pub fn with_functions(self, functions: Arc<TaskContext>) -> Self {
        Self { functions, ..self }
    }

    /// The codec for what is not of datafusion-rmq.
    fn others(&self) -> &dyn PhysicalExtensionCodec {
        match &self.others {
            Some(others) => others.as_ref(),
            None => &DefaultPhysicalExtensionCodec {},
        }
    }

    /// Checks that an operator can be written, if it is of datafusion-rmq: an engine may report the error of writing it
    /// after errors that it leads to.
    ///
    /// # Errors
    /// Those of writing it.
    pub fn check(&self, operator: &Arc<dyn ExecutionPlan>) -> Result<()> {
        if OurOperator::of(operator.as_ref()).is_none() {
            return Ok(());
        }
        let converter = DefaultPhysicalProtoConverter {};
        self.try_encode(Arc::clone(operator), &mut vec![], &converter)
    }

    /// The indexes that are kept from query to query.
    #[must_use]
    pub fn indexes(&self) -> &SharedIndexes {
        self.shared.indexes()
    }
}

/// The message of an operator; `None` for one that is not of datafusion-rmq.
fn message(plan: &dyn ExecutionPlan, encoder: Encoder) -> Result<Option<OperatorKind>> {
    let over_placeholders =
        |operator| Ok::<_, DataFusionError>(Box::new(encoder.plan(&over_placeholders(operator)?)?));
    let Some(operator) = OurOperator::of(plan) else {
        return Ok(None);
    };
    Ok(Some(match operator {
        OurOperator::RangeJoin(join) => {
            OperatorKind::RangeJoin(Box::new(range_join::write(join, encoder)?))
        }
        OurOperator::RangeLookup(lookup) => {
            OperatorKind::RangeLookup(range_lookup::write(lookup, encoder)?)
        }
        OurOperator::PrepareIndexes(prepare) => {
            OperatorKind::PrepareIndexes(range_lookup::write_prepare(prepare, encoder)?)
        }
        OurOperator::WindowFrame(frames) => {
            OperatorKind::WindowFrame(over_placeholders(frames.window())?)
        }
        OurOperator::OrderedRows(rows) => {
            range_lookup::check_memory("the searched side", rows.hidden())?;
            OperatorKind::OrderedRows(Box::new(encoder.plan(rows.hidden())?))
        }
        OurOperator::RowPositions(rows) => OperatorKind::RowPositions(RowPositions {
            files: rows.files().to_vec(),
        }),
        OurOperator::Carried(carried) => {
            OperatorKind::Carried(over_placeholders(carried.operator())?)
        }
        OurOperator::Note(note) => OperatorKind::Note(note.note().to_string()),
        OurOperator::Statement => {
            return plan_err!(
                "CREATE INDEX builds an index of its session, and can't be sent to another process"
            );
        }
        OurOperator::Sharing => {
            return plan_err!(
                "{} shares memory with another operator and can't be sent to another process: plan the query with SET \
                 rmq.join_mode = 'collected' or 'partitioned'",
                plan.name()
            );
        }
    }))
}

/// A function, from its message if it has one, or else by its name.
fn function<F>(
    bytes: &[u8],
    from_message: impl FnOnce() -> Result<F>,
    named: impl FnOnce() -> Option<Arc<F>>,
    others: impl FnOnce() -> Result<Arc<F>>,
) -> Result<Arc<F>> {
    if envelope::is_framed(bytes) {
        return from_message().map(Arc::new);
    }
    let named = bytes.is_empty().then(named).flatten();
    named.map_or_else(others, Ok)
}

fn one_input(inputs: &[Arc<dyn ExecutionPlan>]) -> Result<[Arc<dyn ExecutionPlan>; 1]> {
    let inputs = inputs.to_vec().try_into();
    inputs.map_err(|_| proto_error("the operator has one input"))
}

impl PhysicalExtensionCodec for RmqCodec {
    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        ctx: &TaskContext,
        proto_converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if let Some(others) = self.others.as_ref().filter(|_| !envelope::is_framed(buf)) {
            return others.try_decode(buf, inputs, ctx, proto_converter);
        }
        let operator: Operator = envelope::read(buf)?;
        let decoder = Decoder {
            codec: self,
            converter: proto_converter,
            context: ctx,
        };
        match &operator.kind {
            Some(OperatorKind::RangeJoin(join)) => {
                let inputs = inputs.to_vec().try_into();
                let inputs = inputs.map_err(|_| proto_error("a range join has two inputs"))?;
                let join = range_join::read(join, inputs, decoder, self.indexes())?;
                Ok(Arc::new(join))
            }
            Some(OperatorKind::RangeLookup(lookup)) => {
                let input = one_input(inputs)?;
                let lookup = range_lookup::read(lookup, input, decoder, &self.shared)?;
                Ok(Arc::new(lookup))
            }
            Some(OperatorKind::PrepareIndexes(prepare)) => {
                let input = one_input(inputs)?;
                let prepare = range_lookup::read_prepare(prepare, input, decoder, &self.shared)?;
                Ok(Arc::new(prepare))
            }
            Some(OperatorKind::WindowFrame(window)) => {
                let window = with_inputs(&decoder.plan(window)?, inputs.to_vec())?;
                Ok(Arc::new(WindowFrameExec::of_window(window)?))
            }
            Some(OperatorKind::OrderedRows(rows)) => {
                let rows = OrderedRowsExec::of_one_partition(decoder.plan(rows)?);
                Ok(Arc::new(rows))
            }
            Some(OperatorKind::RowPositions(rows)) => {
                let [input] = one_input(inputs)?;
                let files = rows.files.clone().into();
                Ok(Arc::new(RowPositionsExec::try_new(input, files)?))
            }
            Some(OperatorKind::Carried(operator)) => {
                let operator = with_inputs(&decoder.plan(operator)?, inputs.to_vec())?;
                Ok(Arc::new(CarriedExec::new(operator)))
            }
            Some(OperatorKind::Note(note)) => {
                let [input] = one_input(inputs)?;
                Ok(Arc::new(NoteExec::new(input, note.clone())))
            }
            None => Err(proto_error("an operator is of a kind")),
        }
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        proto_converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let encoder = Encoder {
            codec: self,
            converter: proto_converter,
        };
        match message(node.as_ref(), encoder)? {
            Some(kind) => {
                let kind = Some(kind);
                envelope::write(&Operator { kind }, buf);
                Ok(())
            }
            None => self.others().try_encode(node, buf, proto_converter),
        }
    }

    fn try_decode_udf(&self, name: &str, buf: &[u8]) -> Result<Arc<ScalarUDF>> {
        let from_message = || {
            let exprs = InExpressions(self.clone());
            let slot = |id| self.shared.slot(id);
            functions::read_scalar(&envelope::read(buf)?, &self.functions, &exprs, slot)
        };
        let named = || {
            let (scalars, _) = named_functions();
            scalars.into_iter().find(|f| f.name() == name)
        };
        let others = || self.others().try_decode_udf(name, buf);
        function(buf, from_message, || named().map(Arc::new), others)
    }

    fn try_encode_udf(&self, node: &ScalarUDF, buf: &mut Vec<u8>) -> Result<()> {
        match FunctionParts::of(node) {
            Some(parts) => {
                let message = functions::write_scalar(&parts, &InExpressions(self.clone()))?;
                envelope::write(&message, buf);
                Ok(())
            }
            None => self.others().try_encode_udf(node, buf),
        }
    }

    fn try_decode_udaf(&self, name: &str, buf: &[u8]) -> Result<Arc<AggregateUDF>> {
        let from_message = || functions::read_merged(&envelope::read(buf)?, self, &self.functions);
        let named = || {
            let (_, aggregates) = named_functions();
            aggregates.into_iter().find(|f| f.name() == name)
        };
        let others = || self.others().try_decode_udaf(name, buf);
        function(buf, from_message, || named().map(Arc::new), others)
    }

    fn try_encode_udaf(&self, node: &AggregateUDF, buf: &mut Vec<u8>) -> Result<()> {
        match MergedStates::of(node) {
            Some(states) => {
                envelope::write(&functions::write_merged(&states, self)?, buf);
                Ok(())
            }
            None => self.others().try_encode_udaf(node, buf),
        }
    }

    fn try_decode_udwf(&self, name: &str, buf: &[u8]) -> Result<Arc<WindowUDF>> {
        self.others().try_decode_udwf(name, buf)
    }

    fn try_encode_udwf(&self, node: &WindowUDF, buf: &mut Vec<u8>) -> Result<()> {
        self.others().try_encode_udwf(node, buf)
    }

    fn try_decode_expr(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn PhysicalExpr>],
        ctx: &PhysicalExprDecodeCtx<'_>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        self.others().try_decode_expr(buf, inputs, ctx)
    }

    fn try_encode_expr(
        &self,
        node: &Arc<dyn PhysicalExpr>,
        buf: &mut Vec<u8>,
        ctx: &PhysicalExprEncodeCtx<'_>,
    ) -> Result<()> {
        self.others().try_encode_expr(node, buf, ctx)
    }
}

/// Writes and reads the functions of logical expressions, those that functions are made of.
#[derive(Debug)]
struct InExpressions(RmqCodec);

impl LogicalExtensionCodec for InExpressions {
    fn try_decode(
        &self,
        _buf: &[u8],
        _inputs: &[LogicalPlan],
        _ctx: &TaskContext,
    ) -> Result<Extension> {
        not_impl_err!("expressions of functions have no plans")
    }

    fn try_encode(&self, _node: &Extension, _buf: &mut Vec<u8>) -> Result<()> {
        not_impl_err!("expressions of functions have no plans")
    }

    fn try_decode_table_provider(
        &self,
        _buf: &[u8],
        table_ref: &TableReference,
        _schema: SchemaRef,
        _ctx: &TaskContext,
    ) -> Result<Arc<dyn TableProvider>> {
        not_impl_err!("expressions of functions have no tables: {table_ref}")
    }

    fn try_encode_table_provider(
        &self,
        table_ref: &TableReference,
        _node: Arc<dyn TableProvider>,
        _buf: &mut Vec<u8>,
    ) -> Result<()> {
        not_impl_err!("expressions of functions have no tables: {table_ref}")
    }

    fn try_decode_udf(&self, name: &str, buf: &[u8]) -> Result<Arc<ScalarUDF>> {
        self.0.try_decode_udf(name, buf)
    }

    fn try_encode_udf(&self, node: &ScalarUDF, buf: &mut Vec<u8>) -> Result<()> {
        self.0.try_encode_udf(node, buf)
    }
}
