//! The product of an interval and an integer, for windows whose length is in a column: `a.minutes * INTERVAL '1
//! minute'`. DataFusion has none.

use std::sync::Arc;

use arrow::array::{AsArray, IntervalMonthDayNanoArray};
use arrow::datatypes::{
    DataType, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit,
};
use datafusion::common::{DFSchema, Result, ScalarValue, exec_datafusion_err};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, cast,
};
use datafusion::sql::sqlparser::ast::BinaryOperator;

const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);

/// Plans `*` of an interval and an integer.
#[derive(Debug)]
pub(crate) struct IntervalProductPlanner;

impl ExprPlanner for IntervalProductPlanner {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        if expr.op != BinaryOperator::Multiply {
            return Ok(PlannerResult::Original(expr));
        }
        // A subquery, or what is no expression of these columns, is DataFusion's.
        let is_interval = |e: &Expr| e.get_type(schema).is_ok_and(|t| t == INTERVAL);
        let (interval, factor) = if is_interval(&expr.left) {
            (&expr.left, as_factor(&expr.right, schema))
        } else if is_interval(&expr.right) {
            (&expr.right, as_factor(&expr.left, schema))
        } else {
            return Ok(PlannerResult::Original(expr));
        };
        let Some(factor) = factor else {
            return Ok(PlannerResult::Original(expr));
        };
        let product = ScalarUDF::from(IntervalProductUdf::new());
        let product = product.call(vec![interval.clone(), factor]);
        Ok(PlannerResult::Planned(product))
    }
}

/// The integer that an expression is, if it is one.
fn as_factor(expr: &Expr, schema: &DFSchema) -> Option<Expr> {
    let is_integer = expr.get_type(schema).is_ok_and(|t| t.is_integer());
    is_integer.then(|| cast(expr.clone(), DataType::Int64))
}

/// The function `(interval, integer)` that returns their product.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct IntervalProductUdf {
    signature: Signature,
}

impl IntervalProductUdf {
    pub(crate) fn new() -> Self {
        Self {
            signature: Signature::exact(vec![INTERVAL, DataType::Int64], Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for IntervalProductUdf {
    fn name(&self) -> &'static str {
        "rmq_interval_product"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(INTERVAL)
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let names = args.iter().map(|arg| arg.schema_name().to_string());
        Ok(names.collect::<Vec<_>>().join(" * "))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let (intervals, factors) = (
            arrays[0].as_primitive::<IntervalMonthDayNanoType>(),
            arrays[1].as_primitive::<Int64Type>(),
        );
        let products = intervals.iter().zip(factors).map(|pair| match pair {
            (Some(interval), Some(factor)) => product(interval, factor).map(Some),
            _ => Ok(None),
        });
        let products = products.collect::<Result<IntervalMonthDayNanoArray>>()?;
        // Two constants are evaluated as one row of each.
        let is_constant = args
            .args
            .iter()
            .all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        if is_constant && products.len() == 1 {
            let value = ScalarValue::try_from_array(&products, 0)?;
            return Ok(ColumnarValue::Scalar(value));
        }
        Ok(ColumnarValue::Array(Arc::new(products)))
    }
}

fn product(interval: IntervalMonthDayNano, factor: i64) -> Result<IntervalMonthDayNano> {
    let short = |part: i32| {
        i64::from(part)
            .checked_mul(factor)
            .and_then(|p| i32::try_from(p).ok())
    };
    let parts = short(interval.months)
        .zip(short(interval.days))
        .zip(interval.nanoseconds.checked_mul(factor));
    let Some(((months, days), nanoseconds)) = parts else {
        return Err(exec_datafusion_err!(
            "an interval times {factor} is too long: its months and days have 32 bits each, its nanoseconds 64"
        ));
    };
    Ok(IntervalMonthDayNano::new(months, days, nanoseconds))
}
