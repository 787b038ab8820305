//! Expressions and plans within a message.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use datafusion_proto::physical_plan::{
    PhysicalExtensionCodec, PhysicalPlanDecodeContext, PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::{self, PhysicalExprNode, PhysicalPlanNode, proto_error};

use crate::windows::check_all_windows;

/// Writes expressions and plans.
#[derive(Clone, Copy)]
pub(crate) struct Encoder<'a> {
    pub(crate) codec: &'a dyn PhysicalExtensionCodec,
    pub(crate) converter: &'a dyn PhysicalProtoConverterExtension,
}

impl Encoder<'_> {
    pub(crate) fn expr(&self, expr: &PhysicalExprRef) -> Result<PhysicalExprNode> {
        self.converter.physical_expr_to_proto(expr, self.codec)
    }

    pub(crate) fn exprs<'a>(
        &self,
        exprs: impl IntoIterator<Item = &'a PhysicalExprRef>,
    ) -> Result<Vec<PhysicalExprNode>> {
        exprs.into_iter().map(|expr| self.expr(expr)).collect()
    }

    /// A plan that is no input: hidden, or that of a relation.
    pub(crate) fn plan(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<PhysicalPlanNode> {
        check_all_windows(plan)?;
        self.converter.execution_plan_to_proto(plan, self.codec)
    }

    pub(crate) fn filter(&self, filter: &JoinFilter) -> Result<protobuf::JoinFilter> {
        let columns = filter.column_indices().iter().map(|column| {
            let index = u32::try_from(column.index);
            let index = index.map_err(|_| proto_error("a filter has too many columns"))?;
            let side = protobuf::JoinSide::from(column.side).into();
            Ok(protobuf::ColumnIndex { index, side })
        });
        Ok(protobuf::JoinFilter {
            expression: Some(self.expr(filter.expression())?),
            column_indices: columns.collect::<Result<_>>()?,
            schema: Some(filter.schema().as_ref().try_into()?),
        })
    }
}

/// Reads expressions and plans.
#[derive(Clone, Copy)]
pub(crate) struct Decoder<'a> {
    pub(crate) codec: &'a dyn PhysicalExtensionCodec,
    pub(crate) converter: &'a dyn PhysicalProtoConverterExtension,
    pub(crate) context: &'a TaskContext,
}

impl<'a> Decoder<'a> {
    fn decode_context(&self) -> PhysicalPlanDecodeContext<'a> {
        PhysicalPlanDecodeContext::new(self.context, self.codec)
    }

    /// An expression over columns of `schema`.
    pub(crate) fn expr(&self, expr: &PhysicalExprNode, schema: &Schema) -> Result<PhysicalExprRef> {
        let context = self.decode_context();
        self.converter
            .proto_to_physical_expr(expr, schema, &context)
    }

    pub(crate) fn exprs(
        &self,
        exprs: &[PhysicalExprNode],
        schema: &Schema,
    ) -> Result<Vec<PhysicalExprRef>> {
        exprs.iter().map(|expr| self.expr(expr, schema)).collect()
    }

    pub(crate) fn plan(&self, plan: &PhysicalPlanNode) -> Result<Arc<dyn ExecutionPlan>> {
        let context = self.decode_context();
        self.converter.proto_to_execution_plan(plan, &context)
    }

    pub(crate) fn filter(&self, filter: &protobuf::JoinFilter) -> Result<JoinFilter> {
        let (Some(schema), Some(expr)) = (&filter.schema, &filter.expression) else {
            return Err(proto_error("a filter has an expression and a schema"));
        };
        let schema = Schema::try_from(schema)?;
        let columns = filter.column_indices.iter().map(|column| {
            let side = protobuf::JoinSide::try_from(column.side);
            let side = side.map_err(|_| proto_error("a column of a filter has no side"))?;
            Ok(ColumnIndex {
                index: column.index as usize,
                side: side.into(),
            })
        });
        let expr = self.expr(expr, &schema)?;
        let columns = columns.collect::<Result<_>>()?;
        Ok(JoinFilter::new(expr, columns, Arc::new(schema)))
    }
}
