//! Errors of expressions over searched rows that are raised only for rows that match.
//!
//! A range join evaluates the arguments of aggregates for all rows of its build side. An argument that may fail becomes
//! two: its value, NULL where it fails, and its error, NULL where it does not. The range join finds the least error
//! among the rows that match, which is raised where the aggregate is used.
//!
//! ```text
//!   sum(1 / p.v)     s = sum(rmq_value_or_null(p.v)), e = min(rmq_error_or_null(p.v))     rmq_raise(e, s)
//! ```
//!
//! A range key that may fail is evaluated so, too (`evaluate_late`). The join keeps the rows where it fails beside its
//! sorted rows, as these have no place in their order.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, StringArray, new_null_array,
};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{Column, DFSchema, DataFusionError, Result, exec_err, internal_err};
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_expr::{
    ColumnarValue, Expr, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion_physical_expr::{PhysicalExprRef, create_physical_expr};

/// The part of an expression that is computed: its value or its error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum FalliblePart {
    Value,
    Error,
}

/// The value, or the error, of an expression over the arguments for each row; NULL if it has none.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct FallibleUdf {
    part: FalliblePart,
    /// The expression, over columns that are named by the index of the argument.
    pub expr: Expr,
    /// The types of the arguments.
    pub types: Vec<DataType>,
    /// The type of the expression.
    pub data_type: DataType,
    signature: Signature,
}

/// The value of an expression over columns of `schema`, NULL where it fails.
///
/// # Errors
/// If it can't be evaluated by itself, whatever the rows.
pub fn value_or_null(expr: &Expr, schema: &DFSchema) -> Result<Expr> {
    let mut columns: Vec<Column> = expr.column_refs().into_iter().cloned().collect();
    columns.sort();
    let types = columns.iter().map(|column| {
        let column = Expr::Column(column.clone());
        column.get_type(schema)
    });
    let types: Vec<DataType> = types.collect::<Result<_>>()?;
    let inner = expr.clone().transform_up(|e| {
        let index = match &e {
            Expr::Column(column) => columns.iter().position(|known| known == column),
            _ => None,
        };
        Ok(match index {
            Some(index) => {
                let column = Column::new_unqualified(index.to_string());
                Transformed::yes(Expr::Column(column))
            }
            None => Transformed::no(e),
        })
    })?;
    let is_error = false;
    let udf = FallibleUdf::new(is_error, inner.data, types, expr.get_type(schema)?);
    // What is wrong with the expression itself shows without rows.
    let no_rows = udf.batch(&[], 0)?;
    match udf.physical(&no_rows)?.evaluate(&no_rows) {
        Err(error @ (DataFusionError::Internal(_) | DataFusionError::NotImplemented(_))) => {
            Err(error)
        }
        _ => Ok(ScalarUDF::from(udf).call(columns.into_iter().map(Expr::Column).collect())),
    }
}

/// Whether the expression has the same value for the same arguments in all queries, or within one.
fn volatility(expr: &Expr) -> Volatility {
    let is_stable = expr.exists(|e| {
        Ok(matches!(e, Expr::ScalarFunction(call)
            if call.func.signature().volatility != Volatility::Immutable))
    });
    match is_stable {
        Ok(false) => Volatility::Immutable,
        _ => Volatility::Stable,
    }
}

/// The error, a text, of an expression whose [`value_or_null`] is `expr`; `None` if `expr` is none.
pub fn error_or_null(expr: &Expr) -> Option<Expr> {
    let Expr::ScalarFunction(call) = expr else {
        return None;
    };
    let udf = call.func.inner().downcast_ref::<FallibleUdf>()?;
    let is_error = true;
    let (inner, types) = (udf.expr.clone(), udf.types.clone());
    let error = FallibleUdf::new(is_error, inner, types, udf.data_type.clone());
    (udf.part == FalliblePart::Value).then(|| ScalarUDF::from(error).call(call.args.clone()))
}

/// Whether `expr` is the error of another one.
pub fn is_error(expr: &Expr) -> bool {
    let Expr::ScalarFunction(call) = expr else {
        return false;
    };
    let udf = call.func.inner().downcast_ref::<FallibleUdf>();
    udf.is_some_and(FallibleUdf::is_error)
}

impl FallibleUdf {
    /// The error, or the value, of type `data_type`, of an expression over columns of these types, which are named by
    /// their index.
    pub fn new(is_error: bool, expr: Expr, types: Vec<DataType>, data_type: DataType) -> Self {
        Self {
            part: if is_error {
                FalliblePart::Error
            } else {
                FalliblePart::Value
            },
            signature: Signature::any(types.len(), volatility(&expr)),
            expr,
            types,
            data_type,
        }
    }

    /// Whether it is the error.
    pub fn is_error(&self) -> bool {
        self.part == FalliblePart::Error
    }

