//! Values of expressions that are known before any row is read.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::datatypes::{Field, Schema};
use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_expr::Expr;
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_physical_expr::create_physical_expr;

use crate::rules::common::conditional::expand_lazy;

/// The value of an expression without columns; `None` if it has columns.
pub fn constant(expr: &Expr) -> Result<Option<ScalarValue>> {
    if !expr.column_refs().is_empty() {
        return Ok(None);
    }
    value_of_nulls(expr, &DFSchema::empty()).map(Some)
}

/// The value of an expression in a row whose columns are all NULL.
pub fn value_of_nulls(expr: &Expr, schema: &DFSchema) -> Result<ScalarValue> {
    // DataFusion evaluates COALESCE and its like only in the form to which it simplifies them.
    let expr = expand_lazy(expr.clone(), |_| Ok(true))?.data;
    let nullable = |field: &Field| Arc::new(field.clone().with_nullable(true));
    let fields = schema.iter();
    let fields = fields.map(|(qualifier, field)| (qualifier.cloned(), nullable(field)));
    let schema = DFSchema::new_with_metadata(fields.collect(), schema.metadata().clone())?;
    let (properties, context) = (ExecutionProps::new(), PhysicalPlanningContext::default());
    let physical = create_physical_expr(&expr, &schema, &properties, &context)?;
    let fields = schema.fields().clone();
    let columns = fields.iter().map(|f| new_null_array(f.data_type(), 1));
    let columns: Vec<ArrayRef> = columns.collect();
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let row = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)?;
    ScalarValue::try_from_array(&physical.evaluate(&row)?.into_array(1)?, 0)
}