    fn batch(&self, arguments: &[ArrayRef], rows: usize) -> Result<RecordBatch> {
        let fields = self.types.iter().enumerate();
        let fields = fields.map(|(i, t)| Field::new(i.to_string(), t.clone(), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        if rows == 0 {
            return Ok(RecordBatch::new_empty(schema));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let columns = arguments.to_vec();
        Ok(RecordBatch::try_new_with_options(
            schema, columns, &options,
        )?)
    }

    fn physical(&self, batch: &RecordBatch) -> Result<PhysicalExprRef> {
        let schema = DFSchema::try_from(batch.schema().as_ref().clone())?;
        create_physical_expr(
            &self.expr,
            &schema,
            &ExecutionProps::new(),
            &PhysicalPlanningContext::default(),
        )
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef> {
        let (values, failed) = evaluate_late(&self.physical(batch)?, batch)?;
        Ok(match self.part {
            FalliblePart::Value => values,
            FalliblePart::Error => {
                let mut errors = vec![None; batch.num_rows()];
                for FailedRow { row, error } in failed {
                    errors[row] = Some(error);
                }
                Arc::new(StringArray::from(errors))
            }
        })
    }
}

/// A row for which an expression fails.
#[derive(Debug)]
pub struct FailedRow {
    /// Its number in the batch.
    pub row: usize,
    /// What the expression says of it.
    pub error: String,
}

/// The values of an expression for the rows of a batch, NULL for those for which it fails, and these. Where a batch
/// fails, its halves are evaluated.
///
/// # Errors
/// Arrow's, if the values of halves can't be put together.
pub fn evaluate_late(
    expr: &PhysicalExprRef,
    batch: &RecordBatch,
) -> Result<(ArrayRef, Vec<FailedRow>)> {
    let (mut values, mut failed) = (vec![], vec![]);
    evaluate_halves(expr, batch, 0, &mut values, &mut failed)?;
    let values = match values.as_slice() {
        [all] => Arc::clone(all),
        parts => concat(&parts.iter().map(AsRef::as_ref).collect::<Vec<&dyn Array>>())?,
    };
    Ok((values, failed))
}

fn evaluate_halves(
    expr: &PhysicalExprRef,
    batch: &RecordBatch,
    first: usize,
    values: &mut Vec<ArrayRef>,
    failed: &mut Vec<FailedRow>,
) -> Result<()> {
    let rows = batch.num_rows();
    match expr.evaluate(batch).and_then(|v| v.into_array(rows)) {
        Ok(array) => values.push(array),
        Err(error) if rows <= 1 => {
            values.push(new_null_array(&expr.data_type(&batch.schema())?, rows));
            let error = error.strip_backtrace();
            failed.extend((0..rows).map(|_| FailedRow {
                row: first,
                error: error.clone(),
            }));
        }
        Err(_) => {
            let half = rows / 2;
            let (left, right) = (batch.slice(0, half), batch.slice(half, rows - half));
            evaluate_halves(expr, &left, first, values, failed)?;
            evaluate_halves(expr, &right, first + half, values, failed)?;
        }
    }
    Ok(())
}

impl ScalarUDFImpl for FallibleUdf {
    fn name(&self) -> &'static str {
        match self.part {
            FalliblePart::Value => "rmq_value_or_null",
            FalliblePart::Error => "rmq_error_or_null",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(match self.part {
            FalliblePart::Value => self.data_type.clone(),
            FalliblePart::Error => DataType::Utf8,
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let arrays = args.args.into_iter().map(|value| value.into_array(rows));
        let batch = self.batch(&arrays.collect::<Result<Vec<_>>>()?, rows)?;
        Ok(ColumnarValue::Array(self.evaluate(&batch)?))
    }
}

/// The function `(error, value)` that returns the value, and fails if there is an error.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct RaiseUdf {
    signature: Signature,
}

impl RaiseUdf {
    /// A call of the function.
    pub fn call(error: Expr, value: Expr) -> Expr {
        ScalarUDF::from(Self::new()).call(vec![error, value])
    }

    /// The function.
    pub fn new() -> Self {
        Self {
            signature: Signature::any(2, Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for RaiseUdf {
    fn name(&self) -> &'static str {
        "rmq_raise"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        match arg_types {
            [_, value] => Ok(value.clone()),
            other => internal_err!("rmq_raise takes two arguments, not {}", other.len()),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<Arc<Field>> {
        match args.arg_fields {
            [_, value] => Ok(Arc::clone(value)),
            other => internal_err!("rmq_raise takes two arguments, not {}", other.len()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let Ok([error, value]) = <[ColumnarValue; 2]>::try_from(args.args) else {
            return internal_err!("rmq_raise takes two arguments");
        };
        let errors = error.into_array(rows)?;
        if let Some(first) = errors.as_string::<i32>().iter().flatten().next() {
            return exec_err!("{first}");
        }
        Ok(value)
    }
}
